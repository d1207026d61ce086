package hooktest

import (
	"context"
	"sync"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Fake is a hook that follows a script: call n takes step n, and calls beyond
// the script repeat its last step. It may be used by many goroutines, and
// calls are counted in the order in which they begin.
type Fake struct {
	mu    sync.Mutex
	steps []admission.HookFunc
	calls []*admission.Request
}

var _ admission.Hook = (*Fake)(nil)

// NewFake returns a hook for a script. Without steps it admits. Any function
// is a step; [Answer], [Fail], [Panic], [Wait], [Hang] and [After] make the
// usual ones.
func NewFake(steps ...admission.HookFunc) *Fake {
	if len(steps) == 0 {
		steps = []admission.HookFunc{Answer(admission.Admit())}
	}
	return &Fake{steps: steps}
}

// Admit records req and takes the next step.
func (f *Fake) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	return f.next(req)(ctx, req)
}

func (f *Fake) next(req *admission.Request) admission.HookFunc {
	f.mu.Lock()
	defer f.mu.Unlock()
	step := f.steps[min(len(f.calls), len(f.steps)-1)]
	f.calls = append(f.calls, req.Clone())
	return step
}

// Calls returns copies of the requests so far.
func (f *Fake) Calls() []*admission.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := make([]*admission.Request, len(f.calls))
	for i, req := range f.calls {
		calls[i] = req.Clone()
	}
	return calls
}

// Answer is the step that answers d.
func Answer(d admission.Decision) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) { return d, nil }
}

// Fail is the step that returns err.
func Fail(err error) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) {
		return admission.Decision{}, err
	}
}

// Panic is the step that panics with value.
func Panic(value any) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) { panic(value) }
}

// Wait is the step that does nothing until its context is done, and then
// returns the context's error.
func Wait() admission.HookFunc {
	return func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		<-ctx.Done()
		return admission.Decision{}, ctx.Err()
	}
}

// Hang is the step that ignores its context: it admits once release is closed.
func Hang(release <-chan struct{}) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) {
		<-release
		return admission.Admit(), nil
	}
}

// After is the step that takes step after d, or fails when its context is done
// before.
func After(d time.Duration, step admission.HookFunc) admission.HookFunc {
	return func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
		select {
		case <-ctx.Done():
			return admission.Decision{}, ctx.Err()
		case <-time.After(d):
			return step(ctx, req)
		}
	}
}
