package hooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// While calls hang, what is queued does not wait for them once the breaker is
// open. It comes back at once, and the hook is asked again after the cool-down.
func TestBreakerOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(2)).inProcess(d)
		f.configure(gateWith("policy", "/hook", breaker(1, time.Minute), timeout(30*time.Second)))
		start := time.Now()
		for _, offer := range []string{"hangs", "fails", "b", "c", "d"} {
			f.ask("policy", offer)
		}
		hanging := []*call{<-d.calls, <-d.calls}
		for _, c := range hanging {
			if c.offer == "fails" {
				c.fail(errBroken)
			}
		}
		synctest.Wait()
		f.ask("policy", "e")
		synctest.Wait()
		for _, offer := range []string{"b", "c", "d", "e"} {
			if o := f.answer(offer); o.Cause != runner.CauseBreakerOpen || o.Err == nil {
				t.Errorf("%s: got %+v", offer, o)
			}
		}
		f.without("hangs", true)
		f.wantWoken("fails", "b", "c", "d", "e")
		if !time.Now().Equal(start) {
			t.Error("it took time")
		}

		time.Sleep(time.Minute)
		f.ask("policy", "probe")
		d.next(t, "probe").admit()
		synctest.Wait()
		if s := f.State("policy"); s.Breaker != v1alpha1.BreakerClosed || s.LastError != "" {
			t.Errorf("after a good probe: %+v", s)
		}
		f.ask("policy", "z")
		d.next(t, "z").admit()
	})
}

// A probe that hangs may be the only call there is.
func TestProbeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(1)).inProcess(d)
		f.configure(gateWith("policy", "/hook", breaker(1, time.Second), timeout(30*time.Second)))
		f.ask("policy", "fails")
		d.next(t, "fails").fail(errBroken)
		synctest.Wait()
		time.Sleep(time.Second)
		f.ask("policy", "probe")
		probe := d.next(t, "probe")
		f.ask("policy", "b")
		synctest.Wait()
		if o := f.answer("b"); o.Cause != runner.CauseBreakerOpen {
			t.Errorf("got %+v", o)
		}
		f.Forget("probe") // says nothing, so the next one is a probe again
		<-probe.ctx.Done()
		synctest.Wait()
		f.ask("policy", "c")
		d.next(t, "c").admit()
		synctest.Wait()
		f.answer("c")
	})
}

// Changed is called when the state has changed, and then only.
func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step := hooktest.Fail(errBroken)
		f := newFixture(t).inProcess(admission.HookFunc(func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
			return step(ctx, req)
		}))
		n := 0
		ask := func(with admission.HookFunc) {
			step = with
			f.askAndWait("policy", fmt.Sprint(n))
			n++
			synctest.Wait()
		}
		closed := State{Endpoint: "unix:/hook", Breaker: v1alpha1.BreakerClosed}
		open := State{Endpoint: "unix:/hook", Breaker: v1alpha1.BreakerOpen}
		with := func(s State, text string) State { s.LastError = text; return s }
		step = hooktest.Fail(errBroken)
		expect := func(did string, want ...State) {
			t.Helper()
			if diff := cmp.Diff(want, f.changed); diff != "" {
				t.Errorf("%s: -want +got\n%s", did, diff)
			}
			f.changed = nil
		}
		f.configure(gateWith("policy", "/hook", breaker(3, time.Minute)))
		f.configure(gateWith("policy", "/hook", breaker(3, time.Minute)))
		expect("configured twice", closed)
		ask(hooktest.Answer(admission.Hold("a")))
		expect("held")
		ask(hooktest.Fail(errBroken))
		ask(hooktest.Fail(errors.New("something else")))
		expect("failed twice", with(closed, "the call failed"))
		ask(hooktest.Answer(admission.Admit()))
		expect("answered", closed)
		ask(hooktest.Wait())
		ask(hooktest.Wait())
		ask(hooktest.Wait())
		expect("hung", with(closed, "no answer within 2s"), with(open, "no answer within 2s"))
		ask(hooktest.Wait())
		expect("skipped")
		time.Sleep(time.Minute)
		expect("cooled down")
		ask(hooktest.Fail(errBroken))
		expect("another failure", with(open, "the call failed"))
		time.Sleep(time.Minute)
		ask(hooktest.Answer(admission.AdmitWith(admission.Changes{Labels: map[string]string{"kueue.x-k8s.io/a": "b"}})))
		expect("not allowed, but alive", with(closed, `changes.labels["kueue.x-k8s.io/a"]: the key is reserved`))
		ask(hooktest.Answer(admission.Refuse("a")))
		expect("refused", closed)
		f.configure(gateWith("policy", "/hook", breaker(4, time.Minute)))
		expect("another hook that looks the same")
		f.Remove("policy")
		f.Remove("policy")
		expect("removed", State{})
	})
}

