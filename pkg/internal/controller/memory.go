package controller

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// memory holds the little that the cluster does not: which Workloads were seen
// to lose their quota while an answer of ours stood, and which ungated starts
// have been told. Losing it costs nothing but a second telling: quota that is
// lost and regained within one second, at the very time the leader changes,
// leaves an A that no start has used.
//
// It also holds which version of an object this process wrote last, until the
// informers have it: a decision on what was there before would only repeat the
// write and conflict with it.
type memory struct {
	mu       sync.Mutex
	losses   map[types.UID]gate.Loss
	reported map[types.UID]fence.Attempt
	suspects sets.Set[types.UID]
	// written and older are the writes since the last call of age and since the
	// one before.
	written, older map[types.UID]string
}

func newMemory() *memory {
	return &memory{
		losses: map[types.UID]gate.Loss{}, reported: map[types.UID]fence.Attempt{}, suspects: sets.New[types.UID](),
		written: map[types.UID]string{},
	}
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

// suspect tells whether a finding about a Workload is a first one. The next call
// says that it is not, and the one after that again that it is.
func (m *memory) suspect(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.suspects.Has(uid) {
		m.suspects.Delete(uid)
		return false
	}
	m.suspects.Insert(uid)
	return true
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
	m.suspects.Delete(uid)
}
