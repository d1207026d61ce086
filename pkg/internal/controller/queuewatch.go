package controller

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// getsCrowded passes the moment when Workloads begin to wait in a ClusterQueue. A
// queue that was crowded all the time needs no event: a held Workload looks again
// by itself.
var getsCrowded = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*kueue.ClusterQueue)
		after, ok2 := e.ObjectNew.(*kueue.ClusterQueue)
		return ok1 && ok2 && before.Status.PendingWorkloads == 0 && after.Status.PendingWorkloads > 0
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// losses are when queues last lost a check, as far as that is not settled.
type losses struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (l *losses) note(queue string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = map[string]time.Time{}
	}
	l.at[queue] = now
}

// settled tells whether a queue has been without a check for lossSettles. One whose
// loss nobody here saw lost it before.
func (l *losses) settled(queue string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, noted := l.at[queue]
	if noted && now.Sub(at) < lossSettles {
		return false
	}
	delete(l.at, queue)
	return true
}

// queueLosses has the Workloads that wait for a check which a queue lost looked at as
// soon as the loss has settled: it may have kept them without quota.
func (g *Gate) queueLosses() handler.EventHandler {
	return handler.Funcs{UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
		before, ok1 := e.ObjectOld.(*kueue.ClusterQueue)
		after, ok2 := e.ObjectNew.(*kueue.ClusterQueue)
		if !ok1 || !ok2 {
			return
		}
		for _, check := range wiring.Dropped(before, after) {
			g.losses.note(after.Name, time.Now())
			for _, r := range g.mapped(ctx, client.MatchingFields{indexCheck: check}) {
				q.AddAfter(r, lossSettles+time.Millisecond)
			}
		}
	}}
}

// mapQueue finds the Workloads that sit on quota which a ClusterQueue could use.
func (g *Gate) mapQueue(ctx context.Context, o client.Object) []reconcile.Request {
	var queues kueue.ClusterQueueList
	if err := g.cached.List(ctx, &queues); err != nil {
		g.log.ErrorContext(ctx, "finding the queues of a cohort", "error", err)
		return nil
	}
	cq, _ := o.(*kueue.ClusterQueue)
	var requests []reconcile.Request
	for i := range queues.Items {
		if q := &queues.Items[i]; q.Name == cq.Name || cq.Spec.CohortName != "" && q.Spec.CohortName != "" {
			requests = append(requests, g.mapped(ctx, client.MatchingFields{indexQuota: q.Name})...)
		}
	}
	return requests
}
