package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// reasonUngated is the reason of the event about a start that the gate missed.
const reasonUngated = "UngatedAdmission"

// report says what was done, after it was done. What is waited for is said once,
// when the message in the Workload changes.
func (g *Gate) report(ctx context.Context, snap *gate.Snapshot, plan gate.Plan) {
	log := g.log.With("workload", snap.Workload.Namespace+"/"+snap.Workload.Name)
	changed := plan.Checks != nil
	switch plan.Case {
	case gate.CaseOwnerGone:
		log.InfoContext(ctx, "the trainjob of the workload does not exist", "trainjob", gate.TrainJobOwner(snap.Workload).Name)
	case gate.CaseRunning:
		if changed {
			log.WarnContext(ctx, "the trainjob is not suspended although its workload waits", "trainjob", snap.TrainJob.Name)
		}
	case gate.CaseUsed:
		if changed {
			log.WarnContext(ctx, "the trainjob ran before Kueue started it; its admission count is used up", "trainjob", snap.TrainJob.Name)
		}
	case gate.CaseBadRecord:
		if changed {
			log.WarnContext(ctx, "the admission count of the trainjob cannot be raised", "trainjob", snap.TrainJob.Name, "reason", plan.Message)
		}
	case gate.CaseStale:
		log.InfoContext(ctx, "took an answer back because the quota was lost")
	case gate.CaseUngated:
		g.ungated(ctx, snap, plan)
	case gate.CaseNone, gate.CaseNotGated, gate.CaseOldPods, gate.CaseRaise, gate.CaseRaised, gate.CaseLate:
		if changed {
			log.DebugContext(ctx, "wrote the checks", "case", plan.Case)
		}
	}
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
