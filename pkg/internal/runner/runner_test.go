package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

var errBroken = errors.New("no database")

// hooks by what they do.
func answers(d admission.Decision) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) { return d, nil }
}

func fails(err error) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) {
		return admission.Refuse("beside an error"), err
	}
}

func sleeps(d time.Duration) admission.HookFunc {
	return func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		select {
		case <-ctx.Done():
			return admission.Decision{}, ctx.Err()
		case <-time.After(d):
			return admission.Refuse("slept"), nil
		}
	}
}

func ignores(d time.Duration) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) {
		time.Sleep(d)
		return admission.Refuse("too late"), nil
	}
}

func with(c admission.Changes) admission.HookFunc { return answers(admission.AdmitWith(c)) }

// brokenError is used through a nil pointer.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

// selfish panics with itself, so that package fmt does not help.
type selfish struct{}

func (e selfish) Error() string { panic(e) }

// leaving ends the goroutine that asks for its text.
type leaving struct{}

func (leaving) Error() string {
	runtime.Goexit()
	return ""
}

func newRunner(t *testing.T, hook admission.Hook, c Config) *Runner {
	t.Helper()
	r, err := New(hook, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAsk(t *testing.T) {
	label := admission.Changes{Labels: map[string]string{"team": "a"}}
	names := admission.Changes{PriorityClassName: "high", ServiceAccount: "trainer"}
	tests := map[string]struct {
		reason string
		hook   admission.HookFunc
		allow  Allowlist
		want   Outcome // without Err
		err    string  // part of it
	}{
		"Admit":       {"a verdict", answers(admission.Admit()), Allowlist{}, Outcome{}, ""},
		"AdmitWith":   {"valid changes are a verdict", with(label), Allowlist{}, Outcome{Decision: admission.AdmitWith(label)}, ""},
		"Hold":        {"so is a hold", answers(admission.Hold("a")), Allowlist{}, Outcome{Decision: admission.Hold("a")}, ""},
		"Refuse":      {"so is a refusal", answers(admission.Refuse("a")), Allowlist{}, Outcome{Decision: admission.Refuse("a")}, ""},
		"JustInTime":  {"a slow answer counts", sleeps(1999 * time.Millisecond), Allowlist{}, Outcome{Decision: admission.Refuse("slept"), Took: 1999 * time.Millisecond}, ""},
		"Deadline":    {"the caller goes on at the deadline", sleeps(3 * time.Second), Allowlist{}, Outcome{Cause: CauseTimeout, Took: 2 * time.Second}, "2s"},
		"IgnoresCtx":  {"also when the hook does not", ignores(time.Minute), Allowlist{}, Outcome{Cause: CauseTimeout, Took: 2 * time.Second}, "2s"},
		"Error":       {"the decision beside an error is ignored", fails(errBroken), Allowlist{}, Outcome{Cause: CauseError}, "no database"},
		"OwnTimeout":  {"a timeout of the hook's own is one, whatever the clock says", fails(context.DeadlineExceeded), Allowlist{}, Outcome{Cause: CauseTimeout}, "deadline"},
		"NetTimeout":  {"so is one of a connection", fails(os.ErrDeadlineExceeded), Allowlist{}, Outcome{Cause: CauseTimeout}, "timeout"},
		"TypedNil":    {"an error may panic when asked for its text", fails((*brokenError)(nil)), Allowlist{}, Outcome{Cause: CauseError}, "nil"},
		"Selfish":     {"also in the text of that panic", fails(selfish{}), Allowlist{}, Outcome{Cause: CauseError}, "runner.selfish that cannot be printed"},
		"SelfishBoom": {"the same for what a hook panics with", func(context.Context, *admission.Request) (admission.Decision, error) { panic(selfish{}) }, Allowlist{}, Outcome{Cause: CausePanic}, "runner.selfish that cannot be printed"},
		"Leaving":     {"the text may end the goroutine", fails(leaving{}), Allowlist{}, Outcome{Cause: CausePanic}, "Goexit"},
		"Panic":       {"a panic is caught", func(context.Context, *admission.Request) (admission.Decision, error) { panic("boom") }, Allowlist{}, Outcome{Cause: CausePanic}, "boom"},
		"Goexit":      {"so is the end of the goroutine", func(context.Context, *admission.Request) (admission.Decision, error) { runtime.Goexit(); panic(1) }, Allowlist{}, Outcome{Cause: CausePanic}, "Goexit"},
		"NilFunc":     {"a nil function panics", nil, Allowlist{}, Outcome{Cause: CausePanic}, "nil pointer"},
		"Reserved":    {"a reserved key", with(admission.Changes{Labels: map[string]string{"leoflow.io/x": "a"}}), Allowlist{}, Outcome{Cause: CauseInvalid}, `changes.labels["leoflow.io/x"]`},
		"Selector":    {"the rule is not for node selectors", with(admission.Changes{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}}), Allowlist{}, Outcome{Decision: admission.AdmitWith(admission.Changes{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}})}, ""},
		"Tolerations": {"nine are too many", with(admission.Changes{Tolerations: make([]admission.Toleration, 9)}), Allowlist{}, Outcome{Cause: CauseInvalid}, "changes.tolerations"},
		"NoRule":      {"nil lists are no rule", with(names), Allowlist{}, Outcome{Decision: admission.AdmitWith(names)}, ""},
		"Allowed":     {"listed names pass", with(names), Allowlist{[]string{"low", "high"}, []string{"trainer"}}, Outcome{Decision: admission.AdmitWith(names)}, ""},
		"Priority":    {"other classes do not", with(names), Allowlist{[]string{"low"}, nil}, Outcome{Cause: CauseInvalid}, "changes.priorityClassName"},
		"NoPriority":  {"an empty list allows nothing", with(names), Allowlist{[]string{}, nil}, Outcome{Cause: CauseInvalid}, "changes.priorityClassName"},
		"NoAccount":   {"the same for accounts", with(names), Allowlist{nil, []string{}}, Outcome{Cause: CauseInvalid}, "changes.serviceAccount"},
		"NoChoice":    {"no choice needs no list", with(label), Allowlist{[]string{}, []string{}}, Outcome{Decision: admission.AdmitWith(label)}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := newRunner(t, tc.hook, Config{Allowlist: tc.allow}).Ask(t.Context(), &admission.Request{})
				if tc.err == "" != (got.Err == nil) || got.Err != nil && !strings.Contains(got.Err.Error(), tc.err) {
					t.Errorf("%s: error %v, want %q", tc.reason, got.Err, tc.err)
				}
				got.Err = nil
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s: -want +got\n%s", tc.reason, diff)
				}
				time.Sleep(time.Hour) // until late hooks have returned
			})
		})
	}
}

