package gate

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// atOnce gives quota back as soon as somebody waits for it.
func atOnce(p *Policy) { p.Hook.Terms.KeepQuota = 0 }

// until moves the next offer of a hold.
func until(second int) func(*hold.Entry) {
	return func(e *hold.Entry) { e.Next = at(second).Time.UTC() }
}

// parkedAs is a hold whose quota was given back until a second.
func parkedAs(second int) hold.Book {
	b := bookOf(entry(until(second)))
	b.Park, b.Returned = at(second).Time.UTC(), 1
	return b
}

func evictedAt(second int, quota bool) func(*Snapshot) {
	return func(s *Snapshot) {
		cond(kueue.WorkloadEvicted, true, second)(s.Workload)
		cond(kueue.WorkloadQuotaReserved, quota, second)(s.Workload)
	}
}

// requeueAt is what Kueue has made of a Retry.
func requeueAt(second int) func(*Snapshot) {
	return func(s *Snapshot) { s.Workload.Status.RequeueState = &kueue.RequeueState{RequeueAt: new(at(second))} }
}

// retrying makes our check Retry since a second, for so many seconds.
func retrying(second int, seconds int32) func(*Snapshot) {
	return func(s *Snapshot) {
		check("ours", kueue.CheckStateRetry, entry().Message, second)(s.Workload)
		s.Workload.Status.AdmissionChecks[0].RequeueAfterSeconds = &seconds
	}
}

// lostCheck: the queue names the check no more.
func lostCheck(s *Snapshot) { s.Detached = true }

func reset(s *Snapshot) {
	check("ours", pending, "Reset to Pending after eviction. Previously: Retry", 81)(s.Workload)
}

// TestReturnQuota: when a held job gives its quota back.
func TestReturnQuota(t *testing.T) {
	for name, tc := range map[string]struct {
		s       Snapshot
		second  int
		returns bool
		wake    int
	}{
		"nobody waits":                    {s: hooked(policy(), heldAs(bookOf(entry(until(600))))), second: 500, wake: 600},
		"somebody waits, not long enough": {s: hooked(policy(), heldAs(bookOf(entry(until(600)))), crowdedQueue), second: 79, wake: 80},
		"somebody waits, long enough":     {s: hooked(policy(), heldAs(bookOf(entry(until(600)))), crowdedQueue), second: 80, returns: true},
		"the next offer comes first":      {s: hooked(policy(), heldAs(bookOf(entry(until(82)))), crowdedQueue), second: 80, wake: 82},
		"held just now, quota owed at once": {
			s: hooked(policy(atOnce), crowdedQueue, says(20, decided(admission.Hold("freeze")))), second: 20, returns: true},
		"reserved this very second": {
			s: hooked(policy(atOnce), crowdedQueue, says(10, decided(admission.Hold("freeze")))), second: 10, wake: 11},
		"no verdict gives quota back, too": {
			s: hooked(policy(atOnce), crowdedQueue, says(20, Answer{})), second: 20, returns: true},
		"refused": {s: hooked(policy(atOnce), crowdedQueue, says(20, decided(admission.Refuse("no")))), second: 20},
		"the gate was edited and its hook is being asked": {s: hooked(policy(func(p *Policy) { p.Version = "g.2" }), heldAs(bookOf(entry(until(600)))), crowdedQueue),
			second: 80},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Decide(tc.s, at(tc.second).Time)
			if tc.wake != 0 && !plan.Wake.Equal(at(tc.wake).Time) {
				t.Errorf("wakes at %s, want %s", plan.Wake, at(tc.wake))
			}
			if !tc.returns {
				if len(plan.Checks) > 0 && plan.Checks[0].State == kueue.CheckStateRetry {
					t.Errorf("gives the quota back: %+v", plan)
				}
				return
			}
			checkReturned(t, plan, tc.second)
		})
	}
}

// TestQuotaReturnsBetweenQuickOffers: offers that come faster than giving quota
// back takes do not keep the quota for ever.
func TestQuotaReturnsBetweenQuickOffers(t *testing.T) {
	quick := policy(atOnce, func(p *Policy) { p.Hook.Terms.Reoffer = time.Second })
	for name, a := range map[string]Answer{"no verdict": {}, "held": decided(admission.Hold("freeze"))} {
		s := hooked(quick, heldAs(bookOf(entry(until(82)))), crowdedQueue, says(82, a))
		plan := Decide(s, at(82).Time)
		if plan.Book == nil || plan.Checks == nil || plan.Checks[0].State != kueue.CheckStateRetry {
			t.Fatalf("%s: gives nothing back: %+v", name, plan)
		}
		if park := plan.Book.Park; park.Before(at(82).Add(leastPark)) || park.Nanosecond() != 0 {
			t.Errorf("%s: parked until %s", name, park)
		}
	}
}

