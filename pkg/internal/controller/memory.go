package controller

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// memory holds the little that the cluster does not. Losing it costs nothing but
// a second telling: quota that is lost and regained within one second, at the
// very time the leader changes, leaves an A that no start has used.
type memory struct {
	mu sync.Mutex
	// notes are about Workloads that were seen in an odd state.
	notes map[types.UID]*note
	// written and older are the resource versions that this process wrote last,
	// since the last call of age and since the one before. Until the informers
	// have them, a decision would only repeat the write and conflict with it.
	written, older map[types.UID]string
}

// note is what is remembered of one Workload.
type note struct {
	// loss is the last loss of quota that a watch showed.
	loss gate.Loss
	// told is the ungated start that was told last.
	told fence.Attempt
	// suspected is a finding that a lagging informer could fake; settled says
	// that the API server has confirmed it.
	suspected gate.Case
	settled   bool
	// fault is the fault that was logged last, empty once a write succeeded.
	fault string
	// placed is what each check gave to the pods of the last start.
	placed map[kueue.AdmissionCheckReference][]kueue.PodSetUpdate
}

func newMemory() *memory {
	return &memory{notes: map[types.UID]*note{}, written: map[types.UID]string{}}
}

// edit gives change the note of a Workload, a new one if there is none.
func (m *memory) edit(uid types.UID, change func(*note)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.notes[uid]
	if !ok {
		n = &note{}
		m.notes[uid] = n
	}
	change(n)
}

// read returns the note of a Workload, the zero note if there is none.
func (m *memory) read(uid types.UID) note {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n, ok := m.notes[uid]; ok {
		return *n
	}
	return note{}
}

// forget drops a Workload that is gone.
func (m *memory) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.notes, uid)
}

// lose remembers that a Workload was seen to lose its quota.
func (m *memory) lose(uid types.UID, loss gate.Loss) {
	m.edit(uid, func(n *note) { n.loss = loss })
}

// look is how often a finding has been seen.
type look int

const (
	firstLook look = iota
	secondLook
	settledLook
)

// suspect counts a look at a finding about a Workload.
func (m *memory) suspect(uid types.UID, finding gate.Case) look {
	l := secondLook
	m.edit(uid, func(n *note) {
		switch {
		case n.suspected != finding:
			l = firstLook
			n.suspected, n.settled = finding, false
		case n.settled:
			l = settledLook
		}
	})
	return l
}

// settle remembers what the API server said of a suspicion: that it is right, or
// what is found instead.
func (m *memory) settle(uid types.UID, finding gate.Case) {
	if !finding.NeedsFreshTrainJob() {
		m.unsuspect(uid)
		return
	}
	m.edit(uid, func(n *note) { n.suspected, n.settled = finding, true })
}

// unsuspect forgets a suspicion.
func (m *memory) unsuspect(uid types.UID) {
	if m.read(uid).suspected != "" {
		m.edit(uid, func(n *note) { n.suspected, n.settled = "", false })
	}
}

// tellOnce tells whether an ungated start has yet to be told, and takes it as
// told.
func (m *memory) tellOnce(uid types.UID, a fence.Attempt) (first bool) {
	m.edit(uid, func(n *note) {
		first = !n.told.SameReservation(a)
		n.told = a
	})
	return first
}

// fail tells whether a fault has yet to be logged, and takes it as logged.
func (m *memory) fail(uid types.UID, fault string) (first bool) {
	m.edit(uid, func(n *note) {
		first = n.fault != fault
		n.fault = fault
	})
	return first
}

// succeed forgets a fault.
func (m *memory) succeed(uid types.UID) {
	if m.read(uid).fault != "" {
		m.edit(uid, func(n *note) { n.fault = "" })
	}
}

// place remembers what a check gives to the pods of a start, and returns what it
// gave to those of the start before.
func (m *memory) place(uid types.UID, check kueue.AdmissionCheckReference, updates []kueue.PodSetUpdate) (before []kueue.PodSetUpdate) {
	if before = m.read(uid).placed[check]; len(before) == 0 && len(updates) == 0 {
		return nil
	}
	m.edit(uid, func(n *note) {
		placed := maps.Clone(n.placed)
		if placed == nil {
			placed = map[kueue.AdmissionCheckReference][]kueue.PodSetUpdate{}
		}
		placed[check] = updates
		n.placed = placed
	})
	return before
}

// wrote remembers the resource version that a write made.
func (m *memory) wrote(uid types.UID, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[uid] = version
}

// behind tells whether an object, as an informer has it, is older than what this
// process wrote last.
func (m *memory) behind(o metav1.Object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	uid := o.GetUID()
	version, ok := m.written[uid]
	if !ok {
		version, ok = m.older[uid]
	}
	if !ok {
		return false
	}
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version); err == nil && order < 0 {
		return true
	}
	delete(m.written, uid)
	delete(m.older, uid)
	return false
}

// age drops writes that are older than the last call but one. Whatever the
// informers lack of them by now, a conflict is all that it can cost.
func (m *memory) age() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written, m.older = map[types.UID]string{}, m.written
}
