package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

const (
	// mendBase and mendMax are the least and the most time between two writes of an
	// entry: somebody who drops it each time is not fought.
	mendBase = 2 * time.Second
	mendMax  = 5 * time.Minute
	// mendTimeout is how long a queue may take to settle with an entry.
	mendTimeout = 30 * time.Second
)

// mender puts checks into queues.
type mender struct {
	wirer   *wiring.Wirer
	held    func() error
	backoff *flowcontrol.Backoff

	mu    sync.Mutex
	tries map[string]map[string]try
}

// try is the last try to put a check into a queue.
type try struct {
	// next is before when there is no other one.
	next time.Time
	// refused is the world in which the queue did not stand the check, and came what
	// came of it.
	refused sight
	came    remedy
}

// sight is what of a queue and a check can make a difference to whether the queue
// stands the check.
type sight struct {
	queue, check                     types.UID
	queueGeneration, checkGeneration int64
	// active is since when the check is, in seconds since 1970.
	active int64
}

// remedy is what came of putting a check into a queue.
type remedy struct {
	done bool
	// found tells that it was there already.
	found bool
	// withdrawn tells that the queue did not stand it.
	withdrawn bool
	// why is why it was not done, or what the queue did not stand.
	why string
	// kept tells that people keep it out.
	kept bool
	// after is when to try again, 0 for when something changes.
	after time.Duration
}

func newMender(mgr manager.Manager, held func() error, log *slog.Logger) (*mender, error) {
	// Reads that a write depends on come from the API server.
	live, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("a client for queues: %w", err)
	}
	wirer := wiring.New(live, func(text string) { log.Debug("wiring", "message", text) }, false)
	wirer.Held = held
	return &mender{wirer: wirer, held: held, backoff: flowcontrol.NewBackOff(mendBase, mendMax), tries: map[string]map[string]try{}}, nil
}

// mend puts a check into a queue, unless something speaks against it. The check is
// read at the API server: that people keep it out of a queue is noted there before
// they take it out, so whoever sees it gone finds the note.
func (m *mender) mend(ctx context.Context, cq *kueue.ClusterQueue, e wiring.Entry) (remedy, error) {
	if err := m.held(); err != nil {
		return remedy{}, err
	}
	var check kueue.AdmissionCheck
	err := m.wirer.Client.Get(ctx, client.ObjectKey{Name: e.Check}, &check)
	switch {
	case apierrors.IsNotFound(err):
		return remedy{why: "the check does not exist"}, nil
	case err != nil:
		return remedy{}, fmt.Errorf("reading the check: %w", err)
	case !isOurs(&check):
		return remedy{why: "the check is served by " + check.Spec.ControllerName}, nil
	case wiring.KeptDetached(&check, cq.Name):
		return remedy{kept: true}, nil
	}
	if why := wiring.WhyInactive(&check); why != "" {
		return remedy{why: "the check cannot be served: " + why}, nil
	}
	last := m.last(cq.Name, e.Check)
	if last.refused == sightOf(cq, &check) {
		return last.came, nil
	}
	if wait := time.Until(last.next); wait > 0 {
		return remedy{why: "it was taken out soon after it had been put there, so each time is put off for longer", after: wait.Round(time.Second) + time.Second}, nil
	}
	return m.try(ctx, cq, e)
}

// try makes one try.
func (m *mender) try(ctx context.Context, cq *kueue.ClusterQueue, e wiring.Entry) (remedy, error) {
	limited, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	id := cq.Name + "/" + e.Check
	m.backoff.Next(id, time.Now())
	next := try{next: time.Now().Add(m.backoff.Get(id))}
	wirer := *m.wirer
	wirer.Held = func() error { return m.mayWrite(ctx, cq.Name, e.Check) }
	result := wirer.Attach(limited, cq.Name, e)
	if ctx.Err() != nil || m.held() != nil {
		return remedy{}, ctx.Err() // this process ends
	}
	r, err := m.judge(ctx, cq, e, result, &next)
	if err != nil {
		return r, err
	}
	m.keep(cq.Name, e.Check, next)
	return m.unlessKept(ctx, cq, e, r)
}

