package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// errNotYet is for what only needs time.
var errNotYet = errors.New("not yet")

// patience is how long a test waits for what the components do by themselves.
const patience = 60 * time.Second

// eventually waits until try returns nil.
func eventually(tb testing.TB, within time.Duration, what string, try func() error) {
	tb.Helper()
	if err := harness.Within(tb.Context(), within, what, try); err != nil {
		tb.Fatal(err)
	}
}

// hasAll tells whether a text has all of the words in it.
func hasAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// podWatch keeps every pod that a namespace ever had.
type podWatch struct {
	t    testing.TB
	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
	gone map[types.UID]bool
}

func watchPods(tb testing.TB, namespace string) *podWatch {
	tb.Helper()
	w := &podWatch{t: tb, pods: map[types.UID]*corev1.Pod{}, gone: map[types.UID]bool{}}
	harness.Follow(tb, shared.admin, &corev1.PodList{}, namespace, w.see)
	return w
}

func (w *podWatch) see(kind watch.EventType, pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[pod.UID] = pod
	if kind == watch.Deleted {
		w.gone[pod.UID] = true
	}
}

// live returns the pods that are neither gone nor going.
func (w *podWatch) live() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(w.pods)), func(p *corev1.Pod) bool {
		return w.gone[p.UID] || p.DeletionTimestamp != nil
	})
}

// all returns every pod that there ever was.
func (w *podWatch) all() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.pods))
}

// ofJob are the pods of a TrainJob.
func ofJob(job client.Object, pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return p.Labels["jobset.sigs.k8s.io/jobset-name"] != job.GetName()
	})
}

// awaitStart waits until both pods of a TrainJob are there and carry A. "" stands
// for pods without A.
func (q *queue) awaitStart(job client.Object, count string) {
	q.t.Helper()
	eventually(q.t, patience, fmt.Sprintf("two pods of %s carry A = %q", job.GetName(), count), func() error {
		pods := ofJob(job, q.pods.live())
		var seen []string
		for _, p := range pods {
			seen = append(seen, p.Annotations[v1alpha1.AdmissionCountAnnotation])
		}
		if len(pods) == 2 && seen[0] == count && seen[1] == count {
			return nil
		}
		return fmt.Errorf("pods carry %q; %s", seen, describe(q.t.Context(), job))
	})
}

// awaitStopped waits until no pod of a TrainJob is left.
func (q *queue) awaitStopped(job client.Object) {
	q.t.Helper()
	eventually(q.t, patience, "no pod is left", func() error {
		if left := ofJob(job, q.pods.live()); len(left) > 0 {
			return fmt.Errorf("%d pods", len(left))
		}
		return nil
	})
}

// noSharedCount fails the test if two starts of a TrainJob shared an A: a start
// has one pod per completion index.
func (q *queue) noSharedCount(job client.Object) {
	q.t.Helper()
	q.pods.mu.Lock()
	defer q.pods.mu.Unlock()
	seen := map[string]string{}
	for _, p := range ofJob(job, slices.Collect(maps.Values(q.pods.pods))) {
		key := "A " + p.Annotations[v1alpha1.AdmissionCountAnnotation] + " index " + p.Labels["batch.kubernetes.io/job-completion-index"]
		if other, ok := seen[key]; ok {
			q.t.Errorf("pods %s and %s both have %s", other, p.Name, key)
		}
		seen[key] = p.Name
	}
}

// awaitWorkload waits until the Workload of a job is as wanted and returns it.
func awaitWorkload(tb testing.TB, job client.Object, what string, ok func(*kueue.Workload) bool) *kueue.Workload {
	tb.Helper()
	var wl *kueue.Workload
	eventually(tb, patience, "the workload of "+job.GetName()+" "+what, func() (err error) {
		if wl, err = workloadOf(tb.Context(), job.GetNamespace(), job.GetUID()); err != nil {
			return err
		}
		if !ok(wl) {
			return fmt.Errorf("it does not: %s", describeWorkload(wl))
		}
		return nil
	})
	return wl
}

// awaitEvicted waits until Kueue has evicted a job.
func awaitEvicted(tb testing.TB, job client.Object) {
	tb.Helper()
	awaitWorkload(tb, job, "is evicted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadEvicted) })
}

// has tells whether a condition of a Workload is true.
func has(wl *kueue.Workload, condition string) bool {
	return meta.IsStatusConditionTrue(wl.Status.Conditions, condition)
}

// checkOf is a check's entry in a Workload; the zero entry if there is none.
func checkOf(wl *kueue.Workload, name string) kueue.AdmissionCheckState {
	for _, c := range wl.Status.AdmissionChecks {
		if string(c.Name) == name {
			return c
		}
	}
	return kueue.AdmissionCheckState{}
}

// awaitCheck waits until a check of a job's Workload has a state.
func awaitCheck(tb testing.TB, job client.Object, check string, state kueue.CheckState) *kueue.Workload {
	tb.Helper()
	return awaitWorkload(tb, job, fmt.Sprintf("has %s in state %s", check, state), func(wl *kueue.Workload) bool {
		return checkOf(wl, check).State == state
	})
}

// countOf is the A that a TrainJob has, "" if none.
func countOf(ctx context.Context, job client.Object) (string, error) {
	var got trainer.TrainJob
	if err := shared.admin.Get(ctx, client.ObjectKeyFromObject(job), &got); err != nil {
		return "", err
	}
	return countIn(&got), nil
}

func countIn(job *trainer.TrainJob) string {
	for _, p := range job.Spec.RuntimePatches {
		if p.Manager == v1alpha1.AdmissionManager {
			for _, r := range p.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
				return r.Template.Spec.Template.Metadata.Annotations[v1alpha1.AdmissionCountAnnotation]
			}
		}
	}
	return ""
}

// awaitCount waits until a TrainJob has an A.
func awaitCount(tb testing.TB, job client.Object, want string) {
	tb.Helper()
	eventually(tb, patience, "A = "+want, func() error {
		got, err := countOf(tb.Context(), job)
		if err == nil && got != want {
			err = fmt.Errorf("A = %q; %s", got, describe(tb.Context(), job))
		}
		return err
	})
}

// wantCount fails the test unless a TrainJob has an A now.
func wantCount(tb testing.TB, job client.Object, want string) {
	tb.Helper()
	if got, err := countOf(tb.Context(), job); err != nil || got != want {
		tb.Errorf("A = %q, error %v, want %q", got, err, want)
	}
}

// describe says for a failure where a job stands.
func describe(ctx context.Context, job client.Object) string {
	wl, err := workloadOf(ctx, job.GetNamespace(), job.GetUID())
	if err != nil {
		return err.Error()
	}
	return describeWorkload(wl)
}

func describeWorkload(wl *kueue.Workload) string {
	var b strings.Builder
	for _, c := range wl.Status.Conditions {
		fmt.Fprintf(&b, "%s=%s (%s: %s) ", c.Type, c.Status, c.Reason, c.Message)
	}
	for _, c := range wl.Status.AdmissionChecks {
		fmt.Fprintf(&b, "check %s %s %q ", c.Name, c.State, c.Message)
	}
	return b.String()
}
