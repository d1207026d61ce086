package gate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// policy is a gate with a hook, as the schema's defaults make it.
func policy(changes ...func(*Policy)) *Policy {
	p := &Policy{Name: "policy", Version: "g.1", Hook: &HookPolicy{
		Terms: hold.Terms{Reoffer: 30 * time.Second, KeepQuota: time.Minute, Window: 24 * time.Hour}}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func failingOpen(p *Policy) { p.Hook.FailOpen = true }
func auditing(p *Policy)    { p.Hook.Audit = true }

// hooked is a snapshot of a job of dispatch whose check has a hook.
func hooked(p *Policy, changes ...func(*Snapshot)) Snapshot {
	s := Snapshot{
		Workload: workload(), TrainJob: trainJob(), Checks: map[kueue.AdmissionCheckReference]Check{"ours": {Policy: p}},
		Answers: map[kueue.AdmissionCheckReference]Answer{},
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

// heldAs puts a hold into the Workload.
func heldAs(b hold.Book) func(*Snapshot) {
	return func(s *Snapshot) {
		text, err := b.Annotation()
		if err != nil {
			panic(err)
		}
		s.Workload.Annotations = map[string]string{v1alpha1.HoldAnnotation: text}
		since := metav1.NewTime(epoch)
		for _, e := range b.Checks {
			since = metav1.NewTime(e.Since)
		}
		meta.SetStatusCondition(&s.Workload.Status.Conditions, metav1.Condition{
			Type: v1alpha1.WorkloadHeld, Status: metav1.ConditionTrue, Reason: reasonHeld, Message: "told before", LastTransitionTime: since})
	}
}

// entry is a hold that the hook began at second 20, asked for the last time at
// second 20, to be asked again at second 50.
func entry(changes ...func(*hold.Entry)) hold.Entry {
	e := hold.Entry{Gate: "g.1", Since: at(20).Time.UTC(), Held: at(20).Time.UTC(), Offers: 1, Next: at(50).Time.UTC(), Message: messageHeld(policy(), "freeze")}
	for _, change := range changes {
		change(&e)
	}
	return e
}

func bookOf(e hold.Entry) hold.Book { return hold.Book{}.With("ours", e) }

// says gives the answer to the question that a snapshot asks at a time.
func says(second int, a Answer) func(*Snapshot) {
	return func(s *Snapshot) {
		for _, q := range Decide(*s, at(second).Time).Ask {
			a.Offer = q.Offer
			s.Answers[q.Check] = a
		}
	}
}

func decided(d admission.Decision) Answer { return Answer{Decision: d, Verdict: true} }

func crowdedQueue(s *Snapshot) { s.Crowded = true }

// TestHook: one look at a job whose check has a hook.
func TestHook(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for name, tc := range map[string]struct {
		s       Snapshot
		second  int
		state   kueue.CheckState
		message string // contained in the check's
		told    []Topic
		asks    int
		raises  bool
		books   int // offers that the written book counts; 0: none is written
		wake    int // the second of the next look; 0: an event will tell
		held    metav1.ConditionStatus
		refused metav1.ConditionStatus
	}{
		"asked first": {s: hooked(policy()), second: 20, state: pending, asks: 1, wake: 22},
		"admitted": {s: hooked(policy(), says(20, decided(admission.Admit()))), second: 20,
			state: ready, message: `Admitted by the hook of AdmissionGate "policy"`, raises: true},
		"an answer to another offer": {s: hooked(policy(), func(s *Snapshot) {
			s.Answers["ours"] = Answer{Offer: "other", Verdict: true}
		}), second: 20, state: pending, asks: 1, wake: 22},
		"no answer for long": {s: hooked(policy(), says(20, Answer{Slow: true})), second: 22,
			state: pending, message: "Waiting for the answer of the hook", asks: 1},
		"held": {s: hooked(policy(), says(20, decided(admission.Hold("freeze")))), second: 20,
			state: pending, message: `Held by the hook of AdmissionGate "policy": freeze`, told: []Topic{ToldHeld}, books: 1, held: metav1.ConditionTrue},
		"held until": {s: hooked(policy(), says(20, decided(admission.HoldUntil(at(3620).Time, "freeze")))), second: 20,
			state: pending, message: "freeze", told: []Topic{ToldHeld}, books: 1, wake: 3620, held: metav1.ConditionTrue},
		"still held":    {s: hooked(policy(), heldAs(bookOf(entry()))), second: 30, state: pending, message: "freeze", wake: 50, held: metav1.ConditionTrue},
		"offered again": {s: hooked(policy(), heldAs(bookOf(entry()))), second: 50, state: pending, asks: 1, wake: 52, held: metav1.ConditionTrue},
		"held again, nothing new": {s: hooked(policy(), heldAs(bookOf(entry())), says(50, decided(admission.Hold("freeze")))), second: 50,
			state: pending, message: "freeze", books: 2, held: metav1.ConditionTrue},
		"held for another reason": {s: hooked(policy(), heldAs(bookOf(entry())), says(50, decided(admission.Hold("budget")))), second: 50,
			state: pending, message: "budget", told: []Topic{ToldHeld}, books: 2, held: metav1.ConditionTrue},
		"released": {s: hooked(policy(), heldAs(bookOf(entry())), says(50, decided(admission.Admit()))), second: 50,
			state: ready, message: "Admitted", told: []Topic{ToldReleased}, raises: true, held: metav1.ConditionFalse},
		"the gate was edited": {s: hooked(policy(func(p *Policy) { p.Version = "g.2" }), heldAs(bookOf(entry()))), second: 30, state: pending, asks: 1, wake: 32, held: metav1.ConditionTrue},
		"the last second of the window": {s: hooked(policy(), heldAs(bookOf(entry())), says(20+24*3600-1, decided(admission.Hold("freeze")))), second: 20 + 24*3600 - 1,
			state: pending, message: "freeze", books: 2, wake: 20 + 24*3600, held: metav1.ConditionTrue},
		"the window is spent": {s: hooked(policy(), heldAs(bookOf(entry())), says(20+24*3600, decided(admission.Hold("freeze")))), second: 20 + 24*3600,
			state: kueue.CheckStateRejected, message: "whole window of 24h0m0s: freeze", told: []Topic{ToldRefused}, held: metav1.ConditionFalse, refused: metav1.ConditionTrue},
		"no verdict spends no window": {s: hooked(policy(), heldAs(bookOf(entry())), says(30*24*3600, Answer{})), second: 30 * 24 * 3600,
			state: pending, message: "gave no verdict", told: []Topic{ToldNoVerdict}, books: 2, held: metav1.ConditionTrue},
		"refused": {s: hooked(policy(), says(20, decided(admission.Refuse("too large")))), second: 20,
			state: kueue.CheckStateRejected, message: "Refused by the hook of AdmissionGate \"policy\": too large", told: []Topic{ToldRefused}, refused: metav1.ConditionTrue},
		"refused at length": {s: hooked(policy(), says(20, decided(admission.Refuse(long)))), second: 20,
			state: kueue.CheckStateRejected, message: "...", told: []Topic{ToldRefused}, refused: metav1.ConditionTrue},
		"refused with a percent sign": {s: hooked(policy(), says(20, decided(admission.Refuse("120% of the budget")))), second: 20,
			state: kueue.CheckStateRejected, message: "120 percent of the budget", told: []Topic{ToldRefused}, refused: metav1.ConditionTrue},
		"no verdict": {s: hooked(policy(), says(20, Answer{})), second: 20,
			state: pending, message: "gave no verdict; it is asked again", told: []Topic{ToldNoVerdict}, books: 1, held: metav1.ConditionTrue},
		"no verdict, with a reason for the owner": {s: hooked(policy(), says(20, Answer{Problem: `changes.serviceAccount: "x" is not on the allowlist`})), second: 20,
			state: pending, message: `cannot be done: changes.serviceAccount: "x" is not on the allowlist`, told: []Topic{ToldNoVerdict}, books: 1, held: metav1.ConditionTrue},
		"no verdict, failing open": {s: hooked(policy(failingOpen), says(20, Answer{})), second: 20,
			state: ready, message: "without a verdict (failurePolicy Admit)", told: []Topic{ToldFailedOpen}, raises: true},
		"a hold never fails open": {s: hooked(policy(failingOpen), says(20, decided(admission.Hold("freeze")))), second: 20,
			state: pending, message: "freeze", told: []Topic{ToldHeld}, books: 1, held: metav1.ConditionTrue},
		"audited hold": {s: hooked(policy(auditing), says(20, decided(admission.Hold("freeze")))), second: 20,
			state: ready, message: "mode Audit): the hook of AdmissionGate \"policy\" answered Hold: freeze", told: []Topic{ToldAudited}, raises: true},
		"audited refusal": {s: hooked(policy(auditing), says(20, decided(admission.Refuse("too large")))), second: 20,
			state: ready, message: "answered Refuse: too large", told: []Topic{ToldAudited}, raises: true},
		"audited without a verdict": {s: hooked(policy(auditing), says(20, Answer{})), second: 20,
			state: ready, message: "gave no verdict", told: []Topic{ToldAudited}, raises: true},
		"admitted after a refusal": {s: hooked(policy(), func(s *Snapshot) {
			meta.SetStatusCondition(&s.Workload.Status.Conditions, metav1.Condition{Type: v1alpha1.WorkloadRefused, Status: metav1.ConditionTrue, Reason: "r", Message: "m"})
		}, says(20, decided(admission.Admit()))), second: 20, state: ready, message: "Admitted", raises: true, refused: metav1.ConditionFalse},
		"rejected already": {s: hooked(policy(), func(s *Snapshot) { check("ours", kueue.CheckStateRejected, "no", 15)(s.Workload) }), second: 20, state: kueue.CheckStateRejected, message: "no"},
		"nothing is asked while the earlier start goes on": {s: hooked(policy(), func(s *Snapshot) {
			s.TrainJob = trainJob(raised("1", fence.Attempt{Workload: "x"}), activePods)
		}), second: 20, state: pending, message: MessageOldPods},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Decide(tc.s, at(tc.second).Time)
			checkOutcome(t, tc.s, plan, tc.state, tc.message)
			if len(plan.Ask) != tc.asks {
				t.Errorf("asks %+v", plan.Ask)
			}
			if (plan.Raise != nil) != tc.raises {
				t.Errorf("raise %+v", plan.Raise)
			}
			if got := topics(plan); !slices.Equal(got, tc.told) {
				t.Errorf("tells %v, want %v", got, tc.told)
			}
			if offers := offersIn(plan); offers != tc.books {
				t.Errorf("the book counts %d offers, want %d", offers, tc.books)
			}
			if tc.wake != 0 && !plan.Wake.Equal(at(tc.wake).Time) {
				t.Errorf("wakes at %s, want %s", plan.Wake, at(tc.wake))
			}
			checkCondition(t, tc.s, plan, v1alpha1.WorkloadHeld, tc.held)
			checkCondition(t, tc.s, plan, v1alpha1.WorkloadRefused, tc.refused)
			checkSettled(t, tc.s, plan, tc.second)
		})
	}
}

// after is the Workload once a plan is carried out.
func after(s Snapshot, plan Plan) *kueue.Workload {
	wl := s.Workload.DeepCopy()
	if plan.Book != nil {
		text, _ := plan.Book.Annotation()
		wl.Annotations = map[string]string{v1alpha1.HoldAnnotation: text}
	}
	if plan.Checks == nil {
		return wl
	}
	for _, c := range plan.Checks {
		for i := range wl.Status.AdmissionChecks {
			if wl.Status.AdmissionChecks[i].Name == c.Name {
				wl.Status.AdmissionChecks[i] = c
			}
		}
	}
	for _, c := range plan.Conditions {
		meta.RemoveStatusCondition(&wl.Status.Conditions, c.Type)
		wl.Status.Conditions = append(wl.Status.Conditions, c)
	}
	return wl
}

// checkOutcome sees what the check says once the plan is carried out.
func checkOutcome(t *testing.T, s Snapshot, plan Plan, state kueue.CheckState, message string) {
	t.Helper()
	got := after(s, plan).Status.AdmissionChecks[0]
	if got.State != state || !strings.Contains(got.Message, message) {
		t.Errorf("the check is %s %q, want %s %q", got.State, got.Message, state, message)
	}
	if len(got.Message) > MessageLimit || strings.Contains(got.Message, "%") {
		t.Errorf("the message is not fit: %q", got.Message)
	}
}

func checkCondition(t *testing.T, s Snapshot, plan Plan, kind string, want metav1.ConditionStatus) {
	t.Helper()
	got := metav1.ConditionStatus("")
	if c := meta.FindStatusCondition(after(s, plan).Status.Conditions, kind); c != nil {
		got = c.Status
	}
	if got != want {
		t.Errorf("condition %s is %q, want %q", kind, got, want)
	}
}

// checkSettled sees that a plan that was carried out leaves nothing to write.
func checkSettled(t *testing.T, s Snapshot, plan Plan, second int) {
	t.Helper()
	if plan.Raise != nil {
		s.TrainJob = trainJob(raised("1", plan.Raise.Attempt))
	}
	s.Workload = after(s, plan)
	again := Decide(s, at(second).Time)
	if again.Checks != nil || again.Book != nil || again.Raise != nil || len(again.Tell) > 0 {
		t.Errorf("the same world is written again: %+v", again)
	}
}

func topics(p Plan) []Topic {
	var out []Topic
	for _, told := range p.Tell {
		out = append(out, told.Topic)
	}
	return out
}

func offersIn(p Plan) int {
	if p.Book == nil {
		return 0
	}
	return p.Book.Checks["ours"].Offers
}

// TestQuestion: what a hook is asked about.
func TestQuestion(t *testing.T) {
	first := Decide(hooked(policy()), at(20).Time).Ask[0]
	if first.TryNumber != 1 || first.OfferCount != 1 || !first.HeldSince.IsZero() {
		t.Errorf("the first offer: %+v", first)
	}
	held := Decide(hooked(policy(), heldAs(bookOf(entry()))), at(50).Time).Ask[0]
	if held.TryNumber != 1 || held.OfferCount != 2 || !held.HeldSince.Equal(at(20).Time) || held.Offer == first.Offer {
		t.Errorf("after one hold: %+v", held)
	}
	again := Decide(hooked(policy(), func(s *Snapshot) {
		s.TrainJob = trainJob(raised("3", fence.Attempt{Workload: "wl-1", Reserved: at(1).Unix()}))
	}), at(20).Time).Ask[0]
	if again.TryNumber != 4 {
		t.Errorf("after three starts: %+v", again)
	}
	s := hooked(policy(), func(s *Snapshot) {
		owner("batch/v1", "Job", "")(s.Workload)
		evictions(5)(s.Workload)
		s.Workload.Annotations = map[string]string{v1alpha1.HoldAnnotation: `{"returned":3}`}
	})
	if q := Decide(s, at(20).Time).Ask[0]; q.TryNumber != 3 {
		t.Errorf("of five evictions three gave quota back before anything started: %+v", q)
	}
	s.Workload.Status.Conditions[0].LastTransitionTime = at(11)
	if q := Decide(s, at(20).Time).Ask[0]; q.Offer == first.Offer {
		t.Error("another reservation is the same offer")
	}
}

// TestTwoGates: each check is answered by itself, and two writes are the most.
func TestTwoGates(t *testing.T) {
	s := hooked(policy(), func(s *Snapshot) {
		check("second", pending, "", 5)(s.Workload)
		s.Checks["second"] = Check{Policy: policy(func(p *Policy) { p.Name, p.Version = "second", "h.1" })}
	})
	for _, q := range Decide(s, at(20).Time).Ask {
		s.Answers[q.Check] = Answer{Offer: q.Offer, Verdict: true, Decision: admission.AdmitWith(admission.Changes{NodeSelector: map[string]string{"zone": string(q.Check)}})}
	}
	plan := Decide(s, at(20).Time)
	if plan.Raise != nil || plan.Book == nil || !strings.Contains(plan.Checks[1].Message, `"ours"`) || !strings.Contains(plan.Checks[1].Message, `"second"`) {
		t.Errorf("conflicting changes: %+v", plan)
	}
	s.Workload = after(s, plan)
	plan = Decide(s, at(21).Time)
	if plan.Raise == nil || plan.Checks[0].State != ready || plan.Checks[1].State != pending || plan.Book != nil {
		t.Errorf("the first is admitted all the same: %+v", plan)
	}
	if held := plan.Conditions[0]; held.Status != metav1.ConditionTrue || !strings.Contains(held.Message, "second") {
		t.Errorf("the second holds: %+v", held)
	}
}

// TestRefusalOpensNothing: of two gates, one refuses; the other's yes is void.
func TestRefusalOpensNothing(t *testing.T) {
	s := hooked(policy(), func(s *Snapshot) {
		check("plain", pending, "", 5)(s.Workload)
		s.Checks["plain"] = Check{}
	}, says(20, decided(admission.Refuse("no"))))
	plan := Decide(s, at(20).Time)
	if plan.Raise != nil || plan.Checks[1].State != pending {
		t.Errorf("%+v", plan)
	}
}

// TestReleasedWithoutCheck: the check that held a job was taken out of the queue.
func TestReleasedWithoutCheck(t *testing.T) {
	s := hooked(policy(), heldAs(bookOf(entry())), func(s *Snapshot) { s.Workload.Status.AdmissionChecks = nil })
	plan := Decide(s, at(30).Time)
	if plan.Case != CaseReleased || plan.Checks == nil || plan.Conditions[0].Status != metav1.ConditionFalse {
		t.Errorf("%+v", plan)
	}
	s.Workload = after(s, plan)
	if plan := Decide(s, at(30).Time); plan.Case != CaseNone {
		t.Errorf("and again: %+v", plan)
	}
	// One that is kept out of the queue is let go first.
	s = hooked(policy(), heldAs(parkedAs(600)), evictedAt(21, false), requeueAt(600), func(s *Snapshot) { s.Checks = nil })
	if plan := Decide(s, at(30).Time); plan.Case != CaseUnpark || !plan.Unpark || plan.Checks != nil {
		t.Errorf("parked: %+v", plan)
	}
}
