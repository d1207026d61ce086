package controller

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// reasonUngated is the reason of the event about a start that the gate missed.
const reasonUngated = "UngatedAdmission"

// report says what was done, after it was done.
func (g *Gate) report(ctx context.Context, snap *gate.Snapshot, plan gate.Plan) {
	log := g.log.With("workload", snap.Workload.Namespace+"/"+snap.Workload.Name)
	if owner := gate.TrainJobOwner(snap.Workload); owner != nil {
		log = log.With("trainjob", owner.Name)
	}
	switch {
	case plan.Case == gate.CaseOwnerGone:
		log.InfoContext(ctx, "the trainjob of the workload does not exist")
	case plan.Case == gate.CaseUngated:
		g.ungated(ctx, snap, plan)
	case plan.Checks != nil:
		log.Log(ctx, level(plan.Case), "wrote the checks", "case", plan.Case, "message", plan.Message)
	}
}

// level is how much an operator should care for what the checks now say. A
// finding is logged once, when the message in the Workload changes with it.
func level(c gate.Case) slog.Level {
	switch c {
	case gate.CaseRunning, gate.CaseUsed, gate.CaseBadRecord:
		return slog.LevelWarn
	case gate.CaseStale:
		return slog.LevelInfo
	case gate.CaseNone, gate.CaseNotGated, gate.CaseOwnerGone, gate.CaseOldPods, gate.CaseRaise, gate.CaseRaised, gate.CaseLate, gate.CaseUngated:
	}
	return slog.LevelDebug
}

// ungated tells about a start whose pods carry no new A, once per start.
func (g *Gate) ungated(ctx context.Context, snap *gate.Snapshot, plan gate.Plan) {
	if !g.memory.tellOnce(snap.Workload.UID, plan.Attempt) {
		return
	}
	const text = "Kueue started this job although its admission count was not raised for this start."
	g.metrics.Ungated.Inc()
	g.log.ErrorContext(ctx, "ungated admission", "workload", snap.Workload.Namespace+"/"+snap.Workload.Name,
		"trainjob", snap.TrainJob.Namespace+"/"+snap.TrainJob.Name)
	g.events.Eventf(snap.Workload, nil, corev1.EventTypeWarning, reasonUngated, "VerifyStart", text)
	g.events.Eventf(snap.TrainJob, snap.Workload, corev1.EventTypeWarning, reasonUngated, "VerifyStart", text)
}
