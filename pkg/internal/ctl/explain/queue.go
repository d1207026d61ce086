package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// evicted explains a job that Kueue has stopped and not started again.
func (f Facts) evicted(e *Explanation) {
	if f.is(kueue.WorkloadQuotaReserved) {
		e.is(Stopping, "Kueue has evicted it and waits until its pods have ended; then it is queued again.")
		e.because("Kueue", f.said(kueue.WorkloadEvicted), "")
		return
	}
	f.queued(e)
}

// queued explains a job without quota.
func (f Facts) queued(e *Explanation) {
	at := f.requeueAt()
	switch {
	case f.queueProblem(e):
		e.is(WaitsForQueue, "It waits, because its queue lets no job start.")
	case at.After(f.Now) && f.is(v1alpha1.WorkloadHeld):
		e.is(HeldWithout, "A hook holds it, and its quota went to others; it is offered again at %s.", at.UTC().Format(time.RFC3339))
		e.because("the hook", f.said(v1alpha1.WorkloadHeld), askHook)
	case at.After(f.Now):
		e.is(WaitsToBeQueued, "Kueue queues it again at %s, after it was evicted.", at.UTC().Format(time.RFC3339))
		e.because("Kueue", f.said(kueue.WorkloadEvicted), "")
	default:
		e.is(WaitsForQuota, "It waits for quota; it is not the gate's turn yet.")
		text := f.said(kueue.WorkloadQuotaReserved)
		if text == "" {
			text = "it has said nothing yet"
		}
		e.because("Kueue", text, fmt.Sprintf("see what the ClusterQueue has: kubectl describe clusterqueue %s", f.ClusterQueue.Name))
		if f.is(kueue.WorkloadEvicted) {
			e.because("Kueue", "it was evicted before: "+f.said(kueue.WorkloadEvicted), "")
		}
	}
}

// requeueAt is until when Kueue keeps the job out of the queue; zero if it does not.
func (f Facts) requeueAt() time.Time {
	if s := f.Workload.Status.RequeueState; s != nil && s.RequeueAt != nil {
		return s.RequeueAt.Time
	}
	return time.Time{}
}

// queueProblem explains what keeps all jobs of the queue from starting, and tells
// whether anything does.
func (f Facts) queueProblem(e *Explanation) bool {
	before := len(e.Reasons)
	wl := f.Workload
	switch {
	case f.LocalQueue == nil:
		e.because("LocalQueue", fmt.Sprintf("there is no LocalQueue %q in namespace %q", wl.Spec.QueueName, wl.Namespace),
			"name one that exists in the label kueue.x-k8s.io/queue-name of the job: kubectl -n "+wl.Namespace+" get localqueues")
		return true
	case f.ClusterQueue == nil:
		e.because("LocalQueue "+f.LocalQueue.Name, fmt.Sprintf("its ClusterQueue %q does not exist", f.LocalQueue.Spec.ClusterQueue), "ask who runs the queues")
		return true
	}
	if p := f.LocalQueue.Spec.StopPolicy; p != nil && *p != kueue.None {
		e.because("LocalQueue "+f.LocalQueue.Name, fmt.Sprintf("it is stopped (stopPolicy %s)", *p), "ask who stopped it")
	}
	active := meta.FindStatusCondition(f.ClusterQueue.Status.Conditions, kueue.ClusterQueueActive)
	if active != nil && active.Status != metav1.ConditionTrue {
		e.because("ClusterQueue "+f.ClusterQueue.Name, active.Message, f.openQueue())
		for _, entry := range wiring.Entries(f.ClusterQueue) {
			f.inactive(string(entry.Name), e)
		}
	}
	return len(e.Reasons) > before
}

// openQueue is what can be done about a queue that is not active.
func (f Facts) openQueue() string {
	if p := f.ClusterQueue.Spec.StopPolicy; p != nil && *p != kueue.None {
		return fmt.Sprintf(`it was stopped (stopPolicy %s); whoever runs it opens it: kubectl patch clusterqueue %s --type=merge -p '{"spec":{"stopPolicy":"None"}}'`, *p, f.ClusterQueue.Name)
	}
	return "dispatchctl queues status " + f.ClusterQueue.Name
}

// inactive explains a check of ours by which the queue is not active.
func (f Facts) inactive(name string, e *Explanation) {
	check := f.Checks[name]
	if check == nil || check.Spec.ControllerName != v1alpha1.ControllerName {
		return
	}
	if why := wiring.WhyInactive(check); why != "" {
		e.because(fmt.Sprintf("check %q", name), why, "kubectl describe admissioncheck "+name)
	}
}

// list is what there is to know of any job.
func (f Facts) list() []Fact {
	facts := []Fact{{"queue", f.queueText()}}
	if f.is(kueue.WorkloadQuotaReserved) {
		facts = append(facts, Fact{"quota", "reserved since " + f.since(kueue.WorkloadQuotaReserved)})
	} else {
		facts = append(facts, Fact{"quota", "none"})
	}
	var checks []string
	for _, s := range f.Workload.Status.AdmissionChecks {
		checks = append(checks, fmt.Sprintf("%s %s", s.Name, s.State))
	}
	if slices.Sort(checks); len(checks) > 0 {
		facts = append(facts, Fact{"checks", strings.Join(checks, ", ")})
	}
	if stats := f.Workload.Status.SchedulingStats; stats != nil && len(stats.Evictions) > 0 {
		var evictions []string
		for _, s := range stats.Evictions {
			evictions = append(evictions, fmt.Sprintf("%s %d", s.Reason, s.Count))
		}
		facts = append(facts, Fact{"evictions", strings.Join(evictions, ", ")})
	}
	if f.TrainJob != nil && fence.IsDispatch(f.TrainJob) {
		facts = append(facts, Fact{"admission count", f.countText()})
	}
	return facts
}

func (f Facts) countText() string {
	record, err := fence.Read(f.TrainJob)
	switch {
	case err != nil:
		return err.Error()
	case record.Count == 0:
		return "none yet; the first start gets 1"
	}
	return fmt.Sprint(record.Count)
}

func (f Facts) queueText() string {
	text := fmt.Sprintf("LocalQueue %s", f.Workload.Spec.QueueName)
	if f.ClusterQueue == nil {
		return text
	}
	text += ", ClusterQueue " + f.ClusterQueue.Name
	if n := f.ClusterQueue.Status.PendingWorkloads; n > 0 {
		text += fmt.Sprintf(" with %d waiting for quota", n)
	}
	return text
}
