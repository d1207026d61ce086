package integration

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// TestHolds has the stories of held jobs, side by side, the longest first.
func TestHolds(t *testing.T) {
	address, p := freeAddress(t), newProxy(t)
	gate := startLeading(t, run{name: "gate", via: &p.endpoint, flags: []string{"-metrics-bind-address=" + address}})
	stories := []tale{
		{"FiftyCycles", fiftyCycles},
		{"ReoffersAreQuiet", reoffersAreQuiet},
		{"QuotaGoesToOthers", quotaGoesToOthers},
		{"ThirdRuns", thirdRuns},
		{"HoldUntilParked", holdUntilParked},
		{"HoldUntilOnQuota", holdUntilOnQuota},
		{"PriorityGivesWay", priorityGivesWay},
		{"GateEditedOnQuota", gateEditedOnQuota},
		{"GateEditedWhileParked", gateEditedWhileParked},
		{"WindowSpent", windowSpent},
	}
	manyAtOnce(t, append(stories, evictedStories(p, address)...)...)
	quiet(gate)
}

// quotaGoesToOthers: a held job keeps its quota while nobody else wants it. Once
// somebody does, it gives the quota back, and Kueue keeps it out of the queue until
// its next offer, although the quota is free again before. It says all the time
// what holds it and since when, and runs when the hook lets it.
func quotaGoesToOthers(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(10, 1))
	q := newHookedQueue(t, gate)
	seen := watchVersions(t, q.name)
	name := dispatchName()
	h.decides(name, admission.Hold("weekly freeze"))
	held := q.submit(name)
	wl := awaitHeld(t, held, gate.Name, "weekly freeze")
	since := sinceOf(wl)
	wantHeld(t, wl, gate.Name, gate.Name, since)

	other := q.submit(dispatchName())
	wl = seen.sees(t, held, "the held job gives its quota back", parked)
	wantHeld(t, wl, gate.Name, "weekly freeze", since)
	offer, asked := requeueAt(wl), h.times(held)
	asked = slices.DeleteFunc(asked, func(at time.Time) bool { return !at.Before(offer) }) // on a slow machine
	interval := 10 * time.Second << (len(asked) - 1)                                       // it doubles with each offer
	last := asked[len(asked)-1]
	if early, late := last.Add(interval*9/10), last.Add(interval+time.Second+patience/20); offer.Before(early) || offer.After(late) {
		t.Errorf("asked at %s, the next offer is at %s, want about %s later", last, offer, interval)
	}
	h.decides(name, admission.Admit())
	q.awaitStart(other, "1")
	remove(t, other)

	q.awaitStart(held, "1")
	if next := h.times(held)[len(asked)]; next.Before(offer) || next.After(offer.Add(patience/4)) {
		t.Errorf("asked again at %s, the offer was for %s", next, offer)
	}
	wl = awaitMessage(t, held, gate.Name, kueue.CheckStateReady, "Admitted by the hook")
	if has(wl, v1alpha1.WorkloadHeld) {
		t.Errorf("it runs: %s", describeWorkload(wl))
	}
	wl = awaitWorkload(t, held, "runs", running)
	if n := noEarlyOffer(t, seen, held); n != 1+evictions(wl) {
		t.Errorf("it got quota %d times and was evicted %d times", n, evictions(wl))
	}
}

// priorityGivesWay: a held job gives its quota to a job of lower priority, which
// would not get it if the held one merely went back to the queue. When the hook
// lets it, it takes the quota again, as its priority says.
func priorityGivesWay(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 5))
	q := newHookedQueue(t, gate)
	name := dispatchName()
	h.decides(name, admission.HoldUntil(time.Now().Add(time.Hour), "not before noon"))
	held := q.submit(name, highPriority)
	awaitHeld(t, held, gate.Name, "not before noon")
	low := q.submit(dispatchName())
	awaitParked(t, held)
	q.awaitStart(low, "1")

	h.decides(name, admission.Admit())
	editGate(t, gate.Name, window(7200))
	q.awaitStart(held, "1")
	q.awaitStopped(low)
}

// thirdRuns: two held jobs are in the way of a third in a queue with room for one.
// Each gives its quota back in turn, until the third has it. They run when the hook
// lets them and there is room.
func thirdRuns(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(10, 0))
	q := newHookedQueue(t, gate)
	var held []client.Object
	for range 2 {
		name := dispatchName()
		h.decides(name, admission.Hold("out of licences"))
		job := q.submit(name)
		h.awaitAsked(job, 1)
		held = append(held, job)
	}
	third := q.submit(dispatchName())
	q.awaitStart(third, "1")
	for _, job := range held {
		awaitWorkload(t, job, "is held without quota", func(wl *kueue.Workload) bool {
			return has(wl, v1alpha1.WorkloadHeld) && !has(wl, kueue.WorkloadQuotaReserved)
		})
		wantCount(t, job, "")
		h.decides(job.GetName(), admission.Admit())
	}
	q.setQuota("6")
	for _, job := range held {
		q.awaitStart(job, "1")
	}
}
