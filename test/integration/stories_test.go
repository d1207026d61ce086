package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// holdAndRelease: quota is lost without an eviction, and Kueue leaves our answer
// standing. The job must not start on it.
func holdAndRelease(t *testing.T) {
	ours, theirs := unique("check"), unique("check")+"-foreign"
	q := newQueue(t, ours, theirs)
	job := q.submit(dispatchName())
	awaitCheck(t, job, ours, kueue.CheckStateReady)
	wantCount(t, job, "1")

	q.setStopPolicy(kueue.Hold)
	awaitWorkload(t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	awaitCheck(t, job, ours, kueue.CheckStatePending)
	q.setStopPolicy(kueue.None)
	awaitCount(t, job, "2")
	awaitCheck(t, job, ours, kueue.CheckStateReady)
	answer(t, job, theirs, kueue.CheckStateReady)
	q.awaitStart(job, "2")
}

// quotaLostWithinASecond does the same so fast that no time in the Workload
// shows that quota was gone.
func quotaLostWithinASecond(t *testing.T) {
	ours, theirs := unique("check"), unique("check")+"-foreign"
	q := newQueue(t, ours, theirs)
	job := q.submit(dispatchName())
	wl := awaitCheck(t, job, ours, kueue.CheckStateReady)

	count, sameSecond, quick := 1, 0, 0
	for count <= 60 && (sameSecond == 0 || count < 10) {
		before, began := reservedAt(wl), time.Now()
		q.setStopPolicy(kueue.Hold)
		awaitWorkload(t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
		q.setStopPolicy(kueue.None)
		count++
		awaitCount(t, job, fmt.Sprint(count))
		wl = awaitCheck(t, job, ours, kueue.CheckStateReady)
		if time.Since(began) < 700*time.Millisecond {
			quick++
		}
		if reservedAt(wl) == before {
			sameSecond++
		}
	}
	t.Logf("in %d of %d losses the reservation came back within the same second", sameSecond, count-1)
	if sameSecond == 0 && quick >= 20 { // a slower machine hardly can
		t.Error("no reservation came back within the second that this test is about")
	}
	answer(t, job, theirs, kueue.CheckStateReady)
	q.awaitStart(job, fmt.Sprint(count))
}

// holdRace: everything but our answer is ready when the queue opens again, so
// Kueue may start the job on an answer that is just being taken back. Either A
// rises first, or the start is found out.
func holdRace(t *testing.T) {
	ours, theirs := unique("check"), unique("check")+"-foreign"
	q := newQueue(t, ours, theirs)
	job := q.submit(dispatchName())
	awaitCheck(t, job, ours, kueue.CheckStateReady)
	q.setStopPolicy(kueue.Hold)
	awaitWorkload(t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	// The right moment for the race cannot be met on purpose: the foreign answer
	// is given at once, and again if Kueue writes over it.
	q.setStopPolicy(kueue.None)
	answer(t, job, theirs, kueue.CheckStateReady)
	awaitWorkload(t, job, "has quota", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadQuotaReserved) })
	answer(t, job, theirs, kueue.CheckStateReady)
	eventually(t, patience, "the job starts with a new A, or the start is told", func() error {
		pods := ofJob(job, q.pods.live())
		if len(pods) != 2 {
			return fmt.Errorf("%d pods; %s", len(pods), describe(t.Context(), job))
		}
		if pods[0].Annotations[v1alpha1.AdmissionCountAnnotation] == "2" || told(t, job) {
			return nil
		}
		return fmt.Errorf("A = %s and nobody tells", pods[0].Annotations[v1alpha1.AdmissionCountAnnotation])
	})
}

// startedPastKueue: somebody starts the TrainJob while its Workload waits for
// another check. Kueue stops it; the A that its pods carried is used up.
func startedPastKueue(t *testing.T, gate *program) {
	t.Helper()
	ours, theirs := unique("check"), unique("check")+"-foreign"
	q := newQueue(t, ours, theirs)
	job := q.submit(dispatchName())
	awaitCheck(t, job, ours, kueue.CheckStateReady)
	wantCount(t, job, "1")
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))
	// Kueue may stop it before the gate has looked, and before there is a pod. Where
	// there is one, the gate will see it, and another start would share its A.
	eventually(t, patience, "the gate sees that it runs", func() error {
		if len(gate.find("level=WARN", "ran before Kueue started it")) > 0 {
			return nil
		}
		if len(ofJob(job, q.pods.all())) == 0 {
			if err := shared.admin.Patch(t.Context(), job.DeepCopy(), patch); err != nil {
				return err
			}
			time.Sleep(200 * time.Millisecond) // for a pod to come, before another try
		}
		return errNotYet
	})
	answer(t, job, theirs, kueue.CheckStateReady)
	// A may leave a gap while the pods are being stopped, but not come back.
	eventually(t, patience, "two pods of Kueue's start carry a new A", func() error {
		pods := ofJob(job, q.pods.live())
		if len(pods) == 2 {
			a, b := pods[0].Annotations[v1alpha1.AdmissionCountAnnotation], pods[1].Annotations[v1alpha1.AdmissionCountAnnotation]
			if a == b && a > "1" {
				return nil
			}
		}
		return fmt.Errorf("%d pods; %s", len(pods), describe(t.Context(), job))
	})
	q.noSharedCount(job)
}

