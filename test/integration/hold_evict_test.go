package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// evictedStories: the Workload is evicted at every step of a hook call and of what
// follows it. Nothing that was meant for the attempt before reaches the next, no A
// is shared, and the job runs in the end.
func evictedStories(p *proxy, metrics string) []tale {
	stories := []tale{
		{"BeforeCall", evictedBeforeCall},
		{"LateAnswer", lateAnswer},
		{"CallGivenUp", func(t *testing.T) { callGivenUp(t, metrics) }},
		{"AfterAnswer", func(t *testing.T) { evictedAfterAnswer(t, p) }},
		{"AfterRaise", func(t *testing.T) { evictedAfterRaise(t, p) }},
		{"RequeuedMeanwhile", func(t *testing.T) { requeuedMeanwhile(t, p) }},
		{"TimeComesMeanwhile", func(t *testing.T) { timeComesMeanwhile(t, p) }},
		{"InactiveMeanwhile", func(t *testing.T) { inactiveMeanwhile(t, p) }},
	}
	for name, at := range holdSteps {
		stories = append(stories, tale{"EvictedAt" + name, func(t *testing.T) { evictedAtStep(t, p, at.write, at.crowded) }})
	}
	return stories
}

// evictAndRequeue has a job evicted, which is when meanwhile is called, and gives it
// quota again.
func evictAndRequeue(t *testing.T, job client.Object, meanwhile func()) {
	t.Helper()
	setActive(t, job, false)
	awaitWorkload(t, job, "is evicted and has lost its quota", func(wl *kueue.Workload) bool {
		return has(wl, kueue.WorkloadEvicted) && !has(wl, kueue.WorkloadQuotaReserved)
	})
	meanwhile()
	setActive(t, job, true)
}

// hookCalls is how many calls of a hook the gate makes at once.
const hookCalls = 16

// evictedBeforeCall: the job is evicted while its question waits behind as many others
// as the hook is asked at once. The hook never hears of that attempt.
func evictedBeforeCall(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, patiently)
	q := newHookedQueue(t, gate)
	others, release := newQueueOf(t, gate.Name), make(chan struct{})
	others.setQuota("40")
	var busy []client.Object
	for i := range hookCalls {
		name := fmt.Sprint("other-", i)
		h.rule(name, func(context.Context, *admission.Request) (admission.Decision, error) {
			<-release
			return admission.Admit(), nil
		})
		busy = append(busy, others.batchJob(name))
	}
	for _, other := range busy {
		h.awaitAsked(other, 1)
	}
	job := q.submit(dispatchName())
	awaitWorkload(t, job, "has quota and waits for the hook", func(wl *kueue.Workload) bool {
		return has(wl, kueue.WorkloadQuotaReserved) && checkOf(wl, gate.Name).Message != ""
	})
	evictAndRequeue(t, job, func() {
		if n := len(h.times(job)); n > 0 {
			t.Errorf("the hook was asked %d times although it was busy", n)
		}
	})
	close(release)
	q.awaitStart(job, "1")
	wantTries(t, h, job, 1)
}

// evictedAfterAnswer: the hook has answered with changes, and the job is evicted before
// anything of the answer is written. The hook has no changes for the next attempt, and
// nothing is left of the first answer.
func evictedAfterAnswer(t *testing.T, p *proxy) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook)
	q := newHookedQueue(t, gate)
	name := dispatchName()
	h.decides(name, label("first"))
	held := p.hold(q.in(trainJobWrite))
	job := q.submit(name)
	held.await(t)
	wantCount(t, job, "")
	h.decides(name, admission.Admit())
	evictAndRequeue(t, job, func() { close(held.release) })
	wl := awaitWorkload(t, job, "runs", running)
	if updates := checkOf(wl, gate.Name).PodSetUpdates; len(updates) > 0 {
		t.Errorf("of the first answer are left %+v", updates)
	}
	for _, pod := range q.awaitPods(job, 2) {
		if team, ok := pod.Labels["example.com/team"]; ok {
			t.Errorf("a pod has the label %q of the first answer", team)
		}
		if pod.Annotations[v1alpha1.AdmissionCountAnnotation] == "" {
			t.Error("a pod has no admission count")
		}
	}
	q.noSharedCount(job)
}

// lateAnswer: the hook is still thinking about the first attempt when the job is
// evicted and gets quota anew. It is asked about the second attempt; its answer to
// the first, which comes after that and would refuse the job, counts for nothing.
func lateAnswer(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, patiently)
	q := newHookedQueue(t, gate)
	name, release, second := dispatchName(), make(chan struct{}), make(chan struct{})
	h.rule(name, func(context.Context, *admission.Request) (admission.Decision, error) {
		switch len(h.times(q.trainJob(name))) {
		case 1:
			<-release // whoever asked has gone by then
			return admission.Refuse("meant for an attempt that is no more"), nil
		case 2:
			close(release)
			<-second
		}
		return admission.Admit(), nil
	})
	job := q.submit(name)
	h.awaitAsked(job, 1)
	evictAndRequeue(t, job, func() {})
	h.awaitAsked(job, 2)
	close(second)
	q.awaitStart(job, "1")
	wantNotRefused(t, job)
	wantTries(t, h, job, 1, 1)
	q.noSharedCount(job)
}

