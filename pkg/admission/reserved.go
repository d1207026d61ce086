package admission

import (
	"slices"
	"strings"
)

// reservedPrefixes is in lower case.
var reservedPrefixes = []string{
	"dispatch.phpboyscout.uk/",
	"kueue.x-k8s.io/",
	"trainer.kubeflow.org/",
	"jobset.sigs.k8s.io/",
	"batch.kubernetes.io/",
	"kubernetes.io/",
	"k8s.io/",
	"leoflow.io/",
	"dexaflow.io/",
}

// ReservedPrefixes returns the beginnings, in lower case, of the label and
// annotation keys that a hook may not set. The slice is a copy.
func ReservedPrefixes() []string { return slices.Clone(reservedPrefixes) }

// IsReservedKey reports whether a hook may not set key as a label or an
// annotation: it starts with one of [ReservedPrefixes], letter case ignored.
// Subdomains are not covered, so "cluster-autoscaler.kubernetes.io/safe-to-evict"
// is free. Node selectors may use any key.
func IsReservedKey(key string) bool {
	key = strings.ToLower(key)
	return slices.ContainsFunc(reservedPrefixes, func(prefix string) bool {
		return strings.HasPrefix(key, prefix)
	})
}