func reservedAt(wl *kueue.Workload) string {
	return meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved).LastTransitionTime.String()
}

func twoChecks(t *testing.T) {
	first, second := unique("check"), unique("check")
	mark := auditMark(t)
	q := newQueue(t, first, second)
	job := q.submit(dispatchName())
	q.awaitStart(job, "1")
	setActive(t, job, false)
	q.awaitStopped(job)
	setActive(t, job, true)
	q.awaitStart(job, "2")
	if raises := audit(t, mark, writesTo("trainjobs", q.name)); len(raises) != 2 {
		t.Errorf("A was written %d times for two starts", len(raises))
	}
}

func checkServedAtOnce(t *testing.T) {
	name := unique("check")
	newCheck(t, name)
	awaitActive(t, name, metav1.ConditionTrue, "ControllerStarted")
}

// awaitActive waits for what a check's condition Active says. It is written at once:
// the patience is shorter than the time between two passes.
func awaitActive(t *testing.T, name string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("check %s: Active is %s, %s", name, status, reason), func() error {
		var check kueue.AdmissionCheck
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: name}, &check); err != nil {
			return err
		}
		c := meta.FindStatusCondition(check.Status.Conditions, kueue.AdmissionCheckActive)
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
}

// checkAppearsLate: a check that is added to a queue with running jobs answers
// for them without touching them, and gates their next start.
func checkAppearsLate(t *testing.T) {
	check := unique("check")
	newCheck(t, check)
	q := newQueue(t)
	job := q.submit(dispatchName())
	q.awaitStart(job, "")
	eventually(t, patience, "the queue names the check", func() error {
		var cq kueue.ClusterQueue
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: q.name}, &cq); err != nil {
			return err
		}
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: kueue.AdmissionCheckReference(check)}}}
		return shared.admin.Update(t.Context(), &cq)
	})
	wl := awaitCheck(t, job, check, kueue.CheckStateReady)
	if m := checkOf(wl, check).Message; !strings.Contains(m, "already admitted") {
		t.Errorf("message %q", m)
	}
	wantCount(t, job, "")
	q.awaitStart(job, "")
	setActive(t, job, false)
	q.awaitStopped(job)
	setActive(t, job, true)
	q.awaitStart(job, "1")
}