// patiently gives the hook all the time there is.
func patiently(s *v1alpha1.AdmissionGateSpec) { s.Hook.Timeout = seconds(30) }

// callGivenUp: the job is evicted while the hook is thinking. The hook is told that
// nobody waits for its answer any more, even before the job has quota again, and is
// asked about the next attempt.
func callGivenUp(t *testing.T, metrics string) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, patiently)
	q := newHookedQueue(t, gate)
	name, told := dispatchName(), make(chan struct{})
	h.rule(name, func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		<-ctx.Done()
		close(told)
		return admission.Refuse("meant for an attempt that is no more"), nil
	})
	job := q.submit(name)
	h.awaitAsked(job, 1)
	evictAndRequeue(t, job, func() {
		select {
		case <-told:
		case <-time.After(patience / 4):
			t.Error("the hook was not told that nobody waits")
		}
		h.decides(name, admission.Admit())
	})
	q.awaitStart(job, "1")
	wantNotRefused(t, job)
	wantTries(t, h, job, 1, 1)
	for _, result := range []string{"Canceled", "Admit"} {
		want := fmt.Sprintf("dispatch_admission_hook_calls_total{gate=%q,result=%q} 1\n", gate.Name, result)
		if !strings.Contains(scrape(t, metrics), want) {
			t.Errorf("the metrics do not say %s", want)
		}
	}
}

func wantNotRefused(t *testing.T, job client.Object) {
	t.Helper()
	wl := awaitWorkload(t, job, "runs", running)
	if conditionOf(wl, v1alpha1.WorkloadRefused).Type != "" {
		t.Errorf("it was refused once: %s", describeWorkload(wl))
	}
}

// wantTries wants the hook to have been asked about the attempts of a job by these
// numbers.
func wantTries(t *testing.T, h *holdHook, job client.Object, want ...int) {
	t.Helper()
	var got []int
	for _, r := range h.asked(job) {
		got = append(got, r.TryNumber)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the hook was asked about tries %v, want %v", got, want)
	}
}

// evictedAfterRaise: the hook admits, A is raised, and the job is evicted before
// its check says so. The hook is asked about the next attempt, which gets an A of
// its own.
func evictedAfterRaise(t *testing.T, p *proxy) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook)
	q := newHookedQueue(t, gate)
	held := p.hold(q.in(checkWrite))
	job := q.submit(dispatchName())
	held.await(t)
	wantCount(t, job, "1")
	evictAndRequeue(t, job, func() { close(held.release) })
	q.awaitStart(job, "2")
	wantTries(t, h, job, 1, 2)
	q.noSharedCount(job)
}

// step is a write that holding a job, or giving its quota back, takes.
type step func(*http.Request) bool

// holdSteps are those at which the job still has quota, or may have it again, and
// whether somebody waits for it.
var holdSteps = map[string]struct {
	write   step
	crowded bool
}{
	"Book":   {bookWrite, false},
	"Held":   {pendingWrite, false},
	"Return": {returnWrite, true},
	"Park":   {parkWrite, true},
}

var (
	pendingWrite = checksWrite(func(c kueue.AdmissionCheckState) bool { return c.State == kueue.CheckStatePending })
	returnWrite  = checksWrite(func(c kueue.AdmissionCheckState) bool { return retriesAfter(c, func(n int32) bool { return n == 0 }) })
	parkWrite    = checksWrite(func(c kueue.AdmissionCheckState) bool { return retriesAfter(c, func(n int32) bool { return n > 0 }) })
)

func retriesAfter(c kueue.AdmissionCheckState, ok func(int32) bool) bool {
	return c.State == kueue.CheckStateRetry && c.RequeueAfterSeconds != nil && ok(*c.RequeueAfterSeconds)
}

// bookWrite is a write to a Workload beside its status.
func bookWrite(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/workloads/") && !strings.HasSuffix(r.URL.Path, "/status")
}

