package hooktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// Options change what the suite does. The zero value is useful.
type Options struct {
	// Samples are asked about instead of [Samples] when not empty.
	Samples []Sample

	// Timeout is the deadline of one call; 0 means 2s, the default of the
	// controller.
	Timeout time.Duration

	// Grace is how long a hook may take to return once its context is done;
	// 0 means 5s, which is much, so that a busy machine fails no good hook.
	Grace time.Duration
}

// Result is what came of one check; Err is nil when it passed.
type Result struct {
	Check string
	Err   error
}

// callers is how many ask at once.
const callers = 16

// Run runs the suite against hook, with one subtest per check.
func Run(t *testing.T, hook admission.Hook, options ...Options) {
	t.Helper()
	report(t, Check(t.Context(), hook, last(options)))
}

func report(t *testing.T, results []Result) {
	t.Helper()
	for _, r := range results {
		t.Run(r.Check, func(t *testing.T) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
}

func last(options []Options) Options {
	var o Options
	for _, o = range options {
	}
	if len(o.Samples) == 0 {
		o.Samples = Samples()
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	return o
}

// Check is [Run] without package testing.
func Check(ctx context.Context, hook admission.Hook, options Options) []Result {
	s := suite{hook, last([]Options{options})}
	return runAll(ctx, []check{
		{"answers every request", s.answers},
		{"may be asked twice", s.repeats},
		{"may be asked by many at once", s.concurrent},
		{"returns when its context is done before", s.canceled},
		{"returns when its context is done meanwhile", s.interrupted},
		{"keeps no request", s.forgets},
		{"its answers survive the wire", s.survives},
	})
}

type check struct {
	name string
	run  func(ctx context.Context) error
}

func runAll(ctx context.Context, checks []check) []Result {
	results := make([]Result, len(checks))
	for i, c := range checks {
		results[i] = Result{c.name, c.run(ctx)}
	}
	return results
}

type suite struct {
	hook admission.Hook
	Options
}

// eachSample stops at the first error and names the sample.
func (s suite) eachSample(f func(*admission.Request) error) error {
	for _, sample := range s.Samples {
		if err := f(sample.Request); err != nil {
			return fmt.Errorf("request %q: %w", sample.Name, err)
		}
	}
	return nil
}

// ask wants a valid decision within the timeout.
func (s suite) ask(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	d, err := s.call(ctx, req.Clone())
	switch {
	case ctx.Err() != nil:
		return d, fmt.Errorf("no answer within %v: %w", s.Timeout, ctx.Err())
	case err != nil:
		return d, fmt.Errorf("an error, which stands for a broken hook: %w", err)
	}
	return d, d.Validate()
}

// call waits until the hook has returned or is too late. In the second case
// the hook is left alone.
func (s suite) call(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	type answer struct {
		d   admission.Decision
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		a := answer{err: errGoexit}
		defer func() { answered <- a }()
		a.d, a.err = guarded(ctx, s.hook, req)
	}()
	select {
	case a := <-answered:
		return a.d, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-answered:
		return a.d, a.err
	case <-time.After(s.Grace):
		return admission.Decision{}, &stuckError{s.Grace}
	}
}

// stuckError is the one error that no check accepts.
type stuckError struct{ grace time.Duration }

func (e *stuckError) Error() string {
	return fmt.Sprintf("still running %v after its context was done", e.grace)
}

// panicError is what a hook panicked with.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// errGoexit is the answer of a hook that has ended its goroutine.
var errGoexit error = &panicError{"the hook called runtime.Goexit"}

func guarded(ctx context.Context, hook admission.Hook, req *admission.Request) (d admission.Decision, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v}
		}
	}()
	return hook.Admit(ctx, req)
}

func (s suite) answers(ctx context.Context) error {
	return s.eachSample(func(req *admission.Request) error {
		_, err := s.ask(ctx, req)
		return err
	})
}

// repeats accepts another answer the second time: the clock may have moved.
func (s suite) repeats(ctx context.Context) error {
	return s.eachSample(func(req *admission.Request) error {
		for n := range 3 {
			if _, err := s.ask(ctx, req); err != nil {
				return fmt.Errorf("call %d: %w", n+1, err)
			}
		}
		return nil
	})
}

func (s suite) concurrent(ctx context.Context) error {
	errs := make(chan error, callers)
	var group sync.WaitGroup
	for range callers {
		group.Go(func() { errs <- s.answers(ctx) })
	}
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// canceled accepts any answer and any error, as long as there is one.
func (s suite) canceled(ctx context.Context) error {
	return s.eachSample(func(req *admission.Request) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return accept(s.call(ctx, req.Clone()))
	})
}

func (s suite) interrupted(ctx context.Context) error {
	return s.eachSample(func(req *admission.Request) error {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		return accept(s.call(ctx, req.Clone()))
	})
}

func accept(_ admission.Decision, err error) error {
	_, stuck := errors.AsType[*stuckError](err)
	_, panicked := errors.AsType[*panicError](err)
	if stuck || panicked {
		return err
	}
	return nil
}

// forgets writes all over a request that the hook has answered. A hook that
// still reads it is found by the race detector, or answers nonsense.
func (s suite) forgets(ctx context.Context) error {
	return s.eachSample(func(sample *admission.Request) error {
		ctx, cancel := context.WithTimeout(ctx, s.Timeout)
		defer cancel()
		req := sample.Clone()
		d, err := s.call(ctx, req)
		if err != nil {
			return err
		}
		before := d.String()
		scribble(req)
		if after := d.String(); before != after {
			return fmt.Errorf("the decision changed with the request from %s to %s", before, after)
		}
		_, err = s.ask(ctx, sample)
		return err
	})
}

func scribble(r *admission.Request) {
	for _, m := range []map[string]string{r.Execution.Labels, r.Execution.Annotations, r.Execution.NodeSelector, r.Resources.Extended} {
		for key := range m {
			m[key] = "scribble"
		}
	}
	clear(r.Execution.Tolerations)
	clear(r.PodSets)
	*r = admission.Request{TaskID: "scribble"}
}

func (s suite) survives(ctx context.Context) error {
	return s.eachSample(func(req *admission.Request) error {
		d, err := s.ask(ctx, req)
		if err != nil {
			return err
		}
		return survive(d)
	})
}

func survive(d admission.Decision) error {
	b, err := d.MarshalJSON()
	if err == nil && len(b) > httphook.MaxBytes {
		err = fmt.Errorf("the answer has %d bytes on the wire, more than %d", len(b), httphook.MaxBytes)
	}
	var back admission.Decision
	if err == nil {
		err = back.UnmarshalJSON(b)
	}
	if err == nil && !d.Equal(back) {
		err = fmt.Errorf("%v came back as %v", d, back)
	}
	return err
}
