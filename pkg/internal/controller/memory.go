package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// memory holds the little that the cluster does not: which Workloads were seen
// to lose their quota while an answer of ours stood, and which ungated starts
// have been told. Losing it costs nothing but a second telling: quota that is
// lost and regained within one second, at the very time the leader changes,
// leaves an A that no start has used.
type memory struct {
	mu       sync.Mutex
	losses   map[types.UID]gate.Loss
	reported map[types.UID]fence.Attempt
}

func newMemory() *memory {
	return &memory{losses: map[types.UID]gate.Loss{}, reported: map[types.UID]fence.Attempt{}}
}

// lose remembers that a Workload was seen to lose its quota.
func (m *memory) lose(uid types.UID, loss gate.Loss) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.losses[uid] = loss
}

// loss is the last one of a Workload; nil if there was none.
func (m *memory) loss(uid types.UID) gate.Loss {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.losses[uid]
}

// reportOnce tells whether an ungated start has yet to be told, and takes it as
// told.
func (m *memory) reportOnce(uid types.UID, a fence.Attempt) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if told, ok := m.reported[uid]; ok && told.SameReservation(a) {
		return false
	}
	m.reported[uid] = a
	return true
}

// forget drops a Workload that is gone.
func (m *memory) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.losses, uid)
	delete(m.reported, uid)
}
