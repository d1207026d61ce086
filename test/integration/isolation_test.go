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
// delay no Workload of a plain check, and none of another gate, in the same process.
// What those take is measured by turns without the 200 and beside them, one Workload
// after the other, and medians are compared. The aim is a ratio of 1.2 or less, which is
// printed. On two cores the writes about those that hang, and whatever else runs, can
// make it look worse; more turns are taken then, and only twice as long is a failure. A
// Workload that waits for the hook in any way would take many times as long.
func TestIsolation(t *testing.T) {
	const atLeast, atMost = 2, 6
	gate := startLeading(t, run{name: "gate"})
	hangs, hung := hangingQueue(t)
	others := []*neighbour{
		{name: "a plain check", queue: newQueue(t, unique("check"))},
		{name: "another gate", queue: newHookedQueue(t, newGate(t, newHook(t, admission.Admit())))},
	}
	for _, n := range others {
		n.queue.setQuota("1000")
	}
	worst := 0.0
	for turn := range atMost {
		hangs.setStopPolicy(kueue.Hold)
		hangs.awaitReserving(0)
		for _, n := range others {
			n.alone = append(n.alone, n.queue.waits(fmt.Sprint("alone-", turn), neighbours)...)
		}
		hangs.setStopPolicy(kueue.None)
		hangs.awaitReserving(hangingWorkloads)
		hangs.awaitAsking(hangingWorkloads)
		for _, n := range others {
			n.beside = append(n.beside, n.queue.waits(fmt.Sprint("beside-", turn), neighbours)...)
		}
		hangs.awaitReserving(hangingWorkloads)
		eventually(t, patience, "as many calls of the hook hang as may", func() error {
			if n := hung.Load(); n < hookCalls {
				return fmt.Errorf("%d do", n)
			}
			return nil
		})
		worst = 0
		for _, n := range others {
			worst = max(worst, n.compare(t))
		}
		if turn+1 >= atLeast && worst <= 1.2 {
			break
		}
	}
	if worst > 2 {
		t.Errorf("a neighbour takes %.2f times as long beside a hanging hook", worst)
	}
	for _, line := range gate.find("level=ERROR") {
		t.Errorf("the gate logged: %s", line)
	}
}

// neighbours is how many Workloads of each neighbour are measured at a turn.
const neighbours = 60

// neighbour is who must not be delayed.
type neighbour struct {
	name          string
	queue         *queue
	alone, beside []time.Duration
}

// compare logs what a neighbour takes and returns the ratio of the medians.
func (n *neighbour) compare(t *testing.T) float64 {
	t.Helper()
	ratio := float64(percentile(n.beside, 50)) / float64(percentile(n.alone, 50))
	t.Logf("%s, from the gate's turn to Ready, medians of %d Workloads each: %s alone, %s beside %d that wait for a hanging hook, ratio %.2f; 95th percentiles %s and %s",
		n.name, len(n.alone), percentile(n.alone, 50), percentile(n.beside, 50), hangingWorkloads, ratio, percentile(n.alone, 95), percentile(n.beside, 95))
	return ratio
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
func wait(tb testing.TB, events watch.Interface, wl *kueue.Workload) time.Duration {
	tb.Helper()
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
			tb.Fatalf("%s is not Ready", wl.Name)
		}
	}
}

func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)*p/100]
}
