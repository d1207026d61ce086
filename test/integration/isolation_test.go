package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// hangingWorkloads is how many wait for the hook that hangs.
const hangingWorkloads = 200

// TestIsolation: 200 Workloads wait for a hook that hangs for its whole timeout, and
// delay no Workload of another check in the same process. What a plain check takes
// is measured by turns without them and beside them, one Workload after the other,
// and medians are compared. The aim is a ratio of 1.2 or less, which is printed. On two
// cores the writes about those that hang, and whatever else runs, can make it look
// worse; more turns are taken then, and only twice as long is a failure. A Workload that
// waits for the hook in any way would take many times as long.
func TestIsolation(t *testing.T) {
	const atLeast, atMost, each = 2, 6, 60
	gate := startLeading(t, run{name: "gate"})
	hangs, hung := hangingQueue(t)
	plain := newQueue(t, unique("check"))
	plain.setQuota("1000")
	var alone, beside []time.Duration
	ratio := 0.0
	for turn := range atMost {
		hangs.setStopPolicy(kueue.Hold)
		hangs.awaitReserving(0)
		alone = append(alone, plain.waits(fmt.Sprint("alone-", turn), each)...)
		hangs.setStopPolicy(kueue.None)
		hangs.awaitReserving(hangingWorkloads)
		hangs.awaitAsking(hangingWorkloads)
		beside = append(beside, plain.waits(fmt.Sprint("beside-", turn), each)...)
		hangs.awaitReserving(hangingWorkloads)
		eventually(t, patience, "as many calls of the hook hang as may", func() error {
			if n := hung.Load(); n < 16 {
				return fmt.Errorf("%d do", n)
			}
			return nil
		})
		ratio = float64(percentile(beside, 50)) / float64(percentile(alone, 50))
		t.Logf("from the gate's turn to Ready, medians of %d Workloads each: %s alone, %s beside %d that wait for a hanging hook, ratio %.2f; 95th percentiles %s and %s",
			len(alone), percentile(alone, 50), percentile(beside, 50), hangingWorkloads, ratio, percentile(alone, 95), percentile(beside, 95))
		if turn+1 >= atLeast && ratio <= 1.2 {
			break
		}
	}
	if ratio > 2 {
		t.Errorf("the plain check takes %.2f times as long beside a hanging hook", ratio)
	}
	for _, line := range gate.find("level=ERROR") {
		t.Errorf("the gate logged: %s", line)
	}
}

// hangingQueue makes a queue of a gate whose hook hangs and is never skipped, with
// all its Workloads, and tells how many calls hang.
func hangingQueue(t *testing.T) (*queue, *atomic.Int64) {
	t.Helper()
	hung := &atomic.Int64{}
	h := newHook(t, admission.Admit())
	h.does(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		hung.Add(1)
		defer hung.Add(-1)
		<-ctx.Done()
		return admission.Decision{}, ctx.Err()
	})
	q := newHookedQueue(t, newGate(t, h, func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook.Timeout, s.Hook.Breaker.Failures = seconds(10), 1000
	}))
	q.setQuota("1000")
	q.setStopPolicy(kueue.Hold)
	for i := range hangingWorkloads {
		q.workload(fmt.Sprint("hangs-", i))
	}
	return q, hung
}

// workload makes a Workload without a job, of one pod of one CPU.
func (q *queue) workload(name string) *kueue.Workload {
	q.t.Helper()
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: q.name}, Spec: kueue.WorkloadSpec{
		QueueName: "lq", PodSets: []kueue.PodSet{{Name: "main", Count: 1, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "example.com/job:1", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
		}}}}}}
	if err := shared.admin.Create(q.t.Context(), wl); err != nil {
		q.t.Fatal(err)
	}
	return wl
}

// awaitReserving waits until n Workloads of the queue have quota.
func (q *queue) awaitReserving(n int32) {
	q.t.Helper()
	eventually(q.t, 2*patience, fmt.Sprintf("%d workloads have quota", n), func() error {
		var cq kueue.ClusterQueue
		if err := shared.admin.Get(q.t.Context(), client.ObjectKey{Name: q.name}, &cq); err != nil {
			return err
		}
		if cq.Status.ReservingWorkloads != n {
			return fmt.Errorf("%d have", cq.Status.ReservingWorkloads)
		}
		return nil
	})
}

// awaitAsking waits until the checks of n Workloads say that the hook has not
// answered yet; then nothing moves but the calls that hang.
func (q *queue) awaitAsking(n int) {
	q.t.Helper()
	eventually(q.t, patience, fmt.Sprintf("%d workloads wait for an answer", n), func() error {
		var list kueue.WorkloadList
		if err := shared.admin.List(q.t.Context(), &list, client.InNamespace(q.name)); err != nil {
			return err
		}
		ask := 0
		for i := range list.Items {
			for _, c := range list.Items[i].Status.AdmissionChecks {
				if strings.Contains(c.Message, "Waiting for the answer of the hook") || strings.Contains(c.Message, "gave no verdict") {
					ask++
				}
			}
		}
		if ask != n {
			time.Sleep(200 * time.Millisecond) // a list of all is no small thing to ask for
			return fmt.Errorf("%d do", ask)
		}
		return nil
	})
}

// waits has n Workloads admitted, one after the other, and returns how long each
// took from the gate's turn to its check being Ready, as a watch shows it. Some come
// first that do not count.
func (q *queue) waits(prefix string, n int) []time.Duration {
	q.t.Helper()
	const warm = 10
	events, err := shared.admin.Watch(q.t.Context(), &kueue.WorkloadList{}, client.InNamespace(q.name))
	if err != nil {
		q.t.Fatal(err)
	}
	defer events.Stop()
	var all []time.Duration
	for i := range warm + n {
		wl := q.workload(fmt.Sprintf("%s-%d", prefix, i))
		all = append(all, wait(q.t, events, wl))
	}
	return all[warm:]
}

// wait returns how long a Workload takes from when it is the gate's turn, which is
// when it has quota and the check, to Ready. What comes before is Kueue's time.
func wait(t *testing.T, events watch.Interface, wl *kueue.Workload) time.Duration {
	t.Helper()
	var turn time.Time
	limit := time.After(patience)
	for {
		select {
		case e := <-events.ResultChan():
			seen, ok := e.Object.(*kueue.Workload)
			if !ok || seen.UID != wl.UID || !has(seen, kueue.WorkloadQuotaReserved) || len(seen.Status.AdmissionChecks) != 1 {
				continue
			}
			if turn.IsZero() {
				turn = time.Now()
			}
			if seen.Status.AdmissionChecks[0].State == kueue.CheckStateReady {
				return time.Since(turn)
			}
		case <-limit:
			t.Fatalf("%s is not Ready", wl.Name)
		}
	}
}

func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)*p/100]
}
