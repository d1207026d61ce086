// Package explain says in plain words why a job waits, and what can be done.
//
// It is told what there is and reads nothing itself. Where Kueue, the gate or a hook
// have said why, their words are passed on; what it adds is who has to act.
package explain

import (
	"fmt"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// Facts are what there is.
type Facts struct {
	Workload *kueue.Workload
	// TrainJob is nil if the Workload is of something else, or it is gone.
	TrainJob *trainer.TrainJob
	// LocalQueue and ClusterQueue are nil if there is none.
	LocalQueue   *kueue.LocalQueue
	ClusterQueue *kueue.ClusterQueue
	// Checks and Gates are those that exist, by name.
	Checks map[string]*kueue.AdmissionCheck
	Gates  map[string]*v1alpha1.AdmissionGate
	// Leads says why no replica of the gate leads; empty if one does. It is called
	// only where that is the question.
	Leads func() (why, fix string)
	Now   time.Time
}

// Explanation is why a job waits, or that it does not.
type Explanation struct {
	Workload string `json:"workload"`
	Job      string `json:"job,omitempty"`
	// State is where the job stands, and Summary the same in a sentence.
	State   State  `json:"state"`
	Summary string `json:"summary"`
	// Reasons are all that it waits for.
	Reasons []Reason `json:"reasons,omitempty"`
	// Facts are what else there is to know.
	Facts []Fact `json:"facts,omitempty"`
}

// State is where a job stands.
type State string

// States of jobs.
const (
	Deleted         State = "Deleted"
	Finished        State = "Finished"
	Refused         State = "Refused"
	Inactive        State = "Inactive"
	Running         State = "Running"
	Stopping        State = "Stopping"
	WaitsForChecks  State = "WaitsForChecks"
	Held            State = "Held"
	HeldWithout     State = "HeldWithoutQuota"
	WaitsToBeQueued State = "WaitsToBeQueued"
	WaitsForQueue   State = "WaitsForQueue"
	WaitsForQuota   State = "WaitsForQuota"
)

// Reason is something that a job waits for.
type Reason struct {
	// About is who says so, such as check "policy".
	About string `json:"about"`
	Text  string `json:"text"`
	// Do is what can be done; empty for nothing.
	Do string `json:"do,omitempty"`
}

// Fact is something to know of a job.
type Fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Explain says where a job stands.
func Explain(f Facts) Explanation {
	e := Explanation{Workload: f.Workload.Namespace + "/" + f.Workload.Name, Facts: f.list()}
	if owner := gate.Owner(f.Workload); owner != nil {
		e.Job = owner.Kind + " " + owner.Name
	}
	switch gate.PhaseOf(f.Workload) {
	case gate.PhaseEnded:
		f.ended(&e)
	case gate.PhaseAdmitted:
		f.running(&e)
	case gate.PhaseReserved:
		f.reserved(&e)
	case gate.PhaseEvicted:
		f.evicted(&e)
	case gate.PhaseQueued:
		f.queued(&e)
	}
	return e
}

func (e *Explanation) is(s State, summary string, args ...any) {
	e.State, e.Summary = s, fmt.Sprintf(summary, args...)
}

func (e *Explanation) because(about, text, do string) {
	e.Reasons = append(e.Reasons, Reason{about, text, do})
}

// said is the message of a condition, its reason if there is none.
func (f Facts) said(condition string) string {
	c := meta.FindStatusCondition(f.Workload.Status.Conditions, condition)
	switch {
	case c == nil:
		return ""
	case c.Message != "":
		return c.Message
	}
	return c.Reason
}

func (f Facts) is(condition string) bool {
	return meta.IsStatusConditionTrue(f.Workload.Status.Conditions, condition)
}

// since is when a condition became what it is.
func (f Facts) since(condition string) string {
	if c := meta.FindStatusCondition(f.Workload.Status.Conditions, condition); c != nil {
		return c.LastTransitionTime.UTC().Format(time.RFC3339)
	}
	return "an unknown time"
}

// ended explains a job that will not start by itself.
func (f Facts) ended(e *Explanation) {
	wl := f.Workload
	switch {
	case f.is(kueue.WorkloadFinished):
		e.is(Finished, "It has finished.")
		e.because("Kueue", f.said(kueue.WorkloadFinished), "")
	case wl.DeletionTimestamp != nil:
		e.is(Deleted, "Its Workload is being deleted; Kueue makes another one if the job is still there.")
	case f.is(v1alpha1.WorkloadRefused):
		e.is(Refused, "A hook has refused it for good.")
		e.because("the hook", f.said(v1alpha1.WorkloadRefused), f.offerAnew())
	default:
		e.is(Inactive, "It is inactive (spec.active of the Workload is false), so Kueue does not queue it.")
		text := f.said(kueue.WorkloadEvicted)
		if text == "" {
			text = "somebody or something set spec.active to false"
		}
		e.because("Kueue", text, fmt.Sprintf(`mend what was wrong, then kubectl -n %s patch workload %s --type=merge -p '{"spec":{"active":true}}'`, wl.Namespace, wl.Name))
	}
}

// offerAnew is what has a job that was refused asked about anew: another Workload. To
// make the one it has active does nothing: Kueue queues again only what people made
// inactive.
func (f Facts) offerAnew() string {
	if owner := gate.Owner(f.Workload); owner != nil && owner.Kind == "Pod" {
		return "mend what the reason says, delete the Pods and make them anew; Kueue deletes them with the Workload"
	}
	return fmt.Sprintf("mend what the reason says; then have it asked anew: kubectl -n %s delete workload %s", f.Workload.Namespace, f.Workload.Name)
}

// running explains a job that has started.
func (f Facts) running(e *Explanation) {
	e.is(Running, "It does not wait: Kueue has started it, at %s.", f.since(kueue.WorkloadAdmitted))
	if c := meta.FindStatusCondition(f.Workload.Status.Conditions, kueue.WorkloadPodsReady); c != nil && !f.is(kueue.WorkloadPodsReady) {
		e.because("Kueue", "not all pods are ready: "+f.said(kueue.WorkloadPodsReady), fmt.Sprintf("see its pods: kubectl -n %s get pods", f.Workload.Namespace))
	}
}
