package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// heldJob is a job that a hook holds.
type heldJob struct {
	*trainer.TrainJob
	queue *queue
	since metav1.Time
}

// twoHeld holds two jobs by one hook, for as long as it says: one sits on its quota,
// the other is parked because somebody waits.
func twoHeld(t *testing.T, h *holdHook, gate *v1alpha1.AdmissionGate, onQuota, parked admission.HookFunc) (a, b heldJob) {
	t.Helper()
	first := newHookedQueue(t, gate)
	second := newQueueOf(t, gate.Name)
	second.tooBig()
	a.queue, b.queue = first, second
	for job, rule := range map[*heldJob]admission.HookFunc{&a: onQuota, &b: parked} {
		job.TrainJob = job.queue.trainJob(dispatchName())
		h.rule(job.Name, rule)
		create(t, job.TrainJob)
	}
	a.since = sinceOf(awaitHeld(t, a, gate.Name, "not now"))
	b.since = sinceOf(awaitParked(t, b))
	return a, b
}

// offers wants every request about a job to belong to the one hold that it is in,
// and returns how many there were.
func (j heldJob) offers(t *testing.T, h *holdHook) int {
	t.Helper()
	calls := h.asked(j)
	wantOffers(t, calls, j.since.Time, len(calls))
	return len(calls)
}

func always(d admission.Decision) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) { return d, nil }
}

// TestHoldsKueueRestart: Kueue is down for a while. The job that is offered all the
// time keeps its quota and its count. The parked one may get quota before its time,
// because a Kueue that starts does not look at it, but the hook is not asked before.
// Both run when they may.
func TestHoldsKueueRestart(t *testing.T) {
	program := startLeading(t, run{name: "gate"})
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 5))
	until := time.Now().Add(25 * time.Second)
	a, b := twoHeld(t, h, gate, always(admission.HoldUntil(time.Unix(1, 0), "not now")),
		func(_ context.Context, r *admission.Request) (admission.Decision, error) {
			if r.OfferCount == 1 {
				return admission.HoldUntil(until, "not now"), nil
			}
			return admission.Admit(), nil
		})
	wl := awaitParked(t, b)
	wantHeld(t, wl, gate.Name, "not now", b.since)
	if at := requeueAt(wl); at.Before(until) || at.After(until.Add(time.Second)) {
		t.Errorf("Kueue offers it at %s, want %s", at, until)
	}
	if err := shared.cluster.StopComponent(cluster.Kueue); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // if the test ends before
		if t.Failed() {
			_ = shared.cluster.StartComponent(context.Background(), cluster.Kueue)
		}
	})
	// Kueue's webhook has a say in what is written to a Workload.
	program.await(patience, "level=ERROR", "a workload cannot be served for now", a.queue.name)
	if err := shared.cluster.StartComponent(t.Context(), cluster.Kueue); err != nil {
		t.Fatal(err)
	}
	h.awaitAsked(a, len(h.asked(a))+2)
	if wl := awaitHeld(t, a, gate.Name, "not now"); evictions(wl) != 0 {
		t.Errorf("%d evictions of the job that sits on its quota", evictions(wl))
	}
	a.offers(t, h)
	h.decides(a.Name, admission.Admit())
	a.queue.awaitStart(a, "1")
	b.queue.awaitStart(b, "1")
	a.offers(t, h)
	if n := b.offers(t, h); n != 2 || h.times(b)[1].Before(until) {
		t.Errorf("the parked job was offered %d times, at %s; want twice, the second time at %s", n, h.times(b), until)
	}
}

