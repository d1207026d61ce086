package placement

import (
	"fmt"
	"maps"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// The annotations of a pod have a limit in all. Kueue adds some, for which room is
// left.
const (
	annotationBytes = 256 << 10
	kueueBytes      = 1 << 10
)

// oversized finds annotations that are too large together with those of the pod
// template and of the other checks. The start of such a job would fail again and
// again while it holds its quota.
func (f Facts) oversized(u kueue.PodSetUpdate, ps *kueue.PodSet) *Conflict {
	if len(u.Annotations) == 0 {
		return nil
	}
	all := map[string]string{}
	maps.Copy(all, ps.Template.Annotations)
	for _, h := range f.checkHolders(ps) {
		maps.Copy(all, h.annotations)
	}
	maps.Copy(all, u.Annotations)
	if size(all) <= annotationBytes-kueueBytes {
		return nil
	}
	return &Conflict{Field: annotationsField, Problem: fmt.Sprintf(
		"with those that the pods have anyway there are more than the %d bytes that Kubernetes allows", annotationBytes)}
}

func size(annotations map[string]string) int {
	n := 0
	for key, value := range annotations {
		n += len(key) + len(value)
	}
	return n
}