// judge says what came of a try, and notes in next if the queue does not stand it.
func (m *mender) judge(ctx context.Context, cq *kueue.ClusterQueue, e wiring.Entry, result wiring.Result, next *try) (remedy, error) {
	withdrawn := result.Change == wiring.Withdrawn
	if result.Problem == "" {
		return remedy{done: result.Change == wiring.Attached, found: result.Change == wiring.Unchanged}, nil
	}
	now, there, err := m.see(ctx, cq.Name, e.Check)
	if err != nil {
		return remedy{}, err
	}
	if !withdrawn && !there {
		return remedy{why: result.Problem, after: time.Until(next.next).Round(time.Second) + time.Second}, nil
	}
	// What the queue does not stand, or has otherwise by somebody else's hand, it will
	// not take the next time either.
	next.refused, next.came = now, remedy{withdrawn: withdrawn, why: result.Problem}
	return next.came, nil
}

// errKept ends a try when people have noted that the check is to stay out.
var errKept = errors.New("people keep it out")

// mayWrite tells whether a try may still write: it may last, and begins anew when it
// meets another write. What was written is taken back after ctx has ended too.
func (m *mender) mayWrite(ctx context.Context, queue, name string) error {
	if err := m.held(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendTimeout)
	defer cancel()
	var check kueue.AdmissionCheck
	if err := m.wirer.Client.Get(ctx, client.ObjectKey{Name: name}, &check); err != nil {
		return err
	}
	if wiring.KeptDetached(&check, queue) {
		return errKept
	}
	return nil
}

// unlessKept takes a check out again if people have noted meanwhile that it is to
// stay out.
func (m *mender) unlessKept(ctx context.Context, cq *kueue.ClusterQueue, e wiring.Entry, r remedy) (remedy, error) {
	var check kueue.AdmissionCheck
	if err := m.wirer.Client.Get(ctx, client.ObjectKey{Name: e.Check}, &check); err != nil {
		return r, client.IgnoreNotFound(err)
	}
	if !wiring.KeptDetached(&check, cq.Name) {
		return r, nil
	}
	if result := m.wirer.Detach(ctx, cq.Name, []string{e.Check}, false)[0]; result.Problem != "" {
		return remedy{}, fmt.Errorf("taking AdmissionCheck %q out of ClusterQueue %q again: %s", e.Check, cq.Name, result.Problem)
	}
	return remedy{kept: true}, nil
}

// see reads a queue and a check, and tells whether the queue names the check.
func (m *mender) see(ctx context.Context, queue, name string) (now sight, there bool, err error) {
	var cq kueue.ClusterQueue
	var check kueue.AdmissionCheck
	if err := m.wirer.Client.Get(ctx, client.ObjectKey{Name: queue}, &cq); err != nil {
		return sight{}, false, client.IgnoreNotFound(err)
	}
	if err := m.wirer.Client.Get(ctx, client.ObjectKey{Name: name}, &check); err != nil {
		return sight{}, false, client.IgnoreNotFound(err)
	}
	return sightOf(&cq, &check), wiring.Stands(&cq, name, nil, false) == wiring.Wired, nil
}

func sightOf(cq *kueue.ClusterQueue, check *kueue.AdmissionCheck) sight {
	s := sight{queue: cq.UID, check: check.UID, queueGeneration: cq.Generation, checkGeneration: check.Generation}
	if active := meta.FindStatusCondition(check.Status.Conditions, kueue.AdmissionCheckActive); active != nil {
		s.active = active.LastTransitionTime.Unix()
	}
	return s
}

// ahead tells whether a queue is seen as it was before the last try.
func (m *mender) ahead(cq *kueue.ClusterQueue, check string) bool {
	refused := m.last(cq.Name, check).refused
	return refused.queue == cq.UID && refused.queueGeneration > cq.Generation
}

func (m *mender) last(queue, check string) try {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tries[queue][check]
}

func (m *mender) keep(queue, check string, t try) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tries[queue] == nil {
		m.tries[queue] = map[string]try{}
	}
	m.tries[queue][check] = t
}

// forget forgets a queue that is gone.
func (m *mender) forget(queue string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tries, queue)
	m.backoff.GC()
}
