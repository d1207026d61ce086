package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// TestWaitForPods has the stories of pods that take their time to end, side by side.
func TestWaitForPods(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	sideBySide(t, map[string]func(*testing.T){
		"Waits":        startsAfterThePods,
		"DoesNot":      startsBesideThePods,
		"Hooked":       asksAfterThePods,
		"PodTimeout":   opensInSpiteOfPods,
		"Bounces":      bouncesNeverOverlap,
		"EarlyBounces": earlyBouncesNeverOverlap,
	})
	quiet(gate)
}

// overlaps watches the pods of a namespace and remembers when a pod of one start
// appeared beside a live one of another. The API server tells of all pods in the
// order in which they changed, so what is seen is what was.
type overlaps struct {
	mu   sync.Mutex
	live map[types.UID]string // the A of pods that are neither Succeeded nor Failed
	seen []string
}

func watchOverlaps(t *testing.T, namespace string) *overlaps {
	t.Helper()
	o := &overlaps{live: map[types.UID]string{}}
	harness.Follow(t, shared.admin, &corev1.PodList{}, namespace, o.see)
	return o
}

func (o *overlaps) see(kind watch.EventType, pod *corev1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if kind == watch.Deleted || hasEnded(pod) {
		delete(o.live, pod.UID)
		return
	}
	count := pod.Annotations[v1alpha1.AdmissionCountAnnotation]
	if _, known := o.live[pod.UID]; !known {
		for _, other := range o.live {
			if other != count {
				o.seen = append(o.seen, fmt.Sprintf("a pod with A = %s beside one with A = %s", count, other))
			}
		}
	}
	o.live[pod.UID] = count
}

// all returns the overlaps so far.
func (o *overlaps) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.seen)
}

// awaitOne waits until an overlap was seen.
func (o *overlaps) awaitOne(t *testing.T) {
	t.Helper()
	eventually(t, patience, "pods of two starts overlap", func() error {
		if len(o.all()) == 0 {
			return errNotYet
		}
		return nil
	})
}

// slowQueue makes a queue of a gate without a hook. Its runtime, of the same name,
// has pods that go on for a while after they were deleted.
func slowQueue(t *testing.T, end string, changes ...gateChange) (*queue, *v1alpha1.AdmissionGate) {
	t.Helper()
	gate := newGate(t, nil, changes...)
	q := newHookedQueue(t, gate)
	q.newRuntime(twoNodes(q.name, cluster.TerminateAfter, end))
	return q, gate
}

// slow is a TrainJob of the queue's own runtime.
func (q *queue) slow() func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) { job.Spec.RuntimeRef.Name = q.name }
}

// startsAfterThePods: the second start begins only after the last pod of the first
// has ended, and until then the check says how many are left of which start.
func startsAfterThePods(t *testing.T) {
	q, gate := slowQueue(t, "12s")
	seen, versions := watchOverlaps(t, q.name), watchVersions(t, q.name)
	job := q.submit(dispatchName(), q.slow())
	q.awaitStart(job, "1")
	q.awaitRunning(job, 2)
	q.restart(job)
	q.awaitStart(job, "2")
	versions.sees(t, job, "the check says what it waits for", func(wl *kueue.Workload) bool {
		c := checkOf(wl, gate.Name)
		return has(wl, kueue.WorkloadQuotaReserved) && c.State == kueue.CheckStatePending &&
			c.Message == "Waiting for the pods of an earlier start to end: 2 pods of the start with admission count 1."
	})
	if all := seen.all(); len(all) > 0 {
		t.Errorf("seen: %q", all)
	}
	q.noSharedCount(job)
}

// startsBesideThePods is the same without waiting: the overlap can be seen, so the
// story before proves something.
func startsBesideThePods(t *testing.T) {
	q, _ := slowQueue(t, "30s", noWait)
	seen := watchOverlaps(t, q.name)
	job := q.submit(dispatchName(), q.slow())
	q.awaitStart(job, "1")
	q.awaitRunning(job, 2)
	q.restart(job)
	q.awaitStart(job, "2")
	seen.awaitOne(t)
}

// asksAfterThePods: the hook is not asked while the start cannot begin anyway.
func asksAfterThePods(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	q.newRuntime(twoNodes(q.name, cluster.TerminateAfter, "12s"))
	job := q.submit(dispatchName(), q.slow())
	q.awaitStart(job, "1")
	q.awaitRunning(job, 2)
	alive := make(chan []string, 1)
	h.does(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		left, err := podsAlive(ctx, q.name) // which is no older than what the gate has seen
		select {
		case alive <- left:
		default: // only the first time matters
		}
		return admission.Admit(), err
	})
	q.restart(job)
	q.awaitStart(job, "2")
	if left := <-alive; len(left) > 0 {
		t.Errorf("the hook was asked while the pods %v were alive", left)
	}
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// podsAlive names the pods of a namespace that have not ended.
func podsAlive(ctx context.Context, namespace string) ([]string, error) {
	var list corev1.PodList
	if err := shared.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var alive []string
	for i := range list.Items {
		if !hasEnded(&list.Items[i]) {
			alive = append(alive, list.Items[i].Name)
		}
	}
	return alive, nil
}

