package integration

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestCost counts in the API server's audit log what the gate asks of it.
// Conflicts are made by others; each costs the write again, and one of a Workload
// a read.
func TestCost(t *testing.T) {
	const n = 12
	q := newQueue(t, unique("check"))
	q.setQuota("60")
	gate := startLeading(t, run{name: "gate", flags: []string{"-resync=1s"}})
	awaitQuiet(t)

	mark := auditMark(t)
	var jobs []client.Object
	for range n {
		jobs = append(jobs, q.submit(dispatchName()))
	}
	awaitAdmitted(t, jobs)
	c := costSince(t, mark)
	t.Logf("%d gated admissions: %+v", n, c)
	if c.trainJobs != n || c.checks != n || c.reads != c.checkConflicts || c.others != 0 {
		t.Errorf("%d gated admissions cost %+v, want one write each to TrainJob and Workload and no read", n, c)
	}

	mark = auditMark(t)
	jobs = nil
	for range n {
		jobs = append(jobs, q.batchJob(unique("plain")))
	}
	awaitAdmitted(t, jobs)
	c = costSince(t, mark)
	t.Logf("%d ungated admissions: %+v", n, c)
	if c.trainJobs != 0 || c.checks != n || c.reads != c.checkConflicts || c.others != 0 {
		t.Errorf("%d ungated admissions cost %+v, want one write each to the Workload and no read", n, c)
	}

	awaitQuiet(t)
	mark = auditMark(t)
	time.Sleep(5 * time.Second) // five full passes
	if c = costSince(t, mark); c != (cost{}) {
		t.Errorf("five idle passes cost %+v", c)
	}
	gate.noNoise()
}

// cost is what the gate asked of the API server, besides watches and the Lease.
type cost struct{ trainJobs, checks, jobConflicts, checkConflicts, reads, others int }

func costSince(t *testing.T, mark int64) cost {
	t.Helper()
	var c cost
	for _, r := range audit(t, mark, request.own) {
		switch {
		case r.ResponseStatus.Code == 409 && r.Target() == "trainjobs":
			c.jobConflicts++
		case r.ResponseStatus.Code == 409:
			c.checkConflicts++
		case !r.Writes():
			c.reads++
		case r.Target() == "trainjobs":
			c.trainJobs++
		case r.Target() == "workloads/status":
			c.checks++
		default:
			c.others++
			t.Logf("%s %s: %d", r.Verb, r.RequestURI, r.ResponseStatus.Code)
		}
	}
	return c
}

// awaitQuiet waits until the gate has asked for nothing for two seconds.
func awaitQuiet(t *testing.T) {
	t.Helper()
	eventually(t, patience, "the gate is quiet", func() error {
		mark := auditMark(t)
		time.Sleep(2 * time.Second)
		if costSince(t, mark) != (cost{}) {
			return errNotYet
		}
		return nil
	})
}

func awaitAdmitted(t *testing.T, jobs []client.Object) {
	t.Helper()
	for _, job := range jobs {
		awaitWorkload(t, job, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	}
}
