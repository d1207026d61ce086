package runner

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// errGoexit is the outcome of a hook that ended its goroutine, and so of every
// hook that has neither returned nor panicked.
var errGoexit error = newPanicError(errors.New("it called runtime.Goexit"), nil)

// How the context of a call ended.
const (
	running uint32 = iota
	overran
	canceled
)

// call is one call of a hook. It is also the context that the hook sees, which
// saves the allocations of context.WithDeadline.
type call struct {
	context.Context //nolint:containedctx // of the caller, for its values; a call is a context
	deadline        time.Time
	callers         bool          // the deadline is the caller's, who wants less than the operator allows
	done            chan struct{} // closed when the context ends
	ended           atomic.Uint32

	req      *admission.Request
	outcome  Outcome       // written before answered is closed
	answered chan struct{} // closed when the hook has returned in time
	dropped  atomic.Bool   // set by what comes first, the end of the hook or of the wait
}

// Deadline is that of the call.
func (c *call) Deadline() (time.Time, bool) { return c.deadline, true }

// Done is closed when the call is over.
func (c *call) Done() <-chan struct{} { return c.done }

// Err says how the call ended.
func (c *call) Err() error {
	switch c.ended.Load() {
	case overran:
		return context.DeadlineExceeded
	case canceled:
		return context.Canceled
	default:
		return nil
	}
}

// end ends the context that the hook sees, once.
func (c *call) end(how uint32) {
	if c.ended.CompareAndSwap(running, how) {
		close(c.done)
	}
}

// newCall makes a call about req, which the hook gets as it is.
func newCall(ctx context.Context, req *admission.Request, timeout time.Duration) *call {
	c := &call{
		Context:  ctx,
		deadline: time.Now().Add(timeout),
		done:     make(chan struct{}),
		answered: make(chan struct{}),
		req:      req,
	}
	if d, ok := ctx.Deadline(); ok && d.Before(c.deadline) {
		c.deadline, c.callers = d, true
	}
	return c
}

// call runs the hook in a goroutine and waits for it as long as it may.
func (r *Runner) call(ctx context.Context, req *admission.Request) Outcome {
	c := newCall(ctx, req, r.config.Timeout)
	timer := r.timer(r.config.Timeout)
	defer r.putTimer(timer)
	go r.run(c) //nolint:contextcheck // c is the context
	select {
	case <-c.answered:
		return c.outcomeFor(ctx)
	case <-ctx.Done():
		return r.drop(c, canceled, gaveUp(ctx))
	case <-timer.C:
		return r.drop(c, overran, r.overrun(c))
	}
}

// run is the goroutine of the hook.
func (r *Runner) run(c *call) {
	defer func() {
		c.end(canceled) // frees what the hook derived from its context
		if c.dropped.Swap(true) {
			r.late.Add(-1)
			return
		}
		close(c.answered)
	}()
	c.ask(r.hook)
}

// ask calls the hook and catches what it does instead of returning.
func (c *call) ask(hook admission.Hook) {
	c.outcome = Outcome{Cause: CausePanic, Err: errGoexit}
	defer func() {
		if v := recover(); v != nil {
			c.outcome = Outcome{Cause: CausePanic, Err: newPanicError(v, debug.Stack())}
		}
	}()
	d, err := hook.Admit(c, c.req)
	if err == nil {
		c.outcome = Outcome{Decision: d}
		return
	}
	// All methods of err are called here, where they may panic.
	c.outcome = Outcome{Cause: c.causeOf(err), Err: &hookError{textOf(err), err}}
}

// causeOf does not look at the clock: a hook that watches the deadline may
// give up a moment before it. Whose deadline it is decides who is to blame.
func (c *call) causeOf(err error) Cause {
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case late && c.callers:
		return CauseCanceled
	case late:
		return CauseTimeout
	case aboutRequest(err):
		return CauseRequest
	}
	return CauseError
}

// aboutRequest says whether err is about one request and says nothing about
// the health of a server. If such errors counted, one tenant with a request
// that is too large could make the hook be skipped for all.
func aboutRequest(err error) bool {
	e, ok := errors.AsType[*httphook.Error](err)
	if !ok {
		return false
	}
	status := e.Kind == httphook.KindStatus &&
		(e.Status == http.StatusRequestEntityTooLarge || e.Status == http.StatusUnprocessableEntity)
	return status || e.Kind == httphook.KindRequest || e.Kind == httphook.KindTooLarge
}

// outcomeFor blames the hook for nothing once the caller has given up.
func (c *call) outcomeFor(ctx context.Context) Outcome {
	if c.outcome.Cause != CauseNone && ctx.Err() != nil {
		return gaveUp(ctx)
	}
	return c.outcome
}

// drop leaves the hook alone, unless it answered at this very moment.
func (r *Runner) drop(c *call, how uint32, o Outcome) Outcome {
	r.late.Add(1)
	if c.dropped.Swap(true) {
		r.late.Add(-1)
		<-c.answered
		return c.outcomeFor(c.Context)
	}
	c.end(how)
	return o
}

// overrun blames the hook, unless the caller had given up or its deadline came
// first: on a busy machine both timers are seen late, and in any order.
func (r *Runner) overrun(c *call) Outcome {
	if c.callers || c.Context.Err() != nil {
		return gaveUp(c.Context)
	}
	return Outcome{Cause: CauseTimeout, Err: fmt.Errorf("no answer within %v: %w", r.config.Timeout, context.DeadlineExceeded)}
}

// gaveUp also stands for a deadline of the caller, who wanted less than the
// operator allows; that says nothing about the hook.
func gaveUp(ctx context.Context) Outcome {
	cause := context.Cause(ctx)
	if cause == nil { // its timer is late
		cause = context.DeadlineExceeded
	}
	return Outcome{Cause: CauseCanceled, Err: fmt.Errorf("the caller gave up: %w", cause)}
}

// timer returns a running timer, a used one if possible.
func (r *Runner) timer(d time.Duration) *time.Timer {
	if t, ok := r.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

// putTimer keeps t for the next call. Stop empties its channel.
func (r *Runner) putTimer(t *time.Timer) {
	t.Stop()
	r.timers.Put(t)
}