// A call from before the breaker opened does not hide why it is open.
func TestLateSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t).inProcess(d)
		f.configure(gateWith("policy", "/hook", breaker(1, time.Minute)))
		f.ask("policy", "late")
		late := d.next(t, "late")
		f.ask("policy", "a")
		d.next(t, "a").fail(errBroken)
		synctest.Wait()
		before := f.State("policy")
		late.admit()
		synctest.Wait()
		f.answer("late")
		if s := f.State("policy"); s != before || s.LastError == "" {
			t.Errorf("state %+v, was %+v", s, before)
		}
	})
}

func TestVerify(t *testing.T) {
	account := admission.AdmitWith(admission.Changes{ServiceAccount: "trainer", Labels: map[string]string{"a": "b"}})
	class := admission.AdmitWith(admission.Changes{PriorityClassName: "batch"})
	refusal := fmt.Errorf("looking: %w", &admission.FieldError{Field: "changes.serviceAccount", Problem: `"trainer" does not exist`})
	tests := map[string]struct {
		reason string
		answer admission.Decision
		err    error
		cause  runner.Cause
		asked  bool
		last   string
	}{
		"Account":  {"there", account, nil, runner.CauseNone, true, ""},
		"Class":    {"there", class, nil, runner.CauseNone, true, ""},
		"NoChoice": {"nothing to ask", admission.AdmitWith(admission.Changes{Labels: map[string]string{"a": "b"}}), errBroken, runner.CauseNone, false, ""},
		"Admit":    {"nothing to ask", admission.Admit(), errBroken, runner.CauseNone, false, ""},
		"NotThere": {"the choice cannot be carried out", account, refusal, runner.CauseInvalid, true, `changes.serviceAccount: "trainer" does not exist`},
		"Unknown": {"nobody knows", class, errBroken, runner.CauseError, true,
			"it could not be found out whether the choice of the hook can be carried out"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			asked := false
			verify := func(ctx context.Context, namespace string, c admission.Changes) error {
				asked = true
				if want, _ := tc.answer.Changes(); namespace != "team-a" || !cmp.Equal(c, want) {
					t.Errorf("asked about %+v in %s", c, namespace)
				}
				if _, limited := ctx.Deadline(); !limited {
					t.Error("no deadline")
				}
				return tc.err
			}
			f := newFixture(t, func(o *Options) { o.Verify = verify }).inProcess(hooktest.Answer(tc.answer))
			f.configure(gateWith("policy", "/hook", breaker(1, time.Minute)))
			answered := make(chan struct{})
			f.Ask(Question{Gate: "policy", Workload: "a", Check: "check", Offer: "a", Namespace: "team-a",
				Request: &admission.Request{}, Answered: func() { close(answered) }})
			<-answered
			o := f.answer("a")
			if o.Cause != tc.cause || asked != tc.asked || tc.cause != runner.CauseNone && !errors.Is(o.Err, tc.err) {
				t.Errorf("%s: got %+v, asked %t", tc.reason, o, asked)
			}
			want := State{Endpoint: "unix:/hook", Breaker: v1alpha1.BreakerClosed, LastError: tc.last}
			if s := f.State("policy"); s != want {
				t.Errorf("%s: state %+v, want %+v", tc.reason, s, want)
			}
		})
	}
}

// A question that is dropped while its answer is verified leaves nothing.
func TestVerifyIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verifying := make(chan struct{})
		f := newFixture(t, func(o *Options) {
			o.Verify = func(ctx context.Context, _ string, _ admission.Changes) error {
				close(verifying)
				<-ctx.Done()
				return ctx.Err()
			}
		}).inProcess(hooktest.Answer(admission.AdmitWith(admission.Changes{ServiceAccount: "a"})))
		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "a")
		<-verifying
		f.Forget("a")
		synctest.Wait()
		f.without("a", false)
		f.wantWoken()
		if s := f.State("policy"); s.LastError != "" {
			t.Errorf("state %+v", s)
		}
	})
}

// Close waits for what does not hear that it is given up.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verifying := make(chan struct{})
		f := newFixture(t, func(o *Options) {
			o.Verify = func(context.Context, string, admission.Changes) error {
				close(verifying)
				time.Sleep(time.Second)
				return nil
			}
		}).inProcess(hooktest.Answer(admission.AdmitWith(admission.Changes{ServiceAccount: "a"})))
		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "a")
		<-verifying
		start := time.Now()
		f.Close()
		if took := time.Since(start); took != time.Second {
			t.Errorf("closed after %v", took)
		}
		f.wantWoken()
	})
}

