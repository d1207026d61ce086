package integration

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

const lostLease = "dispatch-admission: lost the leader-election Lease"

// TestCrash: the leader dies at one of its two writes. The next one finishes what
// is left, and A rises once.
func TestCrash(t *testing.T) {
	for name, tc := range map[string]struct {
		at    func(*http.Request) bool
		count string // A when the leader dies
	}{
		"before the first write": {trainJobWrite, ""},
		"between the two writes": {checkWrite, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, unique("check"))
			p := newProxy(t)
			held := p.hold(q.in(tc.at))
			leader := startLeading(t, run{name: "leader", via: &p.endpoint, flags: brisk})
			mark := auditMark(t)
			job := q.submit(dispatchName())
			held.await(t)
			leader.kill()
			wantCount(t, job, tc.count)

			start(t, run{name: "next", flags: brisk})
			q.awaitStart(job, "1")
			wantCount(t, job, "1")
			if raises := audit(t, mark, writesTo("trainjobs", q.name)); len(raises) != 1 {
				t.Errorf("A was raised %d times", len(raises))
			}
		})
	}
}

// TestTakeOver: a candidate waits while the leader lives and serves after it.
// A leader that is told to stop does so with code 0 and keeps the Lease.
func TestTakeOver(t *testing.T) {
	q := newQueue(t, unique("check"))
	leader := startLeading(t, run{name: "first"})
	candidate := start(t, run{name: "second"})
	job := q.submit(dispatchName())
	q.awaitStart(job, "1")
	if lines := candidate.find("leading"); len(lines) > 0 {
		t.Errorf("two leaders: %q", lines)
	}

	leader.signal(syscall.SIGTERM)
	if code := leader.exit(15 * time.Second); code != 0 {
		t.Errorf("exit code %d on SIGTERM", code)
	}
	leader.await(time.Second, "stopped leading", "identity=first")
	var lease coordinationv1.Lease
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.DefaultLeaseName}, &lease); err != nil {
		t.Fatal(err)
	}
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" {
		t.Error("the Lease was released; the next leader could write beside a write in flight")
	}

	candidate.await(patience, "leading", "identity=second")
	setActive(t, job, false)
	q.awaitStopped(job)
	setActive(t, job, true)
	q.awaitStart(job, "2")
}

// TestPausedLeader: a leader is stopped in the middle of its second write for
// longer than the Lease lasts. The next leader finishes. The first one wakes up
// and must not change anything.
func TestPausedLeader(t *testing.T) {
	q := newQueue(t, unique("check"))
	p := newProxy(t)
	held := p.hold(q.in(checkWrite))
	paused := startLeading(t, run{name: "paused", via: &p.endpoint})
	job := q.submit(dispatchName())
	held.await(t)
	paused.signal(syscall.SIGSTOP)
	before := p.written()

	next := start(t, run{name: "next"})
	next.await(patience, "leading")
	q.awaitStart(job, "1")
	// Work that the paused leader has never heard of.
	setActive(t, job, false)
	q.awaitStopped(job)
	setActive(t, job, true)
	q.awaitStart(job, "2")

	close(held.release)
	paused.signal(syscall.SIGCONT)
	if code := paused.exit(patience); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if len(paused.find(lostLease)) == 0 {
		t.Errorf("%q is not on standard error", lostLease)
	}
	if after := p.written(); len(after) != len(before) {
		t.Errorf("the paused leader wrote after it woke up: %s", strings.Join(after[len(before):], ", "))
	}
	wantCount(t, job, "2")
	next.noNoise()
}

// TestLostLease: a leader whose Lease another one took ends with code 1.
func TestLostLease(t *testing.T) {
	leader := startLeading(t, run{name: "loser", flags: brisk})
	eventually(t, 10*time.Second, "somebody takes the Lease", func() error {
		var lease coordinationv1.Lease
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.DefaultLeaseName}, &lease); err != nil {
			return err
		}
		other := "somebody"
		lease.Spec.HolderIdentity = &other
		return shared.admin.Update(t.Context(), &lease)
	})
	if code := leader.exit(patience); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if len(leader.find(lostLease)) == 0 {
		t.Errorf("%q is not on standard error", lostLease)
	}
}

// TestEvictedBetweenWrites: the Workload is evicted after A was raised and before
// the check was answered. The answer must not land, and the next attempt gets
// its own A.
func TestEvictedBetweenWrites(t *testing.T) {
	check := unique("check")
	q := newQueue(t, check)
	p := newProxy(t)
	held := p.hold(q.in(checkWrite))
	gate := startLeading(t, run{name: "gate", via: &p.endpoint})
	job := q.submit(dispatchName())
	held.await(t)
	setActive(t, job, false)
	awaitWorkload(t, job, "loses its quota", func(wl *kueue.Workload) bool {
		return has(wl, kueue.WorkloadEvicted) && !has(wl, kueue.WorkloadQuotaReserved)
	})
	close(held.release)
	gate.await(10*time.Second, "level=INFO", "the workload changed before its checks were written")
	wl := awaitCheck(t, job, check, kueue.CheckStatePending)
	if !has(wl, kueue.WorkloadEvicted) {
		t.Errorf("the workload is not evicted: %s", describeWorkload(wl))
	}
	setActive(t, job, true)
	q.awaitStart(job, "2")
	gate.noNoise()
}
