package placement

import (
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// topologyHolder has, for the keys that the hook chose, where Kueue has placed the
// pods. It adds that to the pods' node selectors after they were created, when a
// value can no longer be changed: a pod with another one would wait for ever. Of many
// values it has one that was not chosen, if there is one.
func topologyHolder(ta *kueue.TopologyAssignment, chosen map[string]string) holder {
	h := holder{name: "the topology assignment", nodeSelector: map[string]string{}}
	for level, key := range ta.Levels {
		want, ok := chosen[key]
		if !ok {
			continue
		}
		for value := range domains(ta, level) {
			if h.nodeSelector[key] = value; value != want {
				break
			}
		}
	}
	return h
}

// domains are the values that pods get at one level of a topology.
func domains(ta *kueue.TopologyAssignment, level int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range ta.Slices {
			if levels := ta.Slices[i].ValuesPerLevel; level < len(levels) && !yieldAll(&levels[level], yield) {
				return
			}
		}
	}
}

// yieldAll yields the values of one slice until yield wants no more, and says whether
// it does.
func yieldAll(v *kueue.TopologyAssignmentSliceLevelValues, yield func(string) bool) bool {
	if v.Universal != nil {
		return yield(*v.Universal)
	}
	if v.Individual == nil {
		return true
	}
	prefix, suffix := deref(v.Individual.Prefix), deref(v.Individual.Suffix)
	for _, root := range v.Individual.Roots {
		if !yield(prefix + root + suffix) {
			return false
		}
	}
	return true
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// tooLate finds a choice of nodes that Kueue has not heard of although it has placed
// each pod on a node already. It tells no other label of that node, and a pod whose
// node has not what the hook chose would wait for ever.
func (f Facts) tooLate(ps *kueue.PodSet, chosen map[string]string, holders []holder) *Conflict {
	a := f.assignment(ps)
	if a == nil || a.TopologyAssignment == nil || !slices.Contains(a.TopologyAssignment.Levels, corev1.LabelHostname) {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(chosen)) {
		if !slices.ContainsFunc(holders, func(h holder) bool { _, ok := h.nodeSelector[key]; return ok }) {
			return &Conflict{Field: nodeSelectorField, Key: key, Chosen: chosen[key], Problem: "Kueue has placed the pods on nodes already, " +
				"without regard to it; in a queue with a topology, only what the flavor or the pod template has can be chosen"}
		}
	}
	return nil
}
