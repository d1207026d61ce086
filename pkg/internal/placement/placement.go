// Package placement turns what a hook chose into the updates of pod sets by which
// Kueue carries it out, and finds out beforehand what would go wrong.
//
// Kueue checks updates only when it starts the job: if one of them gives a key
// another value than the pod template, a ResourceFlavor or another check does, it
// marks the Workload Finished for good (reason FailedToStart) and the job never
// starts. So a conflict must be found while the job can still wait. The rules here
// are those of Kueue v0.19.
//
// It is pure: what it needs to know of the cluster is in Facts.
package placement

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Facts is what Updates has to know. Nothing in it is changed or kept.
type Facts struct {
	// Workload is the one that the hook answered about, with quota reserved; never
	// nil. Its pod sets may be slimmed.
	Workload *kueue.Workload
	// Check is the check whose hook answered. What its entry in the Workload has
	// is about to be replaced.
	Check kueue.AdmissionCheckReference
	// Flavors are the ResourceFlavors of the cluster, at least those assigned to
	// the Workload.
	Flavors map[kueue.ResourceFlavorReference]*kueue.ResourceFlavor
	// TrainJob says that the Workload belongs to a TrainJob, to which Kueue
	// applies updates as an override instead of merging them.
	TrainJob bool
	// Pods is the metadata of the pods of a Workload that was made for pods which
	// exist already. Kueue does not copy it into such a Workload. Without it, what
	// the hook chose as a label or annotation is not compared with what those pods
	// have.
	Pods []metav1.ObjectMeta
}

// Updates returns what makes Kueue start the pods with the changes: one update for
// every pod set, in their order, or nil when c changes nothing. Service account and
// priority class travel as annotations, see v1alpha1.ServiceAccountAnnotation. The
// result shares no memory with the arguments.
//
// The error is a [*Conflict], always the same one for equal arguments. It says that
// Kueue would refuse the updates or finish the Workload because of them, that the
// pods could not run with them, or that they cannot have the effect that the hook
// asks for. A key that has the chosen value already is none.
//
// A TrainJob's pod template loses its own tolerations when an update adds any, so
// such an update repeats them.
func Updates(c admission.Changes, f Facts) ([]kueue.PodSetUpdate, error) {
	if c.IsZero() {
		return nil, nil
	}
	if conflict := unfit(c, f.Workload); conflict != nil {
		return nil, conflict
	}
	updates := make([]kueue.PodSetUpdate, 0, len(f.Workload.Spec.PodSets))
	for i := range f.Workload.Spec.PodSets {
		u, conflict := update(c, f, &f.Workload.Spec.PodSets[i])
		if conflict != nil {
			conflict.PodSet = u.Name
			return nil, conflict
		}
		updates = append(updates, u)
	}
	return updates, nil
}

// update is that of one pod set. Its name is set in any case.
func update(c admission.Changes, f Facts, ps *kueue.PodSet) (kueue.PodSetUpdate, *Conflict) {
	u := kueue.PodSetUpdate{
		Name:         ps.Name,
		NodeSelector: maps.Clone(c.NodeSelector),
		Labels:       maps.Clone(c.Labels),
		Annotations:  annotations(c),
	}
	if conflict := f.refused(c, ps, u); conflict != nil {
		return u, conflict
	}
	var conflict *Conflict
	u.Tolerations, conflict = f.tolerations(c, ps)
	return u, conflict
}

// refused finds what stands against an update of a pod set, tolerations aside.
func (f Facts) refused(c admission.Changes, ps *kueue.PodSet, u kueue.PodSetUpdate) *Conflict {
	if conflict := f.pinned(c, ps); conflict != nil {
		return conflict
	}
	holders, conflict := f.holders(ps, u)
	if conflict != nil {
		return conflict
	}
	if conflict := clash(u, holders); conflict != nil {
		return conflict
	}
	if conflict := f.tooLate(ps, u.NodeSelector, holders); conflict != nil {
		return conflict
	}
	return f.oversized(u, ps)
}

// annotations are the hook's own, and those by which the pods get what Kueue has no
// field for.
func annotations(c admission.Changes) map[string]string {
	all := map[string]string{}
	maps.Copy(all, c.Annotations)
	if c.ServiceAccount != "" {
		all[v1alpha1.ServiceAccountAnnotation] = c.ServiceAccount
	}
	if c.PriorityClassName != "" {
		all[v1alpha1.PriorityClassAnnotation] = c.PriorityClassName
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// assignment is what Kueue reserved for a pod set, nil if nothing.
func (f Facts) assignment(ps *kueue.PodSet) *kueue.PodSetAssignment {
	if f.Workload.Status.Admission == nil {
		return nil
	}
	list := f.Workload.Status.Admission.PodSetAssignments
	for i := range list {
		if list[i].Name == ps.Name {
			return &list[i]
		}
	}
	return nil
}

// usesTopology tells whether Kueue itself places the pods of a pod set.
func (f Facts) usesTopology(ps *kueue.PodSet) bool {
	a := f.assignment(ps)
	return a != nil && (a.TopologyAssignment != nil || a.DelayedTopologyRequest != nil)
}

// mergesTemplate tells whether Kueue merges updates with the pod template, so that
// they cannot override it. It does for every kind but TrainJob; and also for a
// TrainJob when it looks for nodes by itself.
func (f Facts) mergesTemplate(ps *kueue.PodSet) bool {
	return !f.TrainJob || f.usesTopology(ps)
}

// serviceAccount is the one that pods of the template have by themselves.
func serviceAccount(spec *corev1.PodSpec) string {
	const byDefault = "default"
	switch {
	case spec.ServiceAccountName != "":
		return spec.ServiceAccountName
	case spec.DeprecatedServiceAccount != "":
		return spec.DeprecatedServiceAccount
	}
	return byDefault
}
