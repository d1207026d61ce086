package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// sideBySide runs stories of one running gate as subtests, as many at the same time
// as a small machine stands: most of their time they wait, but Kueue evicts a job
// whose pods take too long to run.
func sideBySide(t *testing.T, stories map[string]func(*testing.T)) {
	t.Helper()
	turns := make(chan struct{}, 6)
	var all sync.WaitGroup
	for name, story := range stories {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			t.Run(name, story)
		})
	}
	all.Wait()
}

// quick makes a held job be offered again every second or two.
func quick(s *v1alpha1.AdmissionGateSpec) { s.Hook.Hold.ReofferInterval = seconds(1) }

// noWait starts a job beside the pods of an earlier start.
func noWait(s *v1alpha1.AdmissionGateSpec) {
	no := false
	s.Readmission.WaitForPods = &no
}

// edit changes the ClusterQueue until it sticks.
func (q *queue) edit(change func(*kueue.ClusterQueueSpec)) {
	q.t.Helper()
	eventually(q.t, 10*time.Second, "the queue is edited", func() error {
		var cq kueue.ClusterQueue
		if err := shared.admin.Get(q.t.Context(), client.ObjectKey{Name: q.name}, &cq); err != nil {
			return err
		}
		change(&cq.Spec)
		return shared.admin.Update(q.t.Context(), &cq)
	})
}

// podsOf are the pods of a Job, JobSet or TrainJob among pods.
func podsOf(job client.Object, pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.Labels[batchv1.JobNameLabel] != job.GetName() && p.Labels[jobset.JobSetNameKey] != job.GetName()
	})
}

// awaitPods waits until a job has n live pods, and returns them.
func (q *queue) awaitPods(job client.Object, n int) []*corev1.Pod {
	q.t.Helper()
	var pods []*corev1.Pod
	eventually(q.t, patience, fmt.Sprintf("%s has %d pods", job.GetName(), n), func() error {
		if pods = podsOf(job, q.pods.live()); len(pods) != n {
			return fmt.Errorf("%d pods; %s", len(pods), describe(q.t.Context(), job))
		}
		return nil
	})
	return pods
}

// awaitRunning waits until a job has n pods and all run, and returns them.
func (q *queue) awaitRunning(job client.Object, n int) []*corev1.Pod {
	q.t.Helper()
	var pods []*corev1.Pod
	eventually(q.t, patience, fmt.Sprintf("%d pods of %s run", n, job.GetName()), func() error {
		pods = podsOf(job, q.pods.live())
		run := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning {
				run++
			}
		}
		if len(pods) != n || run != n {
			return fmt.Errorf("%d of %d pods run; %s", run, len(pods), describe(q.t.Context(), job))
		}
		return nil
	})
	return pods
}

// neverStarted fails the test if a job has ever had a pod.
func (q *queue) neverStarted(job client.Object) {
	q.t.Helper()
	if n := len(podsOf(job, q.pods.all())); n > 0 {
		q.t.Errorf("%s has had %d pods", job.GetName(), n)
	}
}

// restart has Kueue evict jobs and start them again.
func (q *queue) restart(jobs ...client.Object) {
	q.t.Helper()
	for _, job := range jobs {
		setActive(q.t, job, false)
	}
	for _, job := range jobs {
		awaitWorkload(q.t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	}
	for _, job := range jobs {
		setActive(q.t, job, true)
	}
}

// askedOnce fails the test if a hook was asked twice about one start. Kueue may have
// started the job again meanwhile.
func (h *testHook) askedOnce(job client.Object) {
	h.t.Helper()
	tries := map[int]bool{}
	for _, r := range h.asked(job) {
		if tries[r.TryNumber] {
			h.t.Errorf("the hook was asked twice about try %d of %s", r.TryNumber, job.GetName())
		}
		tries[r.TryNumber] = true
	}
}

// eventsOn returns the messages of the events with a reason on an object.
func eventsOn(tb testing.TB, namespace string, uid types.UID, reason string) []string {
	tb.Helper()
	var events corev1.EventList
	if err := shared.admin.List(tb.Context(), &events, client.InNamespace(namespace)); err != nil {
		tb.Fatal(err)
	}
	var messages []string
	for _, e := range events.Items {
		if e.InvolvedObject.UID == uid && e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// awaitEvents waits until the Workload of a job and the job itself have an event
// with a reason whose message has all the words.
func awaitEvents(tb testing.TB, job client.Object, reason string, words ...string) {
	tb.Helper()
	says := func(m string) bool {
		return hasAll(m, words)
	}
	eventually(tb, patience, "events "+reason+" with "+strings.Join(words, ", "), func() error {
		wl, err := workloadOf(tb.Context(), job.GetNamespace(), job.GetUID())
		if err != nil {
			return err
		}
		for _, uid := range []types.UID{wl.UID, job.GetUID()} {
			if m := eventsOn(tb, job.GetNamespace(), uid, reason); !slices.ContainsFunc(m, says) {
				return fmt.Errorf("on %s: %q; %s", uid, m, describeWorkload(wl))
			}
		}
		return nil
	})
}

// workloadWatch keeps every version of the Workloads of a namespace that the API
// server told of.
type workloadWatch struct {
	mu  sync.Mutex
	all []*kueue.Workload
}

func watchVersions(t *testing.T, namespace string) *workloadWatch {
	t.Helper()
	w := &workloadWatch{}
	harness.Follow(t, shared.admin, &kueue.WorkloadList{}, namespace, func(_ watch.EventType, wl *kueue.Workload) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all = append(w.all, wl)
	})
	return w
}

// of returns the versions of a job's Workloads so far.
func (w *workloadWatch) of(job client.Object) []*kueue.Workload {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.all), func(wl *kueue.Workload) bool {
		o := metav1.GetControllerOf(wl)
		return o == nil || o.UID != job.GetUID()
	})
}

// saysPending waits until the check of a job was Pending with a message, for however
// short a time.
func (w *workloadWatch) saysPending(t *testing.T, job client.Object, check, words string) {
	t.Helper()
	w.sees(t, job, fmt.Sprintf("%s says %q", check, words), func(wl *kueue.Workload) bool {
		return checkSays(wl, check, kueue.CheckStatePending, words)
	})
}

// sees waits until a version of a job's Workload was as wanted.
func (w *workloadWatch) sees(t *testing.T, job client.Object, what string, ok func(*kueue.Workload) bool) *kueue.Workload {
	t.Helper()
	var found *kueue.Workload
	eventually(t, patience, what, func() error {
		versions := w.of(job)
		i := slices.IndexFunc(versions, ok)
		if i < 0 {
			return fmt.Errorf("%d versions; %s", len(versions), describe(t.Context(), job))
		}
		found = versions[i]
		return nil
	})
	return found
}

// wantFinished fails the test if Kueue has finished the Workload of a job, which
// is how it takes updates that conflict, and for good.
func wantUnfinished(tb testing.TB, job client.Object) {
	tb.Helper()
	wl, err := workloadOf(tb.Context(), job.GetNamespace(), job.GetUID())
	if err != nil {
		tb.Error(err)
	} else if has(wl, kueue.WorkloadFinished) {
		tb.Errorf("Kueue has finished the workload of %s: %s", job.GetName(), describeWorkload(wl))
	}
}

// asJSON is for comparing and for showing.
func asJSON(tb testing.TB, v any) string {
	tb.Helper()
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}

// awaitRunning waits until pods run.
func awaitRunning(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		eventually(t, patience, "pod "+pod.Name+" runs", func() error {
			if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodRunning {
				return errNotYet
			}
			return nil
		})
	}
}