// checkReturned sees that a plan gives the quota back: without a delay, which
// would be spent on the quota, and after the book says until when.
func checkReturned(t *testing.T, plan Plan, second int) {
	t.Helper()
	if plan.Checks == nil || plan.Book == nil {
		t.Fatalf("gives nothing back: %+v", plan)
	}
	c := plan.Checks[0]
	if c.State != kueue.CheckStateRetry || c.RequeueAfterSeconds == nil || *c.RequeueAfterSeconds != 0 || !c.LastTransitionTime.Equal(new(at(second))) {
		t.Errorf("the check: %+v", c)
	}
	if plan.Book.Returned != 1 || !plan.Book.Park.Equal(plan.Book.Checks["ours"].Next) {
		t.Errorf("the book: %+v", plan.Book)
	}
	if plan.Raise != nil {
		t.Error("raises A for a start that does not come")
	}
}

// TestPark: each step of keeping a held job out of the queue, and each way it can
// go wrong.
func TestPark(t *testing.T) {
	mine := func(changes ...func(*Snapshot)) Snapshot { return hooked(policy(), changes...) }
	for name, tc := range map[string]struct {
		s       Snapshot
		second  int
		want    Case
		state   kueue.CheckState // "" if no check is written
		seconds int32
		unpark  bool
	}{
		"Kueue has yet to evict": {s: mine(heldAs(parkedAs(600)), retrying(80, 0)), second: 80, want: CaseNone},
		"evicted, still with quota": {s: mine(heldAs(parkedAs(600)), evictedAt(81, true), reset), second: 81,
			want: CasePark, state: kueue.CheckStateRetry, seconds: 519},
		"evicted, quota gone": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), reset), second: 81,
			want: CasePark, state: kueue.CheckStateRetry, seconds: 519},
		"Kueue has yet to note the delay": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), retrying(81, 519)), second: 82, want: CaseNone},
		"Kueue has noted the delay": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), retrying(81, 519), requeueAt(600)), second: 82,
			want: CasePark, state: pending},
		"parked": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), func(s *Snapshot) {
			check("ours", pending, entry().Message, 82)(s.Workload)
		}, requeueAt(600)), second: 300, want: CaseNone},
		"parked for less than wanted": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), reset, requeueAt(90)), second: 82,
			want: CasePark, state: kueue.CheckStateRetry, seconds: 518},
		"the time has come": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), func(s *Snapshot) {
			check("ours", pending, entry().Message, 82)(s.Workload)
		}, requeueAt(600)), second: 600, want: CaseNone},
		"the time has come and it is still in Retry": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), retrying(81, 519)), second: 600,
			want: CasePark, state: pending},
		"evicted for another reason": {s: mine(heldAs(bookOf(entry(until(600)))), evictedAt(81, false), func(s *Snapshot) {
			check("ours", pending, entry().Message, 81)(s.Workload)
		}), second: 82, want: CaseNone},
		"the gate was edited": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), func(s *Snapshot) {
			s.Checks["ours"] = Check{Policy: policy(func(p *Policy) { p.Version = "g.2" })}
			check("ours", pending, entry().Message, 82)(s.Workload)
		}, requeueAt(600)), second: 300, want: CaseUnpark, unpark: true},
		"its queue lost the check": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), func(s *Snapshot) {
			check("ours", pending, entry().Message, 82)(s.Workload)
		}, requeueAt(600), lostCheck), second: 300, want: CaseUnpark, unpark: true},
		"it was moved to another queue": {s: mine(heldAs(func() hold.Book {
			b := parkedAs(600)
			b.Local = "another"
			return b
		}()), evictedAt(81, false), func(s *Snapshot) {
			check("ours", pending, entry().Message, 82)(s.Workload)
		}, requeueAt(600)), second: 300, want: CaseUnpark, unpark: true},
		"its queue lost the check, and it is in Retry": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), retrying(81, 519), requeueAt(600), lostCheck),
			second: 300, want: CasePark, state: pending},
		"its queue lost the check before it was parked": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), reset, lostCheck), second: 82,
			want: CasePark, state: pending},
		"the gate is gone, and it is in Retry": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), retrying(81, 519), requeueAt(600), func(s *Snapshot) {
			s.Checks["ours"] = Check{Broken: "no gate"}
		}), second: 300, want: CasePark, state: pending},
		"the gate was edited, and Kueue delays for a reason of its own": {s: mine(heldAs(parkedAs(600)), evictedAt(81, false), func(s *Snapshot) {
			s.Checks["ours"] = Check{Policy: policy(func(p *Policy) { p.Version = "g.2" })}
			check("ours", pending, entry().Message, 82)(s.Workload)
		}, requeueAt(400)), second: 300, want: CaseNone},
		"not held":               {s: mine(evictedAt(81, false), reset), second: 82, want: CaseNone},
		"got quota all the same": {s: mine(heldAs(parkedAs(600)), requeueAt(600)), second: 90, want: CaseUnpark, unpark: true},
		"no quota, not evicted, in Retry": {s: mine(heldAs(parkedAs(600)), func(s *Snapshot) {
			cond(kueue.WorkloadQuotaReserved, false, 80)(s.Workload)
		}, retrying(80, 0)), second: 81, want: CasePark, state: pending},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Decide(tc.s, at(tc.second).Time)
			if plan.Case != tc.want || plan.Unpark != tc.unpark || plan.Raise != nil || plan.Book != nil || len(plan.Ask) > 0 {
				t.Errorf("%+v", plan)
			}
			checkParked(t, plan, tc.state, tc.seconds)
		})
	}
}

