package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// holdHook is a hook that decides by the job and notes when it is asked.
type holdHook struct {
	*testHook
	mu    sync.Mutex
	at    map[string][]time.Time
	rules map[string]admission.HookFunc
}

// newHoldHook serves a hook that admits every job that no rule is for.
func newHoldHook(t *testing.T) *holdHook {
	t.Helper()
	h := &holdHook{testHook: newHook(t, admission.Admit()), at: map[string][]time.Time{}, rules: map[string]admission.HookFunc{}}
	h.does(func(ctx context.Context, r *admission.Request) (admission.Decision, error) {
		h.mu.Lock()
		h.at[r.Job.Name] = append(h.at[r.Job.Name], time.Now())
		rule := h.rules[r.Job.Name]
		h.mu.Unlock()
		if rule == nil {
			return admission.Admit(), nil
		}
		return rule(ctx, r)
	})
	return h
}

// rule makes the hook do f about one job from now on.
func (h *holdHook) rule(name string, f admission.HookFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rules[name] = f
}

// decides makes the hook answer d about one job from now on.
func (h *holdHook) decides(name string, d admission.Decision) {
	h.rule(name, func(context.Context, *admission.Request) (admission.Decision, error) { return d, nil })
}

// times are those at which the hook was asked about a job.
func (h *holdHook) times(job client.Object) []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.at[job.GetName()])
}

// holdTimes sets the first interval between offers, and how long quota is kept.
func holdTimes(reoffer, keep int) gateChange {
	return func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook.Hold.ReofferInterval, s.Hook.Hold.KeepQuotaFor = seconds(reoffer), seconds(keep)
	}
}

// window sets how long a job may be held.
func window(n int) gateChange {
	return func(s *v1alpha1.AdmissionGateSpec) { s.Hook.Hold.Window = seconds(n) }
}

// versions returns those of a job's Workload, up to its present one.
func versions(t *testing.T, w *workloadWatch, job client.Object) []*kueue.Workload {
	t.Helper()
	now, err := workloadOf(t.Context(), job.GetNamespace(), job.GetUID())
	if err != nil {
		t.Fatal(err)
	}
	w.sees(t, job, "the watch has told of the present version", func(wl *kueue.Workload) bool {
		return wl.ResourceVersion == now.ResourceVersion
	})
	return w.of(job)
}

// noEarlyOffer sees that a job never got quota before the time that Kueue was to
// wait for, and returns how often it got quota. Times are whole seconds.
func noEarlyOffer(t *testing.T, w *workloadWatch, job client.Object) (reservations int) {
	t.Helper()
	var until time.Time
	before := &kueue.Workload{}
	for _, wl := range versions(t, w, job) {
		if has(wl, kueue.WorkloadQuotaReserved) && !has(before, kueue.WorkloadQuotaReserved) {
			reservations++
			if at := conditionOf(wl, kueue.WorkloadQuotaReserved).LastTransitionTime; at.Time.Before(until) {
				t.Errorf("quota was reserved at %s, before %s", at, until)
			}
		}
		if at := requeueAt(wl); !at.IsZero() {
			until = at
		}
		before = wl
	}
	return reservations
}

// requeueAt is until when Kueue keeps a Workload out of the queue; zero if it does
// not.
func requeueAt(wl *kueue.Workload) time.Time {
	if s := wl.Status.RequeueState; s != nil && s.RequeueAt != nil {
		return s.RequeueAt.Time
	}
	return time.Time{}
}

// parked tells whether a Workload is without quota and out of the queue for a
// while, with nothing in the way of its next offer.
func parked(wl *kueue.Workload) bool {
	return has(wl, kueue.WorkloadEvicted) && !has(wl, kueue.WorkloadQuotaReserved) && !requeueAt(wl).IsZero() &&
		!slices.ContainsFunc(wl.Status.AdmissionChecks, func(c kueue.AdmissionCheckState) bool { return c.State != kueue.CheckStatePending })
}

// awaitParked waits until a held job has given its quota back.
func awaitParked(t *testing.T, job client.Object) *kueue.Workload {
	t.Helper()
	return awaitWorkload(t, job, "has given its quota back", parked)
}

// awaitHeld waits until a check is held for a reason, on quota.
func awaitHeld(t *testing.T, job client.Object, check, reason string) *kueue.Workload {
	t.Helper()
	return awaitWorkload(t, job, "is held on quota", func(wl *kueue.Workload) bool {
		c := checkOf(wl, check)
		return c.State == kueue.CheckStatePending && strings.Contains(c.Message, reason) && has(wl, v1alpha1.WorkloadHeld) && has(wl, kueue.WorkloadQuotaReserved)
	})
}

// awaitCalledHeld waits until people can read that a job is held, and why. It may have
// given its quota back in the same write.
func awaitCalledHeld(t *testing.T, job client.Object, reason string) *kueue.Workload {
	t.Helper()
	return awaitWorkload(t, job, "is called held", func(wl *kueue.Workload) bool {
		c := conditionOf(wl, v1alpha1.WorkloadHeld)
		return c.Status == metav1.ConditionTrue && strings.Contains(c.Message, reason)
	})
}

