package ctl

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/request"
)

// asked is a job about which a hook is asked.
type asked struct {
	workload *kueue.Workload
	// trainJob is nil if the job is something else, or gone.
	trainJob *trainer.TrainJob
	// clusterQueue is nil if there is none.
	clusterQueue *kueue.ClusterQueue
	// ours are the AdmissionChecks of ours.
	ours []kueue.AdmissionCheck
	// check is whose hook is asked; the zero value if no check has a hook.
	check hooked
}

// errNoOwner is about a Workload whose TrainJob is gone.
var errNoOwner = errors.New("the TrainJob of the Workload does not exist any more, so no hook is asked; Kueue or the garbage collector removes the Workload")

// standIn is the name of the check by which a request is worked out where the
// Workload has no entry that waits. No AdmissionCheck has such a name.
const standIn = kueue.AdmissionCheckReference("dispatchctl/request")

// request is the request that the gate sends, and what a reader should know of it.
//
// The number of the try, since when the job is held and the number of the offer
// are the gate's own: it is shown a Workload that waits, has quota and is due, and
// its question is taken.
func (a asked) request(now time.Time) (*admission.Request, []string, error) {
	owner := gate.TrainJobOwner(a.workload)
	if owner != nil && (a.trainJob == nil || a.trainJob.UID != owner.UID) {
		return nil, nil, errNoOwner
	}
	phase := gate.PhaseOf(a.workload)
	plan := a.plan(phase == gate.PhaseReserved || phase == gate.PhaseAdmitted, now)
	if len(plan.Ask) == 0 {
		// What runs did not come through the gate, so its next start is looked at.
		plan = a.plan(false, now)
	}
	if len(plan.Ask) != 1 {
		return nil, nil, fmt.Errorf("no hook is asked about this job: %s", cmp.Or(plan.Message, string(plan.Case)))
	}
	q := plan.Ask[0]
	in := request.Input{
		Workload: a.queued(), TrainJob: a.trainJob,
		TryNumber: q.TryNumber, HeldSince: q.HeldSince, OfferCount: q.OfferCount,
	}
	if g := a.check.gate; g != nil && g.Spec.Hook != nil {
		in.Names = g.Spec.Hook.Attempt
	}
	return request.Build(in), a.notes(now), nil
}

// plan asks the gate what it would do. kept says that the reservation is the one
// that the Workload has, so that the answers of our checks and the number that the
// start was given belong to it.
func (a asked) plan(kept bool, now time.Time) gate.Plan {
	wl, name := a.due(kept, now)
	checks := map[kueue.AdmissionCheckReference]gate.Check{}
	for i := range a.ours {
		checks[kueue.AdmissionCheckReference(a.ours[i].Name)] = gate.Check{}
	}
	// The policy has no version: what a hold says of its next offer counts under the
	// version of its gate alone.
	checks[name] = gate.Check{Policy: &gate.Policy{Hook: &gate.HookPolicy{}}}
	return gate.Decide(gate.Snapshot{Workload: wl, TrainJob: stopped(a.trainJob), Checks: checks}, now)
}

// due is the Workload as if it had quota and the check waited for its hook, and
// the name of the check in it.
func (a asked) due(kept bool, now time.Time) (*kueue.Workload, kueue.AdmissionCheckReference) {
	wl := a.workload.DeepCopy()
	wl.DeletionTimestamp, wl.Spec.Active, wl.Status.RequeueState = nil, nil, nil
	for _, condition := range []string{kueue.WorkloadFinished, kueue.WorkloadEvicted, kueue.WorkloadAdmitted} {
		meta.RemoveStatusCondition(&wl.Status.Conditions, condition)
	}
	if !kept {
		meta.RemoveStatusCondition(&wl.Status.Conditions, kueue.WorkloadQuotaReserved)
	}
	meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue, Reason: kueue.WorkloadQuotaReserved, LastTransitionTime: metav1.NewTime(now),
	})
	wl.Status.AdmissionChecks = slices.DeleteFunc(wl.Status.AdmissionChecks, func(s kueue.AdmissionCheckState) bool {
		return s.State != kueue.CheckStatePending && !(kept && s.State == kueue.CheckStateReady)
	})
	name := kueue.AdmissionCheckReference(a.check.name)
	for _, s := range wl.Status.AdmissionChecks {
		if s.Name == name && s.State == kueue.CheckStatePending {
			return wl, name
		}
	}
	wl.Status.AdmissionChecks = append(wl.Status.AdmissionChecks, kueue.AdmissionCheckState{
		Name: standIn, State: kueue.CheckStatePending, LastTransitionTime: metav1.NewTime(now),
	})
	return wl, standIn
}

// stopped is a TrainJob as if all of its starts had ended.
func stopped(job *trainer.TrainJob) *trainer.TrainJob {
	if job == nil {
		return nil
	}
	job = job.DeepCopy()
	yes, one := true, int32(1)
	job.Spec.Suspend = &yes
	job.Status.JobsStatus = []trainer.JobStatus{{Name: "all", Suspended: &one}}
	meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{
		Type: trainer.TrainJobSuspended, Status: metav1.ConditionTrue, Reason: "Suspended",
	})
	return job
}

// queued is the Workload with the name of its ClusterQueue, which it will get with
// its quota.
func (a asked) queued() *kueue.Workload {
	if a.workload.Status.Admission != nil || a.clusterQueue == nil {
		return a.workload
	}
	wl := a.workload.DeepCopy()
	wl.Status.Admission = &kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(a.clusterQueue.Name)}
	return wl
}

// notes say in what the request differs from one that is sent at this moment.
func (a asked) notes(now time.Time) []string {
	var notes []string
	switch gate.PhaseOf(a.workload) {
	case gate.PhaseEnded:
		notes = append(notes, "the job has ended or is inactive; this is what a hook would be told if it started again")
	case gate.PhaseAdmitted:
		notes = append(notes, "the job runs; this is what a hook was told at its start, as far as it has not changed since")
	case gate.PhaseQueued, gate.PhaseEvicted:
		notes = append(notes, "no quota is reserved; the flavors in podSets come with it, and with partial admission the counts change")
	case gate.PhaseReserved:
	}
	switch {
	case a.check.name == "":
		notes = append(notes, "no check of this job has a hook, so none is asked; "+v1alpha1.AdmissionGateKind+" spec.hook says which is")
	case a.check.gate == nil || a.check.gate.Spec.Hook == nil:
		notes = append(notes, fmt.Sprintf("the check %q has no hook, so none is asked", a.check.name))
	}
	held := hold.Read(a.workload).Checks[kueue.AdmissionCheckReference(a.check.name)]
	if held.Next.After(now) {
		notes = append(notes, "the hook is asked next at "+held.Next.Format(time.RFC3339))
	}
	return notes
}
