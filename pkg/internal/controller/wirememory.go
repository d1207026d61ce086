package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// wireMemory is what this process has seen of checks in queues. Replicas that do not
// lead see the same, so that a new leader knows what was lost before.
type wireMemory struct {
	mu     sync.Mutex
	queues map[string]*wiredQueue
	// missing has what was told about queues that are to be there and are not.
	missing map[string]map[string]bool
}

// wiredQueue is what is remembered of a queue.
type wiredQueue struct {
	uid    types.UID
	checks map[string]*seenWire
}

// seenWire is what is remembered of a check in a queue.
type seenWire struct {
	// had tells that the queue has had it, by who took it out.
	had bool
	by  string
	// lost is when it was first found gone; zero while it is there.
	lost    time.Time
	counted bool
	// told is what was last said of it.
	told string
}

func newWireMemory() *wireMemory {
	return &wireMemory{queues: map[string]*wiredQueue{}, missing: map[string]map[string]bool{}}
}

// of returns what is remembered of a check in a queue. Another queue of the same name
// begins anew. The caller holds the lock.
func (m *wireMemory) of(cq *kueue.ClusterQueue, check string) *seenWire {
	q := m.queues[cq.Name]
	if q == nil || q.uid != cq.UID {
		q = &wiredQueue{uid: cq.UID, checks: map[string]*seenWire{}}
		m.queues[cq.Name] = q
	}
	s := q.checks[check]
	if s == nil {
		s = &seenWire{}
		q.checks[check] = s
	}
	return s
}

// see takes note of the checks that a queue has.
func (m *wireMemory) see(cq *kueue.ClusterQueue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.missing, cq.Name)
	for _, e := range wiring.Entries(cq) {
		m.of(cq, string(e.Name)).had = true
	}
}

// change takes note of what a write did to the checks of a queue.
func (m *wireMemory) change(before, after *kueue.ClusterQueue) {
	if before.UID == after.UID {
		m.see(before)
	}
	m.see(after)
	m.mu.Lock()
	defer m.mu.Unlock()
	if before.UID != after.UID {
		return
	}
	for _, name := range wiring.Dropped(before, after) {
		m.of(after, name).by = wiring.Writers(before, after)
	}
}

// forget forgets a queue that is gone.
func (m *wireMemory) forget(queue string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.queues, queue)
}

// checks are those that a queue is remembered with.
func (m *wireMemory) checks(cq *kueue.ClusterQueue) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[cq.Name]
	if q == nil || q.uid != cq.UID {
		return nil
	}
	return slices.Collect(maps.Keys(q.checks))
}

func (m *wireMemory) had(cq *kueue.ClusterQueue, check string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(cq, check).had
}

func (m *wireMemory) by(cq *kueue.ClusterQueue, check string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if by := m.of(cq, check).by; by != "" {
		return by
	}
	return "somebody unknown"
}

// drop forgets a check that does not concern a queue any more.
func (m *wireMemory) drop(cq *kueue.ClusterQueue, check string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queues[cq.Name]; q != nil {
		delete(q.checks, check)
	}
}

// wired takes note that a check is in a queue as it should be.
func (m *wireMemory) wired(cq *kueue.ClusterQueue, check string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*m.of(cq, check) = seenWire{had: true}
}

// lostFor is how long a check has been found gone from a queue.
func (m *wireMemory) lostFor(cq *kueue.ClusterQueue, check string, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(cq, check)
	if s.lost.IsZero() {
		s.lost = now
	}
	return now.Sub(s.lost)
}

// count tells whether a loss is to be counted, once.
func (m *wireMemory) count(cq *kueue.ClusterQueue, check string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(cq, check)
	first := !s.counted
	s.counted = true
	return first
}

// tell tells whether something is to be said of a check in a queue that was not the
// last thing said.
func (m *wireMemory) tell(cq *kueue.ClusterQueue, check, what string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(cq, check)
	changed := s.told != what
	s.told = what
	return changed
}

// tellGone tells whether something is to be said of a queue that does not exist, once.
func (m *wireMemory) tellGone(queue, what string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.missing[queue] == nil {
		m.missing[queue] = map[string]bool{}
	}
	first := !m.missing[queue][what]
	m.missing[queue][what] = true
	return first
}
