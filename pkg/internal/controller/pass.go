package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// queue is the work queue of the Gate.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// passes makes a full pass on becoming leader and then once per period: it sees
// that our checks are Active and has every Workload that may wait for one of
// them looked at. Watches do the same sooner; a pass makes up for whatever a
// watch may have missed.
type passes struct {
	period time.Duration
	checks *Checks
	gate   *Gate
	log    *slog.Logger
	// queue yields the Gate's queue once the Gate has started.
	queue chan queue
}

// Start implements manager.Runnable. The manager calls it on the leader only.
func (p *passes) Start(ctx context.Context) error {
	var q queue
	select {
	case q = <-p.queue:
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(p.period)
	defer tick.Stop()
	for {
		if err := p.pass(ctx, q); err != nil && ctx.Err() == nil {
			p.log.ErrorContext(ctx, "full pass", "error", err)
		}
		p.gate.backoff.GC()
		p.gate.memory.age()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// pass makes one full pass. If a check cannot be made Active, the Workloads are
// left to the watches until the next pass.
func (p *passes) pass(ctx context.Context, q queue) error {
	checks, err := ourChecks(ctx, p.checks.cached)
	if err != nil {
		return err
	}
	var failed []error
	for i := range checks {
		failed = append(failed, p.checks.ensureActive(ctx, &checks[i]))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for i := range checks {
		requests, err := waitingFor(ctx, p.checks.cached, checks[i].Name)
		if err != nil {
			return err
		}
		for _, r := range requests {
			q.Add(r)
		}
	}
	return nil
}

// waitingFor finds the Workloads that may wait for a check, by the index alone.
func waitingFor(ctx context.Context, r client.Reader, check string) ([]reconcile.Request, error) {
	return workloads(ctx, r, client.MatchingFields{indexCheck: check})
}

func workloads(ctx context.Context, r client.Reader, by client.MatchingFields) ([]reconcile.Request, error) {
	var list kueue.WorkloadList
	if err := r.List(ctx, &list, by); err != nil {
		return nil, fmt.Errorf("listing workloads: %w", err)
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests, nil
}
