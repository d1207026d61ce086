package placement

import (
	"slices"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Dropped lists what was in an earlier answer and is not in the later one, sorted, as
// podset/field/key; a toleration as key=value:effect in place of the key. A key with
// another value is not dropped.
//
// JobSet never takes such a key out of child Jobs that exist already, so the pods of
// the next start have it although the hook no longer wants it.
func Dropped(before, after []kueue.PodSetUpdate) []string {
	kept := items(after)
	dropped := slices.DeleteFunc(items(before), func(item string) bool {
		_, found := slices.BinarySearch(kept, item)
		return found
	})
	if len(dropped) == 0 {
		return nil
	}
	return dropped
}

// items are all keys of updates, sorted, each once.
func items(updates []kueue.PodSetUpdate) []string {
	var all []string
	for i := range updates {
		all = append(all, itemsOf(&updates[i])...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func itemsOf(u *kueue.PodSetUpdate) []string {
	var all []string
	for _, field := range []struct {
		name string
		keys map[string]string
	}{
		{nodeSelectorField, u.NodeSelector}, {labelsField, u.Labels}, {annotationsField, u.Annotations},
	} {
		for key := range field.keys {
			all = append(all, string(u.Name)+"/"+field.name+"/"+key)
		}
	}
	for _, t := range u.Tolerations {
		all = append(all, string(u.Name)+"/"+tolerationsField+"/"+describe(t))
	}
	return all
}