// A line when the cause changes, not one per call; nothing that floods the log
// when the hook answers every other time.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		bad, ok := hooktest.Fail(errBroken), hooktest.Answer(admission.Admit())
		steps := []admission.HookFunc{ok, bad, bad, ok, bad, ok, hooktest.Wait(), bad, bad, ok}
		f := newFixture(t, logTo(&log, slog.LevelInfo), concurrency(1)).
			inProcess(hooktest.NewFake(steps...))
		f.configure(gateWith("policy", "/hook", breaker(3, time.Minute)))
		for i := range 9 {
			f.askAndWait("policy", fmt.Sprint(i))
		}
		f.askAndWait("policy", "skipped")
		time.Sleep(time.Minute)
		f.askAndWait("policy", "probe")
		want := []string{
			`level=WARN msg="the hook gives no verdict" gate=policy cause=Error error="no database"`,
			`level=INFO msg="the hook answers again" gate=policy`,
			`level=WARN msg="the hook gives no verdict" gate=policy cause=Timeout error="no answer within 2s: context deadline exceeded"`,
			`level=WARN msg="the hook is skipped after too many failures in a row" gate=policy cooldown=1m0s`,
			`level=INFO msg="the hook answers again" gate=policy`,
			`level=INFO msg="the hook is no longer skipped" gate=policy`,
		}
		if diff := cmp.Diff(want, lines(&log)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

func TestLogOfAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFixture(t, logTo(&log, slog.LevelDebug)).inProcess(hooktest.NewFake(hooktest.Answer(admission.Refuse("too large")), hooktest.Fail(errBroken)))
		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "a")
		synctest.Wait()
		f.ask("policy", "b")
		synctest.Wait()
		want := []string{
			`level=DEBUG msg="asked the hook" gate=policy check=check workload=team-a/workload-a offer=a result=Refuse took=0s`,
			`level=WARN msg="the hook gives no verdict" gate=policy cause=Error error="no database"`,
			`level=DEBUG msg="asked the hook" gate=policy check=check workload=team-a/workload-b offer=b result=Error took=0s error="no database"`,
		}
		if diff := cmp.Diff(want, lines(&log)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

// lines are those of a log without their times.
func lines(log *bytes.Buffer) []string {
	var out []string
	for line := range strings.Lines(log.String()) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		out = append(out, rest)
	}
	return out
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(1)).inProcess(d)
		f.configure(gateWith("policy", "/hook", breaker(1, time.Minute)))
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			err := testutil.GatherAndCompare(f.registry, strings.NewReader(want), "dispatch_admission_hook_calls_total",
				"dispatch_admission_hook_queued", "dispatch_admission_hook_breaker_open", "dispatch_admission_hook_late_calls")
			if err != nil {
				t.Error(err)
			}
		}
		f.ask("policy", "a")
		f.ask("policy", "b")
		f.ask("policy", "c")
		f.ask("policy", "d")
		d.next(t, "a").admit()
		d.next(t, "b")
		expect(exposition(`dispatch_admission_hook_calls_total{gate="policy",result="Admit"} 1`, 0, 2))
		f.Forget("b")
		d.next(t, "c").fail(errBroken)
		synctest.Wait()
		f.ask("policy", "e")
		expect(exposition(`dispatch_admission_hook_calls_total{gate="policy",result="Admit"} 1
dispatch_admission_hook_calls_total{gate="policy",result="BreakerOpen"} 2
dispatch_admission_hook_calls_total{gate="policy",result="Canceled"} 1
dispatch_admission_hook_calls_total{gate="policy",result="Error"} 1`, 1, 0))
		if n := samples(t, f); n != 2 {
			t.Errorf("%d durations", n)
		}

		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "a")
		removed := d.next(t, "a")
		f.Remove("policy")
		<-removed.ctx.Done()
		expect("")
	})
}

func exposition(calls string, open, queued int) string {
	return `# HELP dispatch_admission_hook_breaker_open 1 while the hook is skipped after too many failures in a row, else 0.
# TYPE dispatch_admission_hook_breaker_open gauge
dispatch_admission_hook_breaker_open{gate="policy"} ` + fmt.Sprint(open) + `
# HELP dispatch_admission_hook_calls_total Number of answers about offers, by what came of asking: a decision of the hook, or why there is none.
# TYPE dispatch_admission_hook_calls_total counter
` + calls + `
# HELP dispatch_admission_hook_late_calls Number of hook calls that have not returned although their deadline has passed.
# TYPE dispatch_admission_hook_late_calls gauge
dispatch_admission_hook_late_calls{gate="policy"} 0
# HELP dispatch_admission_hook_queued Number of questions that wait for a call of the hook to end.
# TYPE dispatch_admission_hook_queued gauge
dispatch_admission_hook_queued{gate="policy"} ` + fmt.Sprint(queued) + "\n"
}

func samples(t *testing.T, f *fixture) uint64 {
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "dispatch_admission_hook_duration_seconds" {
			return family.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return 0
}
