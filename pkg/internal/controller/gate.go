// Package controller is the readmission gate on the wire: it watches, takes a
// snapshot, asks package gate for a plan and carries the plan out. It is the
// only package of the controller that reads or writes the cluster.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hooks"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/lease"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// maxConflicts bounds how often one pass over a Workload starts again at once
// because the Workload had changed. Kueue writes conditions right after a
// reservation, so one conflict is common and three are not.
const maxConflicts = 3

// Retries of what may change without an event, and of refused writes. Trainer
// refuses a new count for half a second to two seconds after an eviction.
const (
	retryBase = 50 * time.Millisecond
	retryMax  = 10 * time.Second
	// faultTold is the delay from which on a fault is told to the job's owner.
	faultTold = 500 * time.Millisecond
)

// Gate reconciles Workloads.
type Gate struct {
	// cached reads from informers, live from the API server.
	cached  client.Reader
	live    client.Reader
	writer  client.Client
	held    func() error
	log     *slog.Logger
	events  events.EventRecorder
	metrics *metrics.Metrics
	memory  *memory
	backoff *flowcontrol.Backoff

	// wanted says which queues this controller puts checks back into, if mend is true;
	// losses are the checks that queues have just lost.
	wanted wiring.Wanted
	mend   bool
	losses losses

	policies *policies
	hooks    *hooks.Hooks
	pods     *podWatch
	// again queues a Workload; set once its controller runs.
	again atomic.Pointer[func(reconcile.Request)]
}

// Reconcile looks at one Workload and does what it needs.
func (g *Gate) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	snap, err := g.snapshot(ctx, req.NamespacedName)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if g.behind(snap) {
		// The event of our own write is still on its way, and will bring the
		// Workload here again.
		return reconcile.Result{}, nil
	}
	for range maxConflicts {
		plan, err := g.decide(ctx, &snap)
		if err != nil {
			return g.fault(ctx, snap, plan, err), nil
		}
		again, result, err := g.apply(ctx, &snap, plan)
		if err != nil {
			return g.fault(ctx, snap, plan, err), nil
		}
		if !again {
			return result, nil
		}
	}
	return g.retry(snap.Workload), nil
}

// behind tells whether the informers lack a write of ours that the decision would
// rest on. A running Workload is decided all the same: events of its TrainJob do
// not lead back to it.
func (g *Gate) behind(snap gate.Snapshot) bool {
	return g.memory.behind(snap.Workload) ||
		snap.TrainJob != nil && gate.PhaseOf(snap.Workload) == gate.PhaseReserved && g.memory.behind(snap.TrainJob)
}

// decide asks for a plan. A finding that a lagging informer could fake gets a
// second look, then one at the API server, and is believed from then on.
func (g *Gate) decide(ctx context.Context, snap *gate.Snapshot) (gate.Plan, error) {
	uid := snap.Workload.UID
	snap.Loss = g.memory.read(uid).loss
	plan, err := g.plan(ctx, snap)
	if err != nil {
		return plan, err
	}
	if !plan.Case.NeedsFreshTrainJob() {
		g.memory.unsuspect(uid)
		return plan, nil
	}
	l := g.memory.suspect(uid, plan.Case)
	if l == firstLook && plan.Case == gate.CaseUngated && !g.memory.behind(snap.TrainJob) {
		l = secondLook // the job may be gone before the next look
	}
	switch l {
	case firstLook:
		return gate.Plan{Case: gate.CaseNone, Retry: true}, nil
	case settledLook:
		return plan.Settled(), nil
	case secondLook:
	}
	owner := gate.TrainJobOwner(snap.Workload)
	job, err := trainJob(ctx, g.live, snap.Workload.Namespace, owner.Name)
	if err != nil {
		return plan, err
	}
	snap.TrainJob = job
	if plan, err = g.plan(ctx, snap); err == nil {
		g.memory.settle(uid, plan.Case)
	}
	return plan, err
}

// fault deals with what is neither a conflict nor a refusal: the API server, a
// webhook or the network fails. It is logged once, and if it lasts, the checks
// say that the job waits for it.
func (g *Gate) fault(ctx context.Context, snap gate.Snapshot, plan gate.Plan, err error) reconcile.Result {
	wl := snap.Workload
	if ctx.Err() != nil {
		return reconcile.Result{}
	}
	if !errors.Is(err, lease.ErrLost) && g.memory.fail(wl.UID, err.Error()) {
		g.log.ErrorContext(ctx, "a workload cannot be served for now", "workload", wl.Namespace+"/"+wl.Name, "error", err)
	}
	if plan.Raise != nil && g.backoff.Get(string(wl.UID)) >= faultTold {
		if faulted := snap.Faulted(plan, time.Now()); faulted.Checks != nil {
			// If this fails too, nothing more can be done for now.
			_ = g.writeChecks(ctx, wl, faulted)
		}
	}
	return g.retry(wl)
}

// retry asks for another look after a delay that grows with each call.
func (g *Gate) retry(wl *kueue.Workload) reconcile.Result {
	id := string(wl.UID)
	g.backoff.Next(id, time.Now())
	return reconcile.Result{RequeueAfter: g.backoff.Get(id)}
}