// TestHoldsLeaderChange: the leader dies while jobs are held. The next one goes on
// where it was: nothing is asked before its time, and since when and how often is
// not forgotten. Then there is no gate at all, and Kueue by itself offers the parked
// job in time. The gate that comes goes on with both.
func TestHoldsLeaderChange(t *testing.T) {
	leader := startLeading(t, run{name: "first", flags: brisk})
	candidate := start(t, run{name: "second", flags: brisk})
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 0))
	plan := &twoHolds{second: map[string]time.Time{}}
	rule := plan.decide
	a, b := twoHeld(t, h, gate, rule, rule)
	leader.kill()
	candidate.await(patience, "leading")
	h.awaitAsked(a, 2)
	h.awaitAsked(b, 2)
	wantHeld(t, awaitParked(t, b), gate.Name, "not now", b.since)
	wantHeld(t, awaitHeld(t, a, gate.Name, "not now"), gate.Name, "not now", a.since)

	candidate.kill()
	wl := awaitWorkload(t, b, "is offered although there is no gate", func(wl *kueue.Workload) bool {
		return has(wl, kueue.WorkloadQuotaReserved) && !has(wl, kueue.WorkloadEvicted)
	})
	if wl.Spec.Active != nil && !*wl.Spec.Active {
		t.Error("the job is inactive")
	}
	if at := conditionOf(wl, kueue.WorkloadQuotaReserved).LastTransitionTime; at.Time.Before(plan.of(b.Name)[1].Truncate(time.Second)) {
		t.Errorf("offered at %s, before %s", at, plan.of(b.Name)[1])
	}
	if n := len(h.asked(b)); n != 2 {
		t.Errorf("the hook was asked %d times, and there is no gate", n)
	}
	startLeading(t, run{name: "third", flags: brisk})
	for _, job := range []heldJob{a, b} {
		job.queue.awaitStart(job, "1")
		if n := job.offers(t, h); n != 3 {
			t.Errorf("%s was offered %d times, want 3", job.Name, n)
		}
		times := plan.of(job.Name)
		for i, at := range h.times(job)[1:] {
			if at.Before(times[i]) {
				t.Errorf("offer %d came at %s, before %s", i+2, at, times[i])
			}
		}
	}
}

// twoHolds holds jobs until 15 seconds after the first was asked about, then each until 25 seconds after it was asked about
// again, however late that is, and admits them the third time.
type twoHolds struct {
	first  time.Time
	mu     sync.Mutex
	second map[string]time.Time // by job
}

func (p *twoHolds) decide(_ context.Context, r *admission.Request) (admission.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r.OfferCount {
	case 1:
		if p.first.IsZero() {
			p.first = time.Now().Add(15 * time.Second)
		}
		return admission.HoldUntil(p.first, "not now"), nil
	case 2:
		if p.second[r.Job.Name].IsZero() {
			p.second[r.Job.Name] = time.Now().Add(25 * time.Second)
		}
		return admission.HoldUntil(p.second[r.Job.Name], "not now"), nil
	}
	return admission.Admit(), nil
}

// of are the two times of a job.
func (p *twoHolds) of(job string) []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []time.Time{p.first, p.second[job]}
}

// TestHoldsCrash: the leader dies at each write that giving quota back takes. The
// next one finishes: the job is parked, says why, and runs when it may.
func TestHoldsCrash(t *testing.T) {
	p := newProxy(t)
	leader := startLeading(t, run{name: "leader", via: &p.endpoint, flags: brisk})
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 0))
	newCheckWith(t, gate.Name, parametersOf(gate.Name))
	steps := map[string][]step{"Book": {bookWrite}, "Return": {returnWrite}, "Park": {parkWrite}, "ParkedNow": {parkWrite, pendingWrite}}
	type heldAt struct {
		heldJob
		before *kueue.Workload
	}
	jobs := make(chan heldAt, len(steps))
	var all sync.WaitGroup
	for _, step := range steps {
		q := newQueueOf(t, gate.Name)
		q.tooBig()
		all.Go(func() {
			job := q.trainJob(dispatchName())
			h.decides(job.Name, admission.HoldUntil(time.Now().Add(time.Hour), "not now"))
			p.reach(t, q, step, func() { create(t, job) })
			wl, err := workloadOf(t.Context(), q.name, job.GetUID())
			if err != nil {
				t.Error(err)
				return
			}
			jobs <- heldAt{heldJob{TrainJob: job, queue: q}, wl}
		})
	}
	all.Wait()
	close(jobs)
	leader.kill()
	start(t, run{name: "next", flags: brisk})
	var held []heldJob
	for job := range jobs {
		wl := awaitParked(t, job)
		wantHeld(t, wl, gate.Name, "not now", sinceOf(wl))
		wantNoted(t, job.before, wl, gate.Name)
		h.decides(job.Name, admission.Admit())
		held = append(held, job.heldJob)
	}
	editGate(t, gate.Name, window(7200))
	for _, job := range held {
		job.queue.awaitStart(job, "1")
	}
}
