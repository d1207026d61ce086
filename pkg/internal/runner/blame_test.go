package runner

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// TestBlame: who is to blame for an error depends on what it is and on whose
// deadline the hook saw. Five failures open the breaker.
func TestBlame(t *testing.T) {
	about := func(kind httphook.Kind, status int) error {
		return &httphook.Error{Kind: kind, Status: status, Err: errBroken}
	}
	const operators, callers = 0, time.Second // deadlines
	tests := map[string]struct {
		reason string
		err    error
		limit  time.Duration // of the caller, 0 for none
		cause  Cause
		opens  bool
	}{
		"Error":         {"an error counts", errBroken, operators, CauseError, true},
		"ErrorInside":   {"also when the caller has little time", errBroken, callers, CauseError, true},
		"Status":        {"a server in trouble", about(httphook.KindStatus, 503), operators, CauseError, true},
		"Connection":    {"a server that is gone", about(httphook.KindConnection, 0), operators, CauseError, true},
		"Malformed":     {"a server that says nothing of use", about(httphook.KindMalformed, 200), operators, CauseError, true},
		"NoSend":        {"a request that does not fit says nothing about the server", about(httphook.KindRequest, 0), operators, CauseRequest, false},
		"RequestLarge":  {"the server says so", about(httphook.KindStatus, 413), operators, CauseRequest, false},
		"AnswerLarge":   {"an answer that does not fit", about(httphook.KindTooLarge, 200), operators, CauseRequest, false},
		"NoAnswer":      {"the server says so", about(httphook.KindStatus, 422), operators, CauseRequest, false},
		"Wrapped":       {"whoever wraps it", errors.Join(errBroken, about(httphook.KindRequest, 0)), operators, CauseRequest, false},
		"OwnDeadline":   {"the operator's deadline counts before the clock says so", context.DeadlineExceeded, operators, CauseTimeout, true},
		"OwnTimeout":    {"so does a timeout of the server", about(httphook.KindTimeout, 504), operators, CauseTimeout, true},
		"OwnConn":       {"and one of a connection", os.ErrDeadlineExceeded, operators, CauseTimeout, true},
		"Callers":       {"the caller's deadline does not", context.DeadlineExceeded, callers, CauseCanceled, false},
		"CallersServer": {"nor if the server noticed first", about(httphook.KindTimeout, 504), callers, CauseCanceled, false},
		"CallersConn":   {"nor if a connection did", os.ErrDeadlineExceeded, callers, CauseCanceled, false},
		"CallersLater":  {"a caller with more time than the operator has no say", context.DeadlineExceeded, time.Minute, CauseTimeout, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRunner(t, fails(tc.err), Config{})
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), orForever(tc.limit))
					if o := r.Ask(ctx, &admission.Request{}); o.Cause != tc.cause || !errors.Is(o.Err, tc.err) {
						t.Errorf("%s: got %+v", tc.reason, o)
					}
					cancel()
				}
				if state, _ := r.Breaker(); (state == BreakerOpen) != tc.opens {
					t.Errorf("%s: the breaker is %s", tc.reason, state)
				}
			})
		})
	}
}

func orForever(d time.Duration) time.Duration {
	if d == 0 {
		return 1 << 62
	}
	return d
}

// One tenant with a legal annotation that JSON makes too large does not make
// the hook be skipped for the others.
func TestLargeRequestOverTheWire(t *testing.T) {
	server := httptest.NewServer(httphook.Handler(answers(admission.Hold("a"))))
	defer server.Close()
	small := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))
	defer small.Close()
	text := func(s string) *admission.Request {
		return &admission.Request{Execution: admission.Execution{Annotations: map[string]string{"a": strings.Repeat(s, 200<<10)}}}
	}
	tests := map[string]struct {
		url   string
		req   *admission.Request
		cause Cause
	}{
		"Client":    {server.URL, text("\x01"), CauseRequest},
		"Server":    {small.URL, text("x"), CauseRequest},
		"NotEscape": {server.URL, text("<"), CauseNone},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			client, err := httphook.NewClient(httphook.Config{URL: tc.url})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			r := newRunner(t, client, Config{Timeout: MaxTimeout})
			for range 6 {
				if o := r.Ask(t.Context(), tc.req); o.Cause != tc.cause {
					t.Fatalf("got %+v", o)
				}
			}
			if state, _ := r.Breaker(); state != BreakerClosed {
				t.Errorf("the breaker is %s", state)
			}
		})
	}
}

func TestHookSeesTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left time.Duration
		r := newRunner(t, admission.HookFunc(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return admission.Admit(), nil
		}), Config{})
		for limit, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: DefaultTimeout} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			if o := r.Ask(ctx, &admission.Request{}); o.Cause != CauseNone || left != want {
				t.Errorf("a caller with %v: %+v, the hook had %v", limit, o, left)
			}
			cancel()
		}
	})
}

// A caller that gives up while the hook fails: whichever is seen first.
func TestGivingUpWhileTheHookFails(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := Outcome{Cause: CauseError, Err: errBroken}
	r := newRunner(t, fails(errBroken), Config{})
	c := newCall(ctx, &admission.Request{}, time.Minute)
	c.outcome = failed
	if o := c.outcomeFor(ctx); o.Cause != CauseError {
		t.Errorf("before: %+v", o)
	}
	cancel(context.Canceled)
	if o := c.outcomeFor(ctx); o.Cause != CauseCanceled {
		t.Errorf("after: %+v", o)
	}
	if o := r.overrun(c); o.Cause != CauseCanceled {
		t.Errorf("with the timer of the operator: %+v", o)
	}
}

// The timer of the operator may be seen before that of a caller who wanted
// less.
func TestOverrun(t *testing.T) {
	r := newRunner(t, fails(errBroken), Config{})
	c := newCall(t.Context(), &admission.Request{}, time.Minute)
	if o := r.overrun(c); o.Cause != CauseTimeout {
		t.Errorf("got %+v", o)
	}
	c.callers = true
	if o := r.overrun(c); o.Cause != CauseCanceled || !errors.Is(o.Err, context.DeadlineExceeded) {
		t.Errorf("got %+v", o)
	}
}

// A hook that answers at the very moment in which the caller turns away.
func TestAnswerWhileDropping(t *testing.T) {
	r := newRunner(t, answers(admission.Hold("a")), Config{})
	c := newCall(t.Context(), &admission.Request{}, time.Minute)
	r.run(c)
	if o := r.drop(c, overran, r.overrun(c)); o.Cause != CauseNone || !o.Decision.Equal(admission.Hold("a")) {
		t.Errorf("got %+v", o)
	}
	if n := r.Late(); n != 0 {
		t.Errorf("%d late calls", n)
	}
}

// A caller who gives up is neither a failure nor a success, which would begin
// the count anew.
func TestGivingUpIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := fails(errBroken)
		r := newRunner(t, admission.HookFunc(func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
			return hook(ctx, req)
		}), Config{Breaker: BreakerConfig{Failures: 2}})
		r.Ask(t.Context(), &admission.Request{})
		hook = sleeps(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if o := r.Ask(ctx, &admission.Request{}); o.Cause != CauseCanceled {
			t.Errorf("got %+v", o)
		}
		synctest.Wait()
		hook = fails(errBroken)
		r.Ask(t.Context(), &admission.Request{})
		if state, _ := r.Breaker(); state != BreakerOpen {
			t.Errorf("the breaker is %s after two failures", state)
		}
	})
}

// A request that cannot even be copied must not take the one probe with it.
func TestPanicBeforeTheProbe(t *testing.T) {
	now := time.Unix(0, 0)
	r := newRunner(t, fails(errBroken), Config{Breaker: BreakerConfig{Failures: 1}, Now: func() time.Time { return now }})
	r.Ask(t.Context(), &admission.Request{})
	now = now.Add(time.Minute)
	func() {
		defer func() { _ = recover() }()
		r.Ask(t.Context(), nil)
	}()
	if o := r.Ask(t.Context(), &admission.Request{}); o.Cause != CauseError {
		t.Errorf("no probe: %+v", o)
	}
}

func TestClockGoesBack(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRunner(t, answers(admission.Admit()), Config{Now: func() time.Time {
		now = now.Add(-time.Second)
		return now
	}})
	if o := r.Ask(t.Context(), &admission.Request{}); o.Took != 0 {
		t.Errorf("took %v", o.Took)
	}
}