func TestNew(t *testing.T) {
	ok := answers(admission.Admit())
	tests := map[string]struct {
		hook   admission.Hook
		config Config
		field  string
	}{
		"Defaults": {ok, Config{}, ""},
		"Shortest": {ok, Config{Timeout: 100 * time.Millisecond}, ""},
		"Longest":  {ok, Config{Timeout: 30 * time.Second}, ""},
		"NoHook":   {nil, Config{}, "hook"},
		"TooShort": {ok, Config{Timeout: 99 * time.Millisecond}, "timeout"},
		"TooLong":  {ok, Config{Timeout: 31 * time.Second}, "timeout"},
		"Cooldown": {ok, Config{Breaker: BreakerConfig{Cooldown: -1}}, "breaker.cooldown"},
		"MaxLate":  {ok, Config{MaxLate: -1}, "maxLate"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.hook, tc.config)
			if tc.field == "" != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), tc.field+": ") {
				t.Errorf("error %v, want one about %q", err, tc.field)
			}
		})
	}
}

func TestPanicKeepsItsStack(t *testing.T) {
	boom := func(context.Context, *admission.Request) (admission.Decision, error) { panic(errBroken) }
	o := newRunner(t, admission.HookFunc(boom), Config{}).Ask(t.Context(), &admission.Request{})
	var p *PanicError
	if !errors.As(o.Err, &p) || !strings.Contains(string(p.Stack), "runner_test.go") || !errors.Is(o.Err, errBroken) {
		t.Errorf("got %v", o.Err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Error("no verdict", "err", o.Err)
	if text := log.String(); !strings.Contains(text, "runner_test.go") || !strings.Contains(text, "no database") {
		t.Errorf("logged %s", text)
	}
	if text := (&PanicError{Value: "boom"}).Error(); !strings.Contains(text, "boom") {
		t.Errorf("got %s", text)
	}
}

func TestRequestIsACopy(t *testing.T) {
	hook := func(_ context.Context, r *admission.Request) (admission.Decision, error) {
		r.TaskID, r.PodSets[0].Images[0], r.Execution.Labels["team"] = "b", "b", "b"
		return admission.Admit(), nil
	}
	request := func() *admission.Request {
		return &admission.Request{
			TaskID:    "a",
			Execution: admission.Execution{Labels: map[string]string{"team": "a"}},
			PodSets:   []admission.PodSet{{Images: []string{"a"}}},
		}
	}
	req := request()
	newRunner(t, admission.HookFunc(hook), Config{}).Ask(t.Context(), req)
	if diff := cmp.Diff(request(), req); diff != "" {
		t.Errorf("the hook changed the request: %s", diff)
	}
}

func TestAllowlistIsACopy(t *testing.T) {
	list := Allowlist{ServiceAccounts: []string{"trainer"}}
	r := newRunner(t, with(admission.Changes{ServiceAccount: "root"}), Config{Allowlist: list})
	list.ServiceAccounts[0] = "root"
	if o := r.Ask(t.Context(), &admission.Request{}); o.Cause != CauseInvalid {
		t.Errorf("got %+v", o)
	}
}

func TestResolve(t *testing.T) {
	type result struct {
		Decision admission.Decision
		Open     bool
	}
	held := result{admission.Hold(noVerdict), false}
	open := result{admission.Admit(), true}
	tests := map[string]struct {
		outcome       Outcome
		closed, fails result // under FailHold and FailAdmit
	}{
		"Admit":       {Outcome{}, result{}, result{}},
		"Hold":        {Outcome{Decision: admission.Hold("a")}, result{admission.Hold("a"), false}, result{admission.Hold("a"), false}},
		"Refuse":      {Outcome{Decision: admission.Refuse("a")}, result{admission.Refuse("a"), false}, result{admission.Refuse("a"), false}},
		"Timeout":     {Outcome{Cause: CauseTimeout}, held, open},
		"Error":       {Outcome{Cause: CauseError}, held, open},
		"Request":     {Outcome{Cause: CauseRequest}, held, open},
		"Panic":       {Outcome{Cause: CausePanic}, held, open},
		"Invalid":     {Outcome{Cause: CauseInvalid}, held, open},
		"BreakerOpen": {Outcome{Cause: CauseBreakerOpen}, held, open},
		"Busy":        {Outcome{Cause: CauseBusy}, held, open},
		"Canceled":    {Outcome{Cause: CauseCanceled}, held, held},
		"Inhabited":   {Outcome{Cause: CauseError, Decision: admission.Refuse("a")}, held, open},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for policy, want := range map[FailurePolicy]result{FailHold: tc.closed, "": tc.closed, "Other": tc.closed, FailAdmit: tc.fails} {
				var got result
				got.Decision, got.Open = Resolve(tc.outcome, policy)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%q: -want +got\n%s", policy, diff)
				}
			}
		})
	}
}
