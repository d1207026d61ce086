package placement

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// holder is somebody whose keys an update is merged with.
type holder struct {
	name                              string
	nodeSelector, labels, annotations map[string]string
}

// holders are all those that an update of a pod set is merged with. A conflict, if
// there is one, is an assigned flavor that is not known.
func (f Facts) holders(ps *kueue.PodSet, u kueue.PodSetUpdate) ([]holder, *Conflict) {
	all, conflict := f.nodeHolders(ps, u.NodeSelector)
	if conflict != nil {
		return nil, conflict
	}
	all = append(all, f.checkHolders(ps)...)
	if f.mergesTemplate(ps) {
		all = append(all, templateHolder(ps))
	}
	if owner := metav1.GetControllerOfNoCopy(f.Workload); isJob(owner) {
		all = append(all, jobHolder(owner))
	}
	for _, pod := range f.Pods {
		all = append(all, holder{name: fmt.Sprintf("the pod %q", pod.Name), labels: pod.Labels, annotations: pod.Annotations})
	}
	return all, nil
}

func templateHolder(ps *kueue.PodSet) holder {
	return holder{
		name:         fmt.Sprintf("the pod template of pod set %q", ps.Name),
		nodeSelector: ps.Template.Spec.NodeSelector, labels: ps.Template.Labels, annotations: ps.Template.Annotations,
	}
}

// jobHolder has the labels that a Job's template has and that Kueue leaves out of the
// Workload.
func jobHolder(owner *metav1.OwnerReference) holder {
	return holder{
		name:   fmt.Sprintf("the Job %q", owner.Name),
		labels: map[string]string{"controller-uid": string(owner.UID), "job-name": owner.Name},
	}
}

// nodeHolders are those that decide where the pods run. They need not be known
// unless the hook decides it, too.
func (f Facts) nodeHolders(ps *kueue.PodSet, chosen map[string]string) ([]holder, *Conflict) {
	a := f.assignment(ps)
	if len(chosen) == 0 || a == nil {
		return nil, nil
	}
	all, conflict := f.flavorHolders(a)
	if conflict != nil || a.TopologyAssignment == nil {
		return all, conflict
	}
	return append(all, topologyHolder(a.TopologyAssignment, chosen)), nil
}

// flavorHolders are the flavors assigned to a pod set, each once. Kueue merges their
// node labels in no fixed order, so every one of them counts.
func (f Facts) flavorHolders(a *kueue.PodSetAssignment) ([]holder, *Conflict) {
	var all []holder
	for _, ref := range slices.Compact(slices.Sorted(maps.Values(a.Flavors))) {
		name := fmt.Sprintf("the ResourceFlavor %q", ref)
		flavor := f.Flavors[ref]
		if flavor == nil {
			return nil, &Conflict{Field: nodeSelectorField, Problem: name + " is assigned but not known, so nothing can be compared with its node labels"}
		}
		all = append(all, holder{name: name, nodeSelector: flavor.Spec.NodeLabels})
	}
	return all, nil
}

// checkHolders are the updates of the other checks. Kueue merges what stands in an
// entry when the job starts, and updates of a Pending entry, left from an attempt
// before, may stay when it becomes Ready. An entry that is Retry or Rejected has the
// Workload evicted instead, and its updates dropped.
func (f Facts) checkHolders(ps *kueue.PodSet) []holder {
	var all []holder
	for i := range f.Workload.Status.AdmissionChecks {
		entry := &f.Workload.Status.AdmissionChecks[i]
		if entry.Name == f.Check || entry.State == kueue.CheckStateRetry || entry.State == kueue.CheckStateRejected {
			continue
		}
		all = append(all, entryHolders(entry, ps.Name)...)
	}
	return all
}

func entryHolders(entry *kueue.AdmissionCheckState, podSet kueue.PodSetReference) []holder {
	var all []holder
	for _, u := range entry.PodSetUpdates {
		if u.Name == podSet {
			all = append(all, holder{
				name:         fmt.Sprintf("the check %q", entry.Name),
				nodeSelector: u.NodeSelector, labels: u.Labels, annotations: u.Annotations,
			})
		}
	}
	return all
}
