package startgate

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// world is what the watches have told. Attempts are decided from it, so that
// none costs a request to the API server.
type world struct {
	mu     sync.RWMutex
	known  snapshot
	judged bool // ready has been nil once
	server serverClock
	log    *slog.Logger
}

func newWorld(leaseName string, log *slog.Logger) *world {
	return &world{log: log, known: snapshot{
		leaseName:     leaseName,
		localQueues:   map[string]localQueue{},
		clusterQueues: map[string]clusterQueue{},
		checks:        map[string]check{},
	}}
}

// reasons are why an attempt must wait now, and the ClusterQueue of its queue.
func (w *world) reasons(t target) (reasons []string, clusterQueue string) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.known.reasons(t, time.Now()), w.known.localQueues[t.String()].clusterQueue
}

// ready is nil once every watch has told its first state and the Lease can be
// judged. From then on there is an answer for every attempt, so it stays nil.
func (w *world) ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.judged {
		return nil
	}
	if unread := unseen(w.known.feeds, func(f feedState) bool { return f.fresh.IsZero() }); len(unread) > 0 {
		return errors.New(strings.Join(unread, "; "))
	}
	if w.known.lease.state(time.Now()) == leaseUnknown {
		return fmt.Errorf("waiting for a renewal of Lease %s", w.known.leaseName)
	}
	w.judged = true
	return nil
}

// table is where the objects of one kind are kept. Its methods are called with
// the lock held.
type table interface {
	// reset replaces everything by what a list has told.
	reset(objects []any) error
	// put and drop are for what a watch has told.
	put(object any) error
	drop(object any) error
}

// objects is the table of a kind whose objects are kept in a map.
type objects[T, S any] struct {
	into *map[string]S
	slim func(T) S
}

func (o objects[T, S]) reset(all []any) error {
	clear(*o.into)
	var errs []error
	for _, object := range all {
		errs = append(errs, o.put(object))
	}
	return errors.Join(errs...)
}

func (o objects[T, S]) put(object any) error {
	key, err := keyOf(object)
	if err != nil {
		return err
	}
	typed, ok := object.(T)
	if !ok {
		return fmt.Errorf("%s: a %T instead of a %T", key, object, typed)
	}
	(*o.into)[key] = o.slim(typed)
	return nil
}

func (o objects[T, S]) drop(object any) error {
	key, err := keyOf(object)
	if err != nil {
		return err
	}
	delete(*o.into, key)
	return nil
}

// keyOf is namespace/name, or the name of what has no namespace.
func keyOf(object any) (string, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	if m.GetNamespace() == "" {
		return m.GetName(), nil
	}
	return m.GetNamespace() + "/" + m.GetName(), nil
}

// theLease is the table of the one Lease.
type theLease struct{ w *world }

func (t theLease) reset(all []any) error {
	if len(all) == 0 {
		t.w.known.lease = leaseClock{}
		return nil
	}
	return t.observe(all[0], false)
}

func (t theLease) put(object any) error { return t.observe(object, true) }

func (t theLease) drop(any) error {
	t.w.known.lease = leaseClock{}
	return nil
}

func (t theLease) observe(object any, live bool) error {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("a %T instead of a Lease", object)
	}
	now := time.Now()
	t.w.known.lease = t.w.known.lease.observe(lease, live, now, t.w.server.at(now))
	return nil
}

func (w *world) tables() [kinds]table {
	return [kinds]table{
		leases:        theLease{w},
		localQueues:   objects[*kueue.LocalQueue, localQueue]{&w.known.localQueues, slimLocalQueue},
		clusterQueues: objects[*kueue.ClusterQueue, clusterQueue]{&w.known.clusterQueues, slimClusterQueue},
		checks:        objects[*kueue.AdmissionCheck, check]{&w.known.checks, slimCheck},
	}
}
