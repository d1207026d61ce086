package wiring

import (
	"encoding/json"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Writers says who wrote a queue between two versions of it, or who manages its
// list of checks if that cannot be told: the API server notes the time of a write
// only for a manager that took a field over, and one that only drops fields takes
// none.
func Writers(before, after *kueue.ClusterQueue) string {
	old := map[string]time.Time{}
	for _, m := range before.ManagedFields {
		if m.Time != nil {
			old[writer(m)] = m.Time.Time
		}
	}
	var names, list []string
	for _, m := range after.ManagedFields {
		if m.Subresource != "" {
			continue
		}
		if m.Time != nil && m.Time.After(old[writer(m)]) {
			names = append(names, m.Manager)
		}
		if m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:admissionChecksStrategy"`) {
			list = append(list, m.Manager)
		}
	}
	switch {
	case len(names) > 0:
		return strings.Join(sorted(names), ", ")
	case len(list) > 0:
		return "somebody unknown; the list of checks is managed by " + strings.Join(sorted(list), ", ")
	}
	return "somebody unknown"
}

// writer identifies a manager among those of an object.
func writer(m metav1.ManagedFieldsEntry) string {
	return m.Manager + "\n" + string(m.Operation) + "\n" + m.APIVersion + "\n" + m.Subresource
}

// SlimManagers keeps of the managers of a queue all that this package reads: when
// each wrote, and what it manages of the list of checks.
func SlimManagers(managers []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var slim []metav1.ManagedFieldsEntry
	for _, m := range managers {
		if m.Subresource != "" {
			continue
		}
		if m.FieldsV1 != nil {
			m.FieldsV1 = slimFields(m.FieldsV1.GetRawBytes())
		}
		slim = append(slim, m)
	}
	return slim
}

// slimFields keeps the list of checks of a set of fields; nil if it is not in it.
func slimFields(raw []byte) *metav1.FieldsV1 {
	var all fields
	if json.Unmarshal(raw, &all) != nil {
		return nil
	}
	list, ok := all["f:spec"]["f:admissionChecksStrategy"]
	if !ok {
		return nil
	}
	kept, err := json.Marshal(map[string]any{"f:spec": map[string]any{"f:admissionChecksStrategy": list}})
	if err != nil {
		return nil
	}
	return metav1.NewFieldsV1(string(kept))
}
