package controller

import (
	"context"
	"hash/fnv"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/placement"
)

// Reasons of events, besides those that decisions name.
const (
	// reasonUngated is about a start that the gate missed.
	reasonUngated = "UngatedAdmission"
	// reasonDropped is about placement that earlier starts had and this one has
	// not.
	reasonDropped = "PlacementKeysDropped"
)

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
	for _, t := range plan.Tell {
		g.tell(ctx, log, snap.Workload, t)
	}
	g.warnDropped(snap.Workload, plan)
}

// tell tells the people whose job it is, on the Workload and on the job.
func (g *Gate) tell(ctx context.Context, log *slog.Logger, wl *kueue.Workload, t gate.Told) {
	kind := corev1.EventTypeWarning
	m := g.metrics.Hooks
	switch t.Topic {
	case gate.ToldHeld:
		kind = corev1.EventTypeNormal
		m.Holds.WithLabelValues(t.Gate).Inc()
	case gate.ToldReleased:
		kind = corev1.EventTypeNormal
	case gate.ToldAudited:
		kind = corev1.EventTypeNormal
		m.Audited.WithLabelValues(t.Gate, t.Decision).Inc()
	case gate.ToldQuota:
		kind = corev1.EventTypeNormal
		m.QuotaReturns.WithLabelValues(t.Gate).Inc()
	case gate.ToldFailedOpen:
		m.FailedOpen.WithLabelValues(t.Gate).Inc()
	case gate.ToldPodTimeout:
		m.PodTimeouts.Inc()
	case gate.ToldNoVerdict, gate.ToldRefused:
	}
	log.InfoContext(ctx, "told the owner of the job", "topic", t.Topic, "check", t.Check, "message", t.Text)
	g.event(wl, kind, t.Topic, t.Text)
}

// event writes an event on a Workload and on its job. Events of the same reason
// become one with a count if their references are the same, and then only the first
// text is kept. So the references of an event that repeats word for word have no
// version, or one that changes with the text alone, and those of others do.
func (g *Gate) event(wl *kueue.Workload, kind string, reason gate.Topic, text string) {
	about := &corev1.ObjectReference{
		APIVersion: kueue.SchemeGroupVersion.String(), Kind: "Workload", Namespace: wl.Namespace, Name: wl.Name, UID: wl.UID,
	}
	switch reason {
	case gate.ToldQuota:
	case gate.ToldNoVerdict:
		about.ResourceVersion = textVersion(text) // what is wrong may change
	case gate.ToldHeld, gate.ToldReleased, gate.ToldRefused, gate.ToldFailedOpen, gate.ToldAudited, gate.ToldPodTimeout, reasonDropped:
		about.ResourceVersion = wl.ResourceVersion
	}
	g.events.Eventf(about, nil, kind, string(reason), "Gate", "%s", gate.Message(text))
	if owner := gate.Owner(wl); owner != nil {
		g.events.Eventf(&corev1.ObjectReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: wl.Namespace, Name: owner.Name, UID: owner.UID,
		}, about, kind, string(reason), "Gate", "%s", gate.Message(text))
	}
}

// textVersion stands for a text.
func textVersion(text string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return strconv.FormatUint(h.Sum64(), 10)
}

// warnDropped warns when a start lacks placement that an earlier one had: JobSet
// merges what it gets into its Jobs and never takes a key away, so the pods will
// need both.
func (g *Gate) warnDropped(wl *kueue.Workload, plan gate.Plan) {
	for _, c := range plan.Checks {
		if !slices.Contains(plan.Opens, c.Name) {
			continue
		}
		before := g.memory.place(wl.UID, c.Name, c.PodSetUpdates)
		dropped := placement.Dropped(before, c.PodSetUpdates)
		owner := gate.Owner(wl)
		if len(dropped) == 0 || owner == nil || owner.Kind != "TrainJob" && owner.Kind != "JobSet" {
			continue
		}
		g.event(wl, corev1.EventTypeWarning, reasonDropped, "The hook no longer sets "+strings.Join(dropped, ", ")+
			", but JobSet keeps them on Jobs that exist. A hook should always answer with the same set of keys.")
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
	case gate.CaseNone, gate.CaseNotGated, gate.CaseOwnerGone, gate.CaseOldPods, gate.CaseRaise, gate.CaseRaised, gate.CaseLate, gate.CaseUngated,
		gate.CasePark, gate.CaseUnpark, gate.CaseReleased:
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
