package controller

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hooks"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/request"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// plan decides, with all answers to its questions that there are.
func (g *Gate) plan(ctx context.Context, snap *gate.Snapshot) (gate.Plan, error) {
	plan := gate.Decide(*snap, time.Now())
	for g.collect(snap, plan) {
		if err := g.readPods(ctx, snap); err != nil {
			return plan, err
		}
		plan = gate.Decide(*snap, time.Now())
	}
	return plan, nil
}

// collect adds answers to the snapshot, and tells whether there were new ones.
func (g *Gate) collect(snap *gate.Snapshot, plan gate.Plan) (found bool) {
	uid := snap.Workload.UID
	for _, q := range plan.Ask {
		if have, ok := snap.Answers[q.Check]; ok && have.Offer == q.Offer {
			continue
		}
		if o, ok := g.hooks.Answer(uid, string(q.Check), q.Offer); ok && o.Cause != runner.CauseCanceled {
			snap.Answers[q.Check] = answer(q.Offer, o)
			found = true
		} else if since, ok := g.hooks.Asking(uid, string(q.Check), q.Offer); ok && time.Since(since) >= gate.SlowAnswer {
			snap.Answers[q.Check] = gate.Answer{Offer: q.Offer, Slow: true}
			found = true
		}
	}
	return found
}

// answer is what a decision needs of what came of asking a hook.
func answer(offer string, o runner.Outcome) gate.Answer {
	d, verdict := o.Verdict()
	a := gate.Answer{Offer: offer, Decision: d, Verdict: verdict}
	if field, ok := errors.AsType[*admission.FieldError](o.Err); ok {
		a.Problem = field.Error()
	}
	return a
}

// ask puts the questions of a plan. The answers bring the Workload back.
func (g *Gate) ask(snap *gate.Snapshot, plan gate.Plan) {
	key := client.ObjectKeyFromObject(snap.Workload)
	for _, q := range plan.Ask {
		if _, asking := g.hooks.Asking(snap.Workload.UID, string(q.Check), q.Offer); asking {
			continue // the request need not be built again
		}
		g.hooks.Ask(hooks.Question{
			Gate: q.Policy.Name, Workload: snap.Workload.UID, Check: string(q.Check), Offer: q.Offer, Namespace: key.Namespace,
			Request: request.Build(request.Input{
				Workload: snap.Workload, TrainJob: snap.TrainJob, Names: g.policies.names(q.Policy.Name),
				TryNumber: q.TryNumber, HeldSince: q.HeldSince, OfferCount: q.OfferCount,
			}),
			Answered: func() { g.look(reconcile.Request{NamespacedName: key}) },
		})
	}
}

// look queues a Workload for another look.
func (g *Gate) look(r reconcile.Request) {
	if again := g.again.Load(); again != nil {
		(*again)(r)
	}
}

// answered drops the answers that a plan has used, and logs each.
func (g *Gate) answered(ctx context.Context, snap *gate.Snapshot, plan gate.Plan) {
	for _, check := range plan.Answered {
		a, ok := snap.Answers[check]
		if !ok {
			continue
		}
		g.hooks.Done(snap.Workload.UID, string(check))
		decision := "no verdict"
		if a.Verdict {
			decision = a.Decision.Kind().String()
		}
		g.log.InfoContext(ctx, "the hook answered", "workload", snap.Workload.Namespace+"/"+snap.Workload.Name,
			"check", check, "decision", decision, "message", messageOf(plan, check))
	}
}

// messageOf is what a plan has a check say; empty if it does not write it.
func messageOf(plan gate.Plan, check kueue.AdmissionCheckReference) string {
	for _, c := range plan.Checks {
		if c.Name == check {
			return c.Message
		}
	}
	return ""
}
