package wiring

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Wanted says which queues are to have which checks. The zero value wants nothing.
type Wanted struct {
	// Queues are names of queues; Selector picks more by their labels, none if it is nil.
	Queues   []string
	Selector labels.Selector
	// Checks are the names of the checks, OnFlavors what each is limited to; none
	// means all Workloads.
	Checks, OnFlavors []string
}

// Picks tells whether a queue is one of those.
func (w *Wanted) Picks(cq *kueue.ClusterQueue) bool {
	return slices.Contains(w.Queues, cq.Name) || w.Selector != nil && w.Selector.Matches(labels.Set(cq.Labels))
}

// Of is the entry that a queue is to have of a check; nil if it is to have none.
func (w *Wanted) Of(cq *kueue.ClusterQueue, check string) *Entry {
	if !slices.Contains(w.Checks, check) || !w.Picks(cq) {
		return nil
	}
	return &Entry{Check: check, OnFlavors: w.OnFlavors}
}

// Standing is how a check stands in a queue.
type Standing int

// Standings.
const (
	// Unconcerned is a queue that neither has the check, nor had it, nor is to.
	Unconcerned Standing = iota
	// Wired is an entry that is there, as wanted if it is wanted.
	Wired
	// Missing is an entry that is wanted and has not been there.
	Missing
	// Lost is an entry that was there.
	Lost
	// Differs is an entry that is limited to other flavors than wanted.
	Differs
)

// Stands says how a check stands in a queue that is to have an entry, or none if
// want is nil; had tells whether the queue has had one.
func Stands(cq *kueue.ClusterQueue, check string, want *Entry, had bool) Standing {
	have := find(cq, check)
	switch {
	case have == nil && had:
		return Lost
	case have == nil && want != nil:
		return Missing
	case have == nil:
		return Unconcerned
	case want != nil && !want.is(have):
		return Differs
	}
	return Wired
}

// Flavors are those that the entry of a check is limited to; none if there is none.
func Flavors(cq *kueue.ClusterQueue, check string) []string {
	if e := find(cq, check); e != nil {
		return flavors(e)
	}
	return nil
}
