package integration

import (
	"testing"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// TestUngatedIsEvicted: no gate runs while the queue is held and opened again, so
// Kueue starts the job on a stale answer, without a new A. Where the gate's policy
// says so, the next leader has it evicted, and it starts again gated, without the
// pods of the ungated start beside it.
func TestUngatedIsEvicted(t *testing.T) {
	theirs := unique("check") + "-foreign"
	newForeignCheck(t, theirs)
	gate := newGate(t, nil, func(s *v1alpha1.AdmissionGateSpec) { s.Readmission.OnUngated = v1alpha1.OnUngatedEvict })
	newCheckWith(t, gate.Name, parametersOf(gate.Name))
	q := newQueueOf(t, gate.Name, theirs)
	seen := watchOverlaps(t, q.name)
	first := startLeading(t, run{name: "first"})
	job := q.submit(dispatchName())
	awaitCheck(t, job, gate.Name, kueue.CheckStateReady)
	first.kill()
	q.startsOnStaleAnswer(job, theirs)

	next := startLeading(t, run{name: "next"})
	next.await(patience, "level=ERROR", "ungated admission", job.Name)
	awaitEvents(t, job, "UngatedAdmission")
	awaitWorkload(t, job, "is evicted and waits for the other check", func(wl *kueue.Workload) bool {
		return !has(wl, kueue.WorkloadAdmitted) && checkOf(wl, gate.Name).State == kueue.CheckStateReady && checkOf(wl, theirs).State == kueue.CheckStatePending
	})
	answer(t, job, theirs, kueue.CheckStateReady)
	q.awaitStart(job, "2")
	awaitMessage(t, job, gate.Name, kueue.CheckStateReady, "The admission count was raised")
	if n := len(next.find("ungated admission")); n != 1 {
		t.Errorf("told %d times", n)
	}
	if all := seen.all(); len(all) > 0 {
		t.Errorf("seen: %q", all)
	}
	q.noSharedCount(job)
}
