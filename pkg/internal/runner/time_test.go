package runner

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

type key struct{}

func TestContextOfTheHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen context.Context
		var derived context.Context
		hook := admission.HookFunc(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
			seen = ctx
			child, stop := context.WithCancel(ctx)
			t.Cleanup(stop) // not before the test has seen it end with its parent
			derived = child
			deadline, ok := ctx.Deadline()
			if left := time.Until(deadline); !ok || left != 2*time.Second || ctx.Err() != nil || ctx.Value(key{}) != "v" {
				t.Errorf("deadline in %v (%t), error %v, value %v", left, ok, ctx.Err(), ctx.Value(key{}))
			}
			return admission.Admit(), nil
		})
		r := newRunner(t, hook, Config{})
		r.Ask(context.WithValue(t.Context(), key{}, "v"), &admission.Request{})
		<-derived.Done() // nothing derived is left behind
		if !errors.Is(seen.Err(), context.Canceled) {
			t.Errorf("after the call: %v", seen.Err())
		}
	})
}

func TestContextEndsWithTheCall(t *testing.T) {
	tests := map[string]struct {
		limit time.Duration // of the caller, 0 for none
		cause Cause
		err   error // what the hook sees
		took  time.Duration
	}{
		"Deadline":         {0, CauseTimeout, context.DeadlineExceeded, 2 * time.Second},
		"CallersDeadline":  {time.Second, CauseCanceled, context.Canceled, time.Second},
		"LaterThanTimeout": {time.Minute, CauseTimeout, context.DeadlineExceeded, 2 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := make(chan error, 1)
				r := newRunner(t, admission.HookFunc(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
					<-ctx.Done()
					seen <- ctx.Err()
					return admission.Admit(), nil
				}), Config{})
				ctx := t.Context()
				if tc.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.limit)
					defer cancel()
				}
				o := r.Ask(ctx, &admission.Request{})
				if err := <-seen; o.Cause != tc.cause || o.Took != tc.took || !errors.Is(err, tc.err) {
					t.Errorf("got %+v, the hook saw %v", o, err)
				}
				synctest.Wait()
				if n := r.Late(); n != 0 {
					t.Errorf("%d calls run on", n)
				}
			})
		})
	}
}

func TestLateCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, ignores(time.Minute), Config{MaxLate: 3, Breaker: BreakerConfig{Failures: -1}})
		for want := 1; want <= 3; want++ {
			if o := r.Ask(t.Context(), &admission.Request{}); o.Cause != CauseTimeout || r.Late() != want {
				t.Errorf("got %+v with %d late calls, want %d", o, r.Late(), want)
			}
		}
		if o := r.Ask(t.Context(), &admission.Request{}); o.Cause != CauseBusy || o.Took != 0 {
			t.Errorf("above the limit: %+v", o)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := r.Late(); n != 0 {
			t.Errorf("%d calls run on after all have returned", n)
		}
		if o := r.Ask(t.Context(), &admission.Request{}); o.Cause != CauseTimeout {
			t.Errorf("below the limit again: %+v", o)
		}
		time.Sleep(time.Hour)
	})
}

func TestCanceledBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errBroken)
		var asked atomic.Bool
		r := newRunner(t, admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
			asked.Store(true)
			return admission.Admit(), nil
		}), Config{})
		o := r.Ask(ctx, &admission.Request{})
		synctest.Wait() // for a hook that nobody waits for
		if o.Cause != CauseCanceled || !errors.Is(o.Err, errBroken) || asked.Load() {
			t.Errorf("got %+v, asked %t", o, asked.Load())
		}
	})
}

// A flapping hook: the breaker opens after failures in a row, and only then.
func TestSkipping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		hook := fails(errBroken)
		r := newRunner(t, admission.HookFunc(func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
			calls.Add(1)
			return hook(ctx, req)
		}), Config{})
		ask := func(want Cause) {
			t.Helper()
			if o := r.Ask(t.Context(), &admission.Request{}); o.Cause != want {
				t.Errorf("got %+v, want cause %q", o, want)
			}
		}
		for range 4 {
			ask(CauseError)
		}
		hook = answers(admission.Refuse("a"))
		ask(CauseNone) // a refusal is a success
		hook = fails(errBroken)
		for range 5 {
			ask(CauseError)
		}
		if state, left := r.Breaker(); state != BreakerOpen || left != 30*time.Second {
			t.Errorf("state %s for %v", state, left)
		}
		ask(CauseBreakerOpen)
		time.Sleep(30 * time.Second)
		ask(CauseError) // the probe
		ask(CauseBreakerOpen)
		time.Sleep(30 * time.Second)
		hook = answers(admission.Hold("a"))
		ask(CauseNone)
		if state, _ := r.Breaker(); state != BreakerClosed {
			t.Errorf("state %s after a good probe", state)
		}
		if n := calls.Load(); n != 12 {
			t.Errorf("%d calls", n)
		}
	})
}

// What never opens the breaker, however often it comes.
func TestNotSkipping(t *testing.T) {
	tests := map[string]struct {
		hook   admission.HookFunc
		cancel bool
		cause  Cause
	}{
		"Hold":     {answers(admission.Hold("a")), false, CauseNone},
		"Refuse":   {answers(admission.Refuse("a")), false, CauseNone},
		"Invalid":  {with(admission.Changes{ServiceAccount: "!"}), false, CauseInvalid},
		"Canceled": {sleeps(time.Hour), true, CauseCanceled},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRunner(t, tc.hook, Config{})
				for range 20 {
					ctx, cancel := context.WithCancel(t.Context())
					if tc.cancel {
						time.AfterFunc(time.Second, cancel)
					}
					if o := r.Ask(ctx, &admission.Request{}); o.Cause != tc.cause {
						t.Errorf("got %+v", o)
					}
					cancel()
				}
				if state, _ := r.Breaker(); state != BreakerClosed {
					t.Errorf("state %s", state)
				}
			})
		})
	}
}

// Many callers at once, a hook that hangs: each goes on at the deadline, one
// gets the probe after the cool-down.
func TestManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, sleeps(time.Hour), Config{Timeout: time.Second})
		causes := func(n int) map[Cause]int {
			got := make(chan Cause, n)
			for range n {
				go func() { got <- r.Ask(t.Context(), &admission.Request{}).Cause }()
			}
			count := map[Cause]int{}
			for range n {
				count[<-got]++
			}
			return count
		}
		if got := causes(50); got[CauseTimeout] != 50 {
			t.Errorf("first wave: %v", got)
		}
		if got := causes(50); got[CauseBreakerOpen] != 50 {
			t.Errorf("second wave: %v", got)
		}
		time.Sleep(30 * time.Second)
		if got := causes(50); got[CauseTimeout] != 1 || got[CauseBreakerOpen] != 49 {
			t.Errorf("probe: %v", got)
		}
	})
}