// wantHeld sees that a Workload says all along what holds it, and since when.
func wantHeld(t *testing.T, wl *kueue.Workload, check, reason string, since metav1.Time) {
	t.Helper()
	c := conditionOf(wl, v1alpha1.WorkloadHeld)
	if c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, reason) || !c.LastTransitionTime.Equal(&since) ||
		!strings.Contains(c.Message, "Held since "+since.UTC().Format(time.RFC3339)) {
		t.Errorf("condition Held since %s: %s; want it since %s, with %q", c.LastTransitionTime, c.Message, since, reason)
	}
	if e := checkOf(wl, check); e.State != kueue.CheckStatePending || !strings.Contains(e.Message, reason) {
		t.Errorf("check %s %q, want it Pending with %q", e.State, e.Message, reason)
	}
}

// noted is what a Workload keeps of the hold of a check beside its status: since when,
// and how often the job has been offered; "" and 0 if nothing.
func noted(t *testing.T, wl *kueue.Workload, check string) (since string, offers int) {
	t.Helper()
	var book struct {
		Checks map[string]struct {
			Since  string
			Offers int
		}
	}
	text, ok := wl.Annotations[v1alpha1.HoldAnnotation]
	if !ok {
		return "", 0
	}
	if err := json.Unmarshal([]byte(text), &book); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return book.Checks[check].Since, book.Checks[check].Offers
}

// wantNoted sees that a hold goes on as it was noted before, if the job was called held
// then: what is noted counts from there on.
func wantNoted(t *testing.T, before, after *kueue.Workload, check string) {
	t.Helper()
	if !has(before, v1alpha1.WorkloadHeld) {
		return
	}
	since, offers := noted(t, before, check)
	if s, n := noted(t, after, check); s != since || n < offers {
		t.Errorf("held since %s and offered %d times, was since %s and %d times", s, n, since, offers)
	}
	if shown := sinceOf(after).UTC().Format(time.RFC3339); shown != since {
		t.Errorf("people are told that it is held since %s, want %s", shown, since)
	}
}

// sinceOf is when the hold of a Workload began, as people see it.
func sinceOf(wl *kueue.Workload) metav1.Time {
	return conditionOf(wl, v1alpha1.WorkloadHeld).LastTransitionTime
}

// evictions are what Kueue has counted.
func evictions(wl *kueue.Workload) (n int) {
	if s := wl.Status.SchedulingStats; s != nil {
		for _, e := range s.Evictions {
			n += int(e.Count)
		}
	}
	return n
}

// tooBig needs more than the queue has, so it waits for ever, and others see that
// somebody waits.
func (q *queue) tooBig() *batchv1.Job {
	q.t.Helper()
	job := q.batchJob(unique("too-big"), func(job *batchv1.Job) {
		five := int32(5)
		job.Spec.Parallelism, job.Spec.Completions = &five, &five
	})
	q.awaitWaiting(1)
	return job
}

// awaitWaiting waits until Kueue tells that n Workloads wait at least.
func (q *queue) awaitWaiting(n int32) {
	q.t.Helper()
	eventually(q.t, patience, fmt.Sprintf("%d workloads wait in the queue", n), func() error {
		var cq kueue.ClusterQueue
		if err := shared.admin.Get(q.t.Context(), client.ObjectKey{Name: q.name}, &cq); err != nil {
			return err
		}
		if cq.Status.PendingWorkloads < n {
			return fmt.Errorf("%d wait", cq.Status.PendingWorkloads)
		}
		return nil
	})
}

// shortJob runs for a moment and ends.
func (q *queue) shortJob() *batchv1.Job {
	q.t.Helper()
	return q.batchJob(unique("short"), func(job *batchv1.Job) {
		job.Spec.Template.Annotations = map[string]string{cluster.RunAfter: "10ms", cluster.CompleteAfter: "10ms"}
	})
}

func awaitFinished(t *testing.T, job client.Object) {
	t.Helper()
	awaitWorkload(t, job, "is finished", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadFinished) })
}

// remove deletes a job and does not wait.
func remove(t *testing.T, job client.Object) {
	t.Helper()
	if err := shared.admin.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
}

// eventsOf are the events about an object, of some reasons; of all if none is
// given.
func eventsOf(t *testing.T, namespace, kind, name string, reasons ...string) []corev1.Event {
	t.Helper()
	var list corev1.EventList
	if err := shared.admin.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name || len(reasons) > 0 && !slices.Contains(reasons, e.Reason)
	})
}

// running tells whether Kueue has started a Workload.
func running(wl *kueue.Workload) bool {
	return meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted)
}

// tale is a story with its name.
type tale struct {
	name string
	tell func(*testing.T)
}

// manyAtOnce runs stories as subtests, the first ones first, and several at the same
// time however few processors there are: most of their time they wait.
func manyAtOnce(t *testing.T, stories ...tale) {
	t.Helper()
	const atOnce = 6
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, story := range stories {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			t.Run(story.name, story.tell)
		})
	}
	all.Wait()
}

// quiet fails the test for every warning or error in the log of a program, but for
// those at the end of a story: it takes the gate away, then the program may still
// see a check that names it.
func quiet(p *program) {
	p.t.Helper()
	for _, line := range p.out.all() {
		if errorLevel.MatchString(line) && !strings.Contains(line, "the check cannot be served") && !strings.Contains(line, "the gate cannot be used") {
			p.t.Errorf("%s logged: %s", p.name, line)
		}
	}
}