// notGated: what is not a TrainJob of dispatch goes through unchanged.
func notGated(t *testing.T) {
	check := unique("check")
	mark := auditMark(t)
	q := newQueue(t, check)
	plain := q.batchJob("plain")
	wl := awaitCheck(t, plain, check, kueue.CheckStateReady)
	if m := checkOf(wl, check).Message; !strings.Contains(m, "Not gated") {
		t.Errorf("message %q", m)
	}
	awaitWorkload(t, plain, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	if err := shared.admin.Delete(t.Context(), plain, client.PropagationPolicy("Background")); err != nil {
		t.Fatal(err)
	}
	foreign := q.submit("somebody-elses")
	q.awaitStart(foreign, "")
	wantCount(t, foreign, "")
	if raises := audit(t, mark, writesTo("trainjobs", q.name)); len(raises) != 0 {
		t.Errorf("a foreign TrainJob was written: %v", raises)
	}
}

// names: which names and marks make a TrainJob dispatch's, as far as the API
// server lets such a name exist at all; the unit tests have the rest.
func names(t *testing.T) {
	const ulid = "01j9zzzzzzzzzzzzzzzzzzzzzz"
	q := newQueue(t, unique("check"))
	q.setQuota("30")
	marked := func(job *trainer.TrainJob) {
		job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, trainer.RuntimePatch{Manager: v1alpha1.DispatchManager})
	}
	cases := []struct {
		name   string
		change func(*trainer.TrainJob)
		want   string
	}{
		{"dj-" + ulid + "-s0", unchanged, "1"},
		{"dj-" + ulid + "-s12", unchanged, "1"},
		{"dj-7zzzzzzzzzzzzzzzzzzzzzzzzz-s1", unchanged, "1"},
		{"marked", marked, "1"},
		{"dj-8zzzzzzzzzzzzzzzzzzzzzzzzz-s1", unchanged, ""},
		{"dj-" + ulid[1:] + "-s1", unchanged, ""},
		{"dj-0" + ulid + "-s1", unchanged, ""},
		{"dj-01j9zzzzzzzzzzzzzzzzzzzzzi-s1", unchanged, ""},
		{"dj-01j9zzzzzzzzzzzzzzzzzzzzzl-s1", unchanged, ""},
		{"dj-01j9zzzzzzzzzzzzzzzzzzzzzo-s1", unchanged, ""},
		{"dj-01j9zzzzzzzzzzzzzzzzzzzzzu-s1", unchanged, ""},
		{"dj-" + ulid + "-s01", unchanged, ""},
		{"dj-" + ulid + "-s", unchanged, ""},
	}
	jobs := make([]*trainer.TrainJob, len(cases))
	for i, tc := range cases {
		jobs[i] = q.submit(tc.name, tc.change)
	}
	for i, tc := range cases {
		q.awaitStart(jobs[i], tc.want)
	}
	for _, bad := range []string{"dj-" + strings.ToUpper(ulid) + "-s1", "dj-" + ulid + "-s1-"} {
		if err := shared.admin.Create(t.Context(), q.trainJob(bad)); err == nil {
			t.Errorf("the API server takes the name %q; the unit tests say that it is not dispatch's", bad)
		}
	}
}

func (q *queue) setQuota(cpu string) {
	q.t.Helper()
	patch := client.RawPatch(types.JSONPatchType, fmt.Appendf(nil,
		`[{"op":"replace","path":"/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota","value":%q}]`, cpu))
	cq := &kueue.ClusterQueue{}
	cq.Name = q.name
	if err := shared.admin.Patch(q.t.Context(), cq, patch); err != nil {
		q.t.Fatal(err)
	}
}

// quickBounces turns a job off and on as fast as it goes, so that quota is back
// while Trainer still refuses a new count.
func quickBounces(t *testing.T) {
	check := unique("check")
	q := newQueue(t, check)
	job := q.submit(dispatchName())
	q.awaitStart(job, "1")
	var messages []string
	for count := 2; count <= 6; count++ {
		setActive(t, job, false)
		awaitEvicted(t, job)
		setActive(t, job, true)
		wl := awaitWorkload(t, job, "has quota again", func(wl *kueue.Workload) bool {
			return has(wl, kueue.WorkloadQuotaReserved) && !has(wl, kueue.WorkloadEvicted)
		})
		messages = append(messages, checkOf(wl, check).Message)
		q.awaitStart(job, fmt.Sprint(count))
	}
	q.noSharedCount(job)
	slices.Sort(messages)
	t.Logf("seen right after the reservations: %q", slices.Compact(messages))
}
