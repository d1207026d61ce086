// Package gate decides what the readmission gate does with one Workload.
//
// It is pure: Decide takes a snapshot and the time and returns a plan of at
// most two writes. The controller package takes the snapshot and carries the
// plan out.
package gate

import (
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
)

// Phase is where a Workload stands on its way through Kueue, as far as the
// gate cares.
type Phase string

const (
	// PhaseEnded is a Workload that nothing may be written to: finished,
	// deleted or deactivated.
	PhaseEnded Phase = "Ended"
	// PhaseEvicted is a Workload that was evicted and has no new quota yet.
	// Between an eviction and the release of its quota, QuotaReserved is still
	// true; an answer written there would wedge the Workload or be used for the
	// next attempt. All that is written here is what keeps a held Workload from
	// taking quota again at once, see park.
	PhaseEvicted Phase = "Evicted"
	// PhaseQueued is a Workload without quota.
	PhaseQueued Phase = "Queued"
	// PhaseReserved is a Workload with quota that waits for its checks.
	PhaseReserved Phase = "Reserved"
	// PhaseAdmitted is a Workload that Kueue has started.
	PhaseAdmitted Phase = "Admitted"
)

// PhaseOf classifies a Workload. It never looks at a condition's reason, which
// Kueue changes between versions.
func PhaseOf(wl *kueue.Workload) Phase {
	is := func(condition string) bool { return meta.IsStatusConditionTrue(wl.Status.Conditions, condition) }
	switch {
	case wl.DeletionTimestamp != nil, wl.Spec.Active != nil && !*wl.Spec.Active, is(kueue.WorkloadFinished):
		return PhaseEnded
	case is(kueue.WorkloadEvicted):
		return PhaseEvicted
	case is(kueue.WorkloadAdmitted):
		return PhaseAdmitted
	case is(kueue.WorkloadQuotaReserved):
		return PhaseReserved
	default:
		return PhaseQueued
	}
}

// inactive tells whether a Workload was deactivated, and may be activated again.
func inactive(wl *kueue.Workload) bool {
	return wl.DeletionTimestamp == nil && wl.Spec.Active != nil && !*wl.Spec.Active &&
		!meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadFinished)
}

// TrainJobOwner is the reference to the TrainJob that a Workload was made for,
// or nil if it was made for something else.
func TrainJobOwner(wl *kueue.Workload) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(wl)
	if owner == nil || owner.Kind != "TrainJob" {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != trainer.GroupVersion.Group {
		return nil
	}
	return owner
}

// Owner is the reference to what a Workload was made for: its controller, or for
// a group of pods the first of them; nil if there is none.
func Owner(wl *kueue.Workload) *metav1.OwnerReference {
	if owner := metav1.GetControllerOfNoCopy(wl); owner != nil {
		return owner
	}
	if len(wl.OwnerReferences) > 0 {
		return &wl.OwnerReferences[0]
	}
	return nil
}

// Waiting names the checks of a Workload, ours or not, that the gate might have
// to write to. It is the index by which a full pass finds the few Workloads
// that wait among the many that do not.
func Waiting(wl *kueue.Workload) []string {
	var waits func(kueue.CheckState) bool
	switch PhaseOf(wl) {
	case PhaseQueued:
		waits = func(s kueue.CheckState) bool { return s == kueue.CheckStateReady || s == kueue.CheckStateRetry }
	case PhaseAdmitted:
		waits = func(s kueue.CheckState) bool { return s == kueue.CheckStatePending }
	case PhaseReserved:
		waits = func(kueue.CheckState) bool { return true }
	case PhaseEvicted:
		held := meta.IsStatusConditionTrue(wl.Status.Conditions, v1alpha1.WorkloadHeld)
		waits = func(kueue.CheckState) bool { return held }
	case PhaseEnded:
		held := inactive(wl) && meta.IsStatusConditionTrue(wl.Status.Conditions, v1alpha1.WorkloadHeld)
		waits = func(s kueue.CheckState) bool { return held && s == kueue.CheckStateRetry }
	}
	var names []string
	for _, c := range wl.Status.AdmissionChecks {
		if waits(c.State) {
			names = append(names, string(c.Name))
		}
	}
	return names
}

// Relevant tells whether a change of a Workload can give the gate anything to
// do: it waits for a check, it was started and the start is to be verified, or the
// check that held it is no more.
func Relevant(wl *kueue.Workload) bool {
	if PhaseOf(wl) != PhaseEnded && meta.IsStatusConditionTrue(wl.Status.Conditions, v1alpha1.WorkloadHeld) {
		return true // whatever checks it has, that of the hold may be gone
	}
	if len(wl.Status.AdmissionChecks) == 0 {
		return false
	}
	return len(Waiting(wl)) > 0 || PhaseOf(wl) == PhaseAdmitted && TrainJobOwner(wl) != nil
}

// Loss is what a Workload had been answered when it lost its quota: the second
// of each answer, by check. Within one second the Workload may get quota again,
// and then no field shows that it was gone.
type Loss map[kueue.AdmissionCheckReference]int64

// LossBetween compares two versions of a Workload; nil unless quota with
// answers was lost between them.
func LossBetween(before, after *kueue.Workload) Loss {
	const reserved = kueue.WorkloadQuotaReserved
	if !meta.IsStatusConditionTrue(before.Status.Conditions, reserved) || meta.IsStatusConditionTrue(after.Status.Conditions, reserved) {
		return nil
	}
	var loss Loss
	for _, c := range before.Status.AdmissionChecks {
		if c.State != kueue.CheckStateReady {
			continue
		}
		if loss == nil {
			loss = Loss{}
		}
		loss[c.Name] = fence.Second(c.LastTransitionTime)
	}
	return loss
}

// hits tells whether an answer that still stands is one that the loss made
// stale. An answer given after it has a later second, see takeBack.
func (l Loss) hits(ready []*kueue.AdmissionCheckState) bool {
	return slices.ContainsFunc(ready, func(c *kueue.AdmissionCheckState) bool {
		at, ok := l[c.Name]
		return ok && at == fence.Second(c.LastTransitionTime)
	})
}

// attemptOf identifies the attempt that a Workload with quota is at. since is
// the latest second in which one of our pending checks became so.
func attemptOf(wl *kueue.Workload, pending []*kueue.AdmissionCheckState) fence.Attempt {
	a := fence.Attempt{Workload: wl.UID}
	if c := meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved); c != nil {
		a.Reserved = fence.Second(c.LastTransitionTime)
	}
	if stats := wl.Status.SchedulingStats; stats != nil {
		for _, e := range stats.Evictions {
			a.Evictions += int64(e.Count)
		}
	}
	for _, p := range pending {
		a.PendingSince = max(a.PendingSince, fence.Second(p.LastTransitionTime))
	}
	return a
}

// ReplicatedJobs are the replicated jobs of a TrainJob, which Kueue has as the
// names of the pod sets. One that has started may be known by its assignments alone.
func ReplicatedJobs(wl *kueue.Workload) []string {
	names := make([]string, 0, len(wl.Spec.PodSets))
	if len(wl.Spec.PodSets) == 0 && wl.Status.Admission != nil {
		for _, a := range wl.Status.Admission.PodSetAssignments {
			names = append(names, string(a.Name))
		}
	}
	for _, ps := range wl.Spec.PodSets {
		names = append(names, string(ps.Name))
	}
	return slices.Clip(names)
}