// opensInSpiteOfPods: after podTimeout the gate opens, with an event; A still tells
// the starts apart.
func opensInSpiteOfPods(t *testing.T) {
	q, gate := slowQueue(t, "30s", func(s *v1alpha1.AdmissionGateSpec) { s.Readmission.PodTimeout = seconds(10) })
	seen := watchOverlaps(t, q.name)
	job := q.submit(dispatchName(), q.slow())
	q.awaitStart(job, "1")
	q.awaitRunning(job, 2)
	versions := watchVersions(t, q.name)
	q.restart(job)
	versions.saysPending(t, job, gate.Name, "2 pods of the start with admission count 1")
	q.awaitStart(job, "2")
	awaitEvents(t, job, "PodTimeout", gate.Name, "2 pods of the start with admission count 1")
	seen.awaitOne(t) // so the pods were the reason to wait
	q.noSharedCount(job)
}

// bouncesNeverOverlap turns a job off and on again and again, each time its pods are
// there. No pod of a start may appear beside a live one of another.
func bouncesNeverOverlap(t *testing.T) {
	const bounces = 6
	q, _ := slowQueue(t, "1s")
	seen := watchOverlaps(t, q.name)
	job := q.submit(dispatchName(), q.slow())
	for count := 1; count <= bounces; count++ {
		q.awaitStart(job, fmt.Sprint(count))
		setActive(t, job, false)
		awaitEvicted(t, job)
		setActive(t, job, true)
	}
	q.awaitStart(job, fmt.Sprint(1+bounces))
	if all := seen.all(); len(all) > 0 {
		t.Errorf("seen: %q", all)
	}
	q.noSharedCount(job)
}

// earlyBouncesNeverOverlap turns a job off shortly after Kueue has admitted it, at
// once at first and each time somewhat later, and on again when its quota is gone.
// Kueue, Trainer and JobSet have not all heard of one when the other comes, so JobSet
// may let a Job make pods after the last of them was seen to end.
func earlyBouncesNeverOverlap(t *testing.T) {
	const bounces = 10
	q, _ := slowQueue(t, "1s")
	seen := watchOverlaps(t, q.name)
	events, err := shared.admin.Watch(t.Context(), &kueue.WorkloadList{}, client.InNamespace(q.name))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	job := q.submit(dispatchName(), q.slow())
	active, limit := true, time.After(5*patience)
	for n := 0; n < bounces; {
		select {
		case e := <-events.ResultChan():
			wl, ok := e.Object.(*kueue.Workload)
			if !ok || active != (wl.Spec.Active == nil || *wl.Spec.Active) {
				continue
			}
			if active && running(wl) || !active && !has(wl, kueue.WorkloadQuotaReserved) {
				if active = !active; !active {
					time.Sleep(time.Duration(n) * 120 * time.Millisecond)
				}
				patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"active":%t}}`, active))
				if err := shared.admin.Patch(t.Context(), wl.DeepCopy(), patch); err != nil {
					t.Fatal(err)
				}
				if active {
					n++
				}
			}
		case <-limit:
			t.Fatalf("%d bounces: %s", n, describe(t.Context(), job))
		}
	}
	q.awaitStart(job, fmt.Sprint(1+bounces))
	if all := seen.all(); len(all) > 0 {
		t.Errorf("seen: %q", all)
	}
	q.noSharedCount(job)
	t.Logf("%d pods in %d starts", len(ofJob(job, q.pods.all())), 1+bounces)
}

// TestPodsUnseen: where the gate may not see pods, it opens after podTimeout, and
// everything else works at once: jobs that start for the first time, hooks, the
// plain readmission gate.
func TestPodsUnseen(t *testing.T) {
	name := unique("blind")
	blindAccount(t, name)
	gates := startLeading(t, run{name: "gate", account: name})
	h := newHook(t, admission.AdmitWith(admission.Changes{Labels: map[string]string{"example.com/team": "ours"}}))
	gate := newGate(t, h, func(s *v1alpha1.AdmissionGateSpec) { s.Readmission.PodTimeout = seconds(5) })
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	plainQueue := newQueue(t, unique("check"))
	job, plain, ungated := q.submit(dispatchName()), q.batchJob("plain"), plainQueue.submit(dispatchName())
	began := time.Now()
	q.awaitStart(job, "1")
	q.awaitPods(plain, 2)
	plainQueue.awaitStart(ungated, "1")
	t.Logf("the first starts took %s", time.Since(began))
	versions := watchVersions(t, q.name)
	q.restart(job)
	plainQueue.restart(ungated)
	versions.saysPending(t, job, gate.Name, "Waiting until the pods of earlier starts are known")
	plainQueue.awaitStart(ungated, "2")
	q.awaitStart(job, "2")
	awaitEvents(t, job, "PodTimeout", gate.Name, "the pods of earlier starts are known")
	gates.await(patience, "level=ERROR", "pods")
	t.Log(strings.Join(gates.find("level=ERROR"), "\n"))
}

// blindAccount makes a ServiceAccount with the product's rights but those to pods.
func blindAccount(t *testing.T, name string) {
	t.Helper()
	limitedAccount(t, name, "nothing")
	var role rbacv1.ClusterRole
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: name}, &role); err != nil {
		t.Fatal(err)
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
	if err := shared.admin.Update(t.Context(), &role); err != nil {
		t.Fatal(err)
	}
}
