package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
)

// Indexes of cached Workloads. Both hold waiting Workloads only.
const (
	// indexCheck is by the names of the checks that a Workload may wait for.
	indexCheck = "waiting-for-check"
	// indexOwner is by the UID of the TrainJob that a Workload was made for.
	indexOwner = "waiting-owner"
)

// Options are what the controllers are built from.
type Options struct {
	// Held is asked before each write; an error means that this replica may no
	// longer write.
	Held func() error
	// Resync is the time between full passes; greater than 0.
	Resync time.Duration
	// Workers is how many Workloads are reconciled at once; at least 1.
	Workers int
	Log     *slog.Logger
	Metrics *metrics.Metrics
}

// Setup adds the controllers to a manager.
func Setup(ctx context.Context, mgr manager.Manager, o Options) error {
	if err := setupCache(ctx, mgr); err != nil {
		return err
	}
	checks := &Checks{cached: mgr.GetClient(), writer: mgr.GetClient(), held: o.Held, log: o.Log}
	g := &Gate{
		cached: mgr.GetClient(), live: mgr.GetAPIReader(), writer: mgr.GetClient(), held: o.Held,
		log: o.Log, events: mgr.GetEventRecorder("dispatch-admission"), metrics: o.Metrics,
		memory: newMemory(), backoff: flowcontrol.NewBackOff(retryBase, retryMax),
	}
	p := &passes{period: o.Resync, checks: checks, gate: g, log: o.Log, queue: make(chan queue, 1)}
	if err := mgr.Add(p); err != nil {
		return fmt.Errorf("adding the full pass: %w", err)
	}
	if err := watchChecks(mgr, checks); err != nil {
		return fmt.Errorf("controller of admission checks: %w", err)
	}
	if err := watchWorkloads(mgr, g, p, o.Workers); err != nil {
		return fmt.Errorf("controller of workloads: %w", err)
	}
	return nil
}

// setupCache adds the indexes and starts every informer with the manager, on
// candidates too, so that a new leader has its caches at once.
func setupCache(ctx context.Context, mgr manager.Manager) error {
	indexes := map[string]client.IndexerFunc{indexCheck: byCheck, indexOwner: byOwner}
	for name, index := range indexes {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &kueue.Workload{}, name, index); err != nil {
			return fmt.Errorf("index %s: %w", name, err)
		}
	}
	for _, object := range []client.Object{&kueue.AdmissionCheck{}, &kueue.Workload{}, &trainer.TrainJob{}} {
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return fmt.Errorf("informer of %T: %w", object, err)
		}
	}
	return nil
}

func byCheck(o client.Object) []string {
	wl, ok := o.(*kueue.Workload)
	if !ok {
		return nil
	}
	return gate.Waiting(wl)
}

func byOwner(o client.Object) []string {
	wl, ok := o.(*kueue.Workload)
	if !ok || len(gate.Waiting(wl)) == 0 {
		return nil
	}
	if owner := gate.TrainJobOwner(wl); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// ourCheck passes events of our checks only. The controller's name cannot
// change, so the rest never matters.
var ourCheck = predicate.NewPredicateFuncs(func(o client.Object) bool {
	check, ok := o.(*kueue.AdmissionCheck)
	return ok && isOurs(check)
})

func watchChecks(mgr manager.Manager, c *Checks) error {
	return builder.ControllerManagedBy(mgr).
		Named("admissioncheck").
		// A new check is to be made Active at once; one that somebody made
		// inactive, again.
		For(&kueue.AdmissionCheck{}, builder.WithPredicates(ourCheck)).
		WithOptions(controller.Options{RateLimiter: rateLimiter()}).
		Complete(c)
}

func watchWorkloads(mgr manager.Manager, g *Gate, p *passes, workers int) error {
	return builder.ControllerManagedBy(mgr).
		Named("workload").
		// The object of it all.
		Watches(&kueue.Workload{}, g.workloadEvents()).
		// A TrainJob that appears, is suspended, or whose pods stop, opens the
		// gate of the Workload that waits for it.
		Watches(&trainer.TrainJob{}, handler.EnqueueRequestsFromMapFunc(g.mapTrainJob)).
		// A check that appears after the Workloads that name it has to be
		// answered for each of them.
		Watches(&kueue.AdmissionCheck{}, handler.EnqueueRequestsFromMapFunc(g.mapCheck), builder.WithPredicates(ourCheck)).
		// The full pass adds to the same queue.
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			p.queue <- q
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: rateLimiter()}).
		Complete(g)
}

// rateLimiter spaces retries after faults. Half a minute at most: a fault of the
// API server should not delay jobs for long after it has ended.
func rateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryBase, 30*time.Second)
}

// workloadEvents queues Workloads that may need the gate, and takes note of
// each loss of quota, which a later version of the object need not show.
func (g *Gate) workloadEvents() handler.EventHandler {
	add := func(o client.Object, q queue) {
		if wl, ok := o.(*kueue.Workload); ok && gate.Relevant(wl) {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(wl)})
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { add(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*kueue.Workload)
			after, ok2 := e.ObjectNew.(*kueue.Workload)
			if ok1 && ok2 && before.UID == after.UID {
				if loss := gate.LossBetween(before, after); loss != nil {
					g.memory.lose(after.UID, loss)
				}
			}
			add(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { g.memory.forget(e.Object.GetUID()) },
	}
}

func (g *Gate) mapTrainJob(ctx context.Context, job client.Object) []reconcile.Request {
	return g.mapped(ctx, client.MatchingFields{indexOwner: string(job.GetUID())})
}

func (g *Gate) mapCheck(ctx context.Context, check client.Object) []reconcile.Request {
	return g.mapped(ctx, client.MatchingFields{indexCheck: check.GetName()})
}

func (g *Gate) mapped(ctx context.Context, by client.MatchingFields) []reconcile.Request {
	requests, err := workloads(ctx, g.cached, by)
	if err != nil {
		g.log.ErrorContext(ctx, "finding the workloads that an event concerns", "error", err)
	}
	return requests
}
