package controller

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// wireWorkers is how many queues are looked at at once. One that takes long to settle
// with a check should not keep the others waiting.
const wireWorkers = 4

// newWires sets up what watches the checks in queues, on replicas that do not lead
// too.
func newWires(ctx context.Context, mgr manager.Manager, o Options) (*Wires, error) {
	w := &Wires{
		cached: mgr.GetClient(), events: mgr.GetEventRecorder("dispatch-admission"), log: o.Log, metrics: o.Metrics.Wiring,
		wanted: o.Wanted, memory: newWireMemory(),
	}
	if o.Mend {
		var err error
		if w.mender, err = newMender(mgr, o.Held, o.Log); err != nil {
			return nil, err
		}
	}
	informer, err := mgr.GetCache().GetInformer(ctx, &kueue.ClusterQueue{})
	if err != nil {
		return nil, fmt.Errorf("informer of queues: %w", err)
	}
	_, err = informer.AddEventHandler(w.queueEvents())
	return w, err
}

// queueEvents takes note of the checks of each version of a queue, then queues it for
// the leader: a later version does not show what an earlier one had.
func (w *Wires) queueEvents() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if cq, ok := o.(*kueue.ClusterQueue); ok {
				w.memory.see(cq)
				w.add(cq.Name)
			}
		},
		UpdateFunc: func(from, to any) {
			before, ok1 := from.(*kueue.ClusterQueue)
			after, ok2 := to.(*kueue.ClusterQueue)
			if !ok1 || !ok2 || before.UID == after.UID && before.Generation == after.Generation && maps.Equal(before.Labels, after.Labels) {
				return // who waits in it changes often
			}
			w.memory.change(before, after)
			w.add(after.Name)
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if cq, ok := o.(*kueue.ClusterQueue); ok {
				w.memory.forget(cq.Name)
				w.add(cq.Name)
			}
		},
	}
}

func (w *Wires) add(name string) {
	if q := w.queue.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	}
}

func watchQueues(mgr manager.Manager, w *Wires) error {
	return builder.ControllerManagedBy(mgr).
		Named("clusterqueue").
		// A check that appears, becomes active, is to be kept out of a queue, or goes,
		// concerns every queue.
		Watches(&kueue.AdmissionCheck{}, handler.EnqueueRequestsFromMapFunc(w.every), builder.WithPredicates(ourCheck)).
		// A new leader looks at every queue once, also at those that are not there.
		WatchesRawSource(source.Func(func(ctx context.Context, q queue) error {
			w.queue.Store(&q)
			for _, r := range w.every(ctx, nil) {
				q.Add(r)
			}
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: wireWorkers, RateLimiter: rateLimiter()}).
		Complete(w)
}

// every is every queue that there is or is to be.
func (w *Wires) every(ctx context.Context, _ client.Object) []reconcile.Request {
	names := map[string]bool{}
	for _, name := range w.wanted.Queues {
		names[name] = true
	}
	var queues kueue.ClusterQueueList
	if err := w.cached.List(ctx, &queues); err != nil {
		w.log.ErrorContext(ctx, "listing the queues", "error", err)
	}
	for i := range queues.Items {
		names[queues.Items[i].Name] = true
	}
	requests := make([]reconcile.Request, 0, len(names))
	for name := range names {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	}
	return requests
}
