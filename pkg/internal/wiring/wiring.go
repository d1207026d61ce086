// Package wiring puts AdmissionChecks of ours into ClusterQueues and takes them out
// again, without touching anything else in them.
//
// A ClusterQueue belongs to somebody else. So an entry is added by server-side
// apply of that entry alone, with a manager for each check, and preconditioned on
// the queue as it was read: never by way of kubectl, which takes over fields that
// others have applied. A queue without its checks starts jobs ungated, and one with
// a check that nobody serves starts none at all. So an entry is added only once its
// check is active, looked at afterwards, and taken back if it stops the queue.
package wiring

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Wirer wires queues.
type Wirer struct {
	// Client reads and writes the cluster, without a cache.
	Client client.Client
	// Say tells what is waited for; never nil.
	Say func(text string)
	// DryRun has the API server check every write and carry out none.
	DryRun bool
	// Held is asked before each write; an error means that this process may no longer
	// write. Nil means that it always may.
	Held func() error
	// Tick is the time between two looks at what is waited for; Settle is how long a
	// queue may be inactive because of a check that has just been added, since Kueue
	// learns of queues and checks one after the other.
	Tick, Settle time.Duration
}

// New makes a Wirer with the usual times.
func New(c client.Client, say func(text string), dryRun bool) *Wirer {
	return &Wirer{Client: c, Say: say, DryRun: dryRun, Tick: 250 * time.Millisecond, Settle: 10 * time.Second}
}

// Result is what came of one check in one queue.
type Result struct {
	Queue string `json:"queue"`
	Check string `json:"check"`
	// Change is what was done.
	Change Change `json:"change"`
	// Note is what people should know of it.
	Note string `json:"note,omitempty"`
	// Problem is why it is not as wanted; empty if it is.
	Problem string `json:"problem,omitempty"`
	// Held tells that the queue was left with stopPolicy Hold.
	Held bool `json:"held,omitempty"`
}

// Change is what was done to an entry.
type Change string

// Changes.
const (
	// Unchanged is an entry that was as wanted, or could not be made so.
	Unchanged Change = "unchanged"
	// Attached is an entry that was added or changed.
	Attached Change = "attached"
	// Detached is an entry that was removed.
	Detached Change = "detached"
	// Withdrawn is an entry that was added and taken back.
	Withdrawn Change = "withdrawn"
)

// read reads a queue.
func (w *Wirer) read(ctx context.Context, name string) (*kueue.ClusterQueue, error) {
	var cq kueue.ClusterQueue
	if err := w.Client.Get(ctx, types.NamespacedName{Name: name}, &cq); err != nil {
		return nil, err
	}
	return &cq, nil
}

// writer is the client by which queues are written.
func (w *Wirer) writer() (client.Client, error) {
	if w.Held != nil {
		if err := w.Held(); err != nil {
			return nil, err
		}
	}
	if w.DryRun {
		return client.NewDryRunClient(w.Client), nil
	}
	return w.Client, nil
}

// until looks every Tick whether look is done, until ctx ends; then it returns
// what look was missing. What is waited for is told once.
func (w *Wirer) until(ctx context.Context, what string, look func() (missing string, err error)) error {
	last := ""
	for {
		missing, err := look()
		switch {
		case err != nil && ctx.Err() != nil && last != "":
			return fmt.Errorf("gave up waiting until %s: %s", what, last)
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("the time was up before it was known whether %s: %w", what, err)
		case err != nil || missing == "":
			return err
		case last == "":
			w.Say(fmt.Sprintf("waiting until %s: %s", what, missing))
		}
		if last = missing; !Sleep(ctx, w.Tick) {
			return fmt.Errorf("gave up waiting until %s: %s", what, missing)
		}
	}
}

// problem is an error for people.
func problem(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the time was up before it was done; give it more by --timeout"
	case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook"):
		return err.Error() + "; while Kueue's webhook does not answer, nobody can write a queue: start Kueue, or remove its webhook configurations if it is gone for good"
	}
	return err.Error()
}

// write repeats a write of an object as read, until it meets no other write or ctx
// ends.
func write(ctx context.Context, try func() error) error {
	for {
		err := try()
		if !apierrors.IsConflict(err) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it changes faster than it can be written: %w", err)
		}
	}
}

// Sleep passes d and tells whether there is time left: false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