func checkParked(t *testing.T, plan Plan, state kueue.CheckState, seconds int32) {
	t.Helper()
	if (plan.Checks != nil) != (state != "") {
		t.Fatalf("writes %+v", plan.Checks)
	}
	if state == "" {
		return
	}
	c := plan.Checks[0]
	if c.State != state || c.Message != entry().Message {
		t.Errorf("the check: %+v", c)
	}
	if state == kueue.CheckStateRetry && *c.RequeueAfterSeconds != seconds {
		t.Errorf("delays for %d seconds, want %d", *c.RequeueAfterSeconds, seconds)
	}
	if len(plan.Conditions) == 0 || plan.Conditions[0].Type != v1alpha1.WorkloadHeld || plan.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("the condition is lost: %+v", plan.Conditions)
	}
}

// TestRequeueAfterRetry: Kueue passes over a Workload with a check in Retry and does
// not look at it again when the check is set back, unless it is told to.
func TestRequeueAfterRetry(t *testing.T) {
	s := hooked(policy(), heldAs(parkedAs(600)), evictedAt(81, false), retrying(81, 519))
	cond(kueue.WorkloadRequeued, true, 600)(s.Workload)
	plan := Decide(s, at(601).Time)
	last := plan.Conditions[len(plan.Conditions)-1]
	if last.Type != kueue.WorkloadRequeued || last.Status != metav1.ConditionFalse || last.Reason != kueue.WorkloadEvictedByAdmissionCheck {
		t.Errorf("%+v", plan.Conditions)
	}
	cond(kueue.WorkloadRequeued, false, 82)(s.Workload)
	if plan := Decide(s, at(601).Time); len(plan.Conditions) != 1 {
		t.Errorf("Kueue will requeue it by itself: %+v", plan.Conditions)
	}
}

// TestQuotaReturnsInCircles: one job goes through all steps, and each is settled
// before the next.
func TestQuotaReturnsInCircles(t *testing.T) {
	s := hooked(policy(atOnce), crowdedQueue, says(20, decided(admission.Hold("freeze"))))
	s.Workload.Status.Admission = &kueue.Admission{ClusterQueue: "training"}
	plan := Decide(s, at(20).Time)
	checkReturned(t, plan, 20)
	if plan.Book.Queue != "training" {
		t.Errorf("the quota came from %q", plan.Book.Queue)
	}
	s.Workload = after(s, plan)
	park := plan.Book.Park
	if plan := Decide(s, at(20).Time); plan.Case != CaseNone {
		t.Fatalf("before Kueue evicts: %+v", plan)
	}
	evictedAt(21, true)(&s)
	reset(&s)
	plan = Decide(s, at(21).Time)
	s.Workload = after(s, plan)
	if delay := time.Duration(*plan.Checks[0].RequeueAfterSeconds) * time.Second; !plan.Checks[0].LastTransitionTime.Add(delay).Equal(park) {
		t.Fatalf("delayed until %s, want %s", plan.Checks[0].LastTransitionTime.Add(delay), park)
	}
	s.Workload.Status.RequeueState = &kueue.RequeueState{RequeueAt: new(metav1.NewTime(park))}
	evictedAt(21, false)(&s)
	plan = Decide(s, at(22).Time)
	s.Workload = after(s, plan)
	if plan := Decide(s, at(22).Time); plan.Case != CaseNone {
		t.Fatalf("parked: %+v", plan)
	}
	s.Workload.Status.RequeueState = nil
	cond(kueue.WorkloadEvicted, false, 60)(s.Workload)
	cond(kueue.WorkloadQuotaReserved, true, 60)(s.Workload)
	if asks := Decide(s, at(60).Time).Ask; len(asks) != 1 || asks[0].OfferCount != 2 {
		t.Errorf("offered again: %+v", asks)
	}
}