// checksWrite is a write of checks of which one is as wanted.
func checksWrite(ok func(kueue.AdmissionCheckState) bool) step {
	return func(r *http.Request) bool {
		if !checkWrite(r) {
			return false
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var wl kueue.Workload
		return err == nil && json.Unmarshal(body, &wl) == nil && slices.ContainsFunc(wl.Status.AdmissionChecks, ok)
	}
}

// reach holds a job up at the last of the steps that it takes after begin.
func (p *proxy) reach(t *testing.T, q *queue, steps []step, begin func()) *rule {
	t.Helper()
	held := p.hold(q.in(steps[0]))
	begin()
	for _, next := range steps[1:] {
		held.await(t)
		before := held
		held = p.hold(q.in(next))
		close(before.release)
	}
	held.await(t)
	return held
}

// evictedAtStep: the job is evicted by its owner just when the gate writes. The
// write is refused, and afterwards the job is held, gives its quota back and runs
// like any other.
func evictedAtStep(t *testing.T, p *proxy, write step, crowded bool) {
	t.Helper()
	h := newHoldHook(t)
	keep := 5 // long enough for Kueue to count the job itself no more among those that wait
	if crowded {
		keep = 0
	}
	gate := newGate(t, h.testHook, holdTimes(1, keep))
	q := newHookedQueue(t, gate)
	if crowded {
		q.tooBig()
	}
	job := q.trainJob(dispatchName())
	h.decides(job.Name, admission.HoldUntil(time.Now().Add(time.Hour), "not now"))
	held := p.reach(t, q, []step{write}, func() { create(t, job) })
	before, err := workloadOf(t.Context(), q.name, job.GetUID())
	if err != nil {
		t.Fatal(err)
	}
	evictAndRequeue(t, job, func() { close(held.release) })
	if !crowded {
		awaitHeld(t, job, gate.Name, "not now")
		q.tooBig()
	}
	wl := awaitParked(t, job)
	wantHeld(t, wl, gate.Name, "not now", sinceOf(wl))
	wantNoted(t, before, wl, gate.Name)
	h.decides(job.Name, admission.Admit())
	editGate(t, gate.Name, window(7200))
	q.awaitStart(job, "1")
}

// parking holds a job for so long in a queue where somebody waits, and stops the gate at
// the last of the steps by which it gives the quota back.
func parking(t *testing.T, p *proxy, holds time.Duration, steps ...step) (h *holdHook, gate *v1alpha1.AdmissionGate, q *queue, job *trainer.TrainJob, held *rule) {
	t.Helper()
	h = newHoldHook(t)
	gate = newGate(t, h.testHook, holdTimes(1, 0))
	q = newHookedQueue(t, gate)
	q.tooBig()
	job = q.trainJob(dispatchName())
	h.decides(job.Name, admission.HoldUntil(time.Now().Add(holds), "not now"))
	return h, gate, q, job, p.reach(t, q, steps, func() { create(t, job) })
}

// requeuedMeanwhile: Kueue gives an evicted job quota again before the gate has
// said until when it is to stay without. The gate has it evicted once more, or a few
// times more if Kueue is faster again.
func requeuedMeanwhile(t *testing.T, p *proxy) {
	h, gate, q, job, held := parking(t, p, time.Hour, parkWrite)
	awaitWorkload(t, job, "has quota again", func(wl *kueue.Workload) bool {
		return has(wl, kueue.WorkloadQuotaReserved) && !has(wl, kueue.WorkloadEvicted) && evictions(wl) == 1
	})
	close(held.release)
	if n := evictions(awaitParked(t, job)); n < 2 || n > 5 {
		t.Errorf("%d evictions, want 2 and hardly more", n)
	}
	if n := len(h.asked(job)); n != 1 {
		t.Errorf("the hook was asked %d times before its time", n)
	}
	h.decides(job.Name, admission.Admit())
	editGate(t, gate.Name, window(7200))
	q.awaitStart(job, "1")
}

// timeComesMeanwhile: the time of the next offer comes before the gate has set the
// check back. Kueue passes over the job then, and gives it quota once the gate has.
func timeComesMeanwhile(t *testing.T, p *proxy) {
	h, _, q, job, held := parking(t, p, 8*time.Second, parkWrite, pendingWrite)
	awaitWorkload(t, job, "is offered, and passed over", func(wl *kueue.Workload) bool {
		return requeueAt(wl).IsZero() && conditionOf(wl, kueue.WorkloadRequeued).Status == "True" &&
			strings.Contains(conditionOf(wl, kueue.WorkloadQuotaReserved).Message, "failed admission checks")
	})
	h.decides(job.Name, admission.Admit())
	close(held.release)
	q.awaitStart(job, "1")
}

// inactiveMeanwhile: the owner of the job makes it inactive before the gate has set
// the check back. Kueue lets go of the quota, and the job runs when it is active
// again.
func inactiveMeanwhile(t *testing.T, p *proxy) {
	h, gate, q, job, held := parking(t, p, time.Hour, parkWrite, pendingWrite)
	setActive(t, job, false)
	close(held.release)
	awaitWorkload(t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	h.decides(job.Name, admission.Admit())
	setActive(t, job, true)
	editGate(t, gate.Name, window(7200))
	q.awaitStart(job, "1")
}
