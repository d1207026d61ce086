package wiring

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Entry is a check as a queue names it.
type Entry struct {
	Check string
	// OnFlavors limits the check to Workloads with one of these flavors; none means
	// all Workloads.
	OnFlavors []string
}

// Entries are the checks that a queue names.
func Entries(cq *kueue.ClusterQueue) []kueue.AdmissionCheckStrategyRule {
	if cq.Spec.AdmissionChecksStrategy == nil {
		return nil
	}
	return cq.Spec.AdmissionChecksStrategy.AdmissionChecks
}

// find returns the entry of a check; nil if the queue does not name it.
func find(cq *kueue.ClusterQueue, check string) *kueue.AdmissionCheckStrategyRule {
	for i, e := range Entries(cq) {
		if string(e.Name) == check {
			return &Entries(cq)[i]
		}
	}
	return nil
}

// Dropped are the checks that a queue named before and does not name any more.
func Dropped(before, after *kueue.ClusterQueue) []string {
	var names []string
	for _, e := range Entries(before) {
		if find(after, string(e.Name)) == nil {
			names = append(names, string(e.Name))
		}
	}
	return names
}

// RemovalCommand is the command by which people take the entry of a check out of a
// queue as it was read; empty if there is none. It does nothing if the list of the
// queue has changed since.
func RemovalCommand(cq *kueue.ClusterQueue, check string) string {
	all := Entries(cq)
	i := slices.IndexFunc(all, func(e kueue.AdmissionCheckStrategyRule) bool { return string(e.Name) == check })
	if i < 0 {
		return ""
	}
	const list = "/spec/admissionChecksStrategy"
	entry := fmt.Sprintf("%s/admissionChecks/%d", list, i)
	remove := entry
	if len(all) == 1 {
		remove = list // which must not be empty
	}
	return fmt.Sprintf(`kubectl patch clusterqueue %s --type=json -p '[{"op":"test","path":"%s/name","value":%q},{"op":"remove","path":%q}]'`,
		cq.Name, entry, check, remove)
}

// is tells whether an entry of a queue is as wanted.
func (e Entry) is(have *kueue.AdmissionCheckStrategyRule) bool {
	return have != nil && slices.Equal(flavors(have), sorted(e.OnFlavors))
}

// flavors are those that an entry is limited to, sorted.
func flavors(e *kueue.AdmissionCheckStrategyRule) []string {
	names := make([]string, len(e.OnFlavors))
	for i, f := range e.OnFlavors {
		names[i] = string(f)
	}
	return sorted(names)
}

func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// unknownFlavors are those of an entry that a queue has no quota in: no Workload
// could have one.
func (e Entry) unknownFlavors(cq *kueue.ClusterQueue) []string {
	known := queueFlavors(cq)
	return slices.DeleteFunc(sorted(e.OnFlavors), func(f string) bool { return slices.Contains(known, f) })
}

// queueFlavors are the flavors that a queue has quota in.
func queueFlavors(cq *kueue.ClusterQueue) []string {
	var names []string
	for _, g := range cq.Spec.ResourceGroups {
		for _, f := range g.Flavors {
			names = append(names, string(f.Name))
		}
	}
	return sorted(names)
}

// ManagerPrefix begins the field manager of each of our entries.
const ManagerPrefix = "dispatchctl/"

// maxManager is the most bytes that the API server takes for a manager.
const maxManager = 128

// Manager is the field manager of the entry of a check. Each has its own: what a
// manager leaves out of an apply, the API server removes.
func Manager(check string) string {
	name := ManagerPrefix + check
	if len(name) <= maxManager {
		return name
	}
	sum := sha256.Sum256([]byte(check))
	hash := hex.EncodeToString(sum[:8])
	return name[:maxManager-len(hash)-1] + "-" + hash
}

// Managers are the field managers that the entry of a check in a queue has: whoever
// put it there, and whose next write may bring it back or drop it.
func Managers(cq *kueue.ClusterQueue, check string) []string {
	var names []string
	for _, m := range cq.ManagedFields {
		if m.FieldsV1 != nil && m.Subresource == "" && manages(m.FieldsV1.GetRawBytes(), check) {
			names = append(names, m.Manager)
		}
	}
	return sorted(names)
}

// fields is a set of fields, as the API server writes it.
type fields map[string]fields

// manages tells whether a set of fields has the entry of a check. A manager of the
// whole list, as those of v1beta1 are, has it too.
func manages(raw []byte, check string) bool {
	var all fields
	if json.Unmarshal(raw, &all) != nil {
		return false
	}
	list, ok := all["f:spec"]["f:admissionChecksStrategy"]["f:admissionChecks"]
	if !ok {
		return false
	}
	keys := slices.Collect(maps.Keys(list))
	if !slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, "k:") }) {
		return true
	}
	return slices.ContainsFunc(keys, func(k string) bool { return keyOf(k) == check })
}

// keyOf is the name in a key such as k:{"name":"x"}; empty if there is none.
func keyOf(k string) string {
	var key struct {
		Name string `json:"name"`
	}
	text, ok := strings.CutPrefix(k, "k:")
	if !ok || json.Unmarshal([]byte(text), &key) != nil {
		return ""
	}
	return key.Name
}

// others are the managers that are not ours.
func others(managers []string) []string {
	return slices.DeleteFunc(slices.Clone(managers), func(m string) bool { return strings.HasPrefix(m, ManagerPrefix) })
}
