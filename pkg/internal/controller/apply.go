package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// fieldOwner is the field manager of everything the gate writes.
const fieldOwner = client.FieldOwner("dispatch-admission")

// apply carries a plan out: the TrainJob, then the Workload, then what is said
// about it. again asks to decide anew on the refreshed snapshot.
func (g *Gate) apply(ctx context.Context, snap *gate.Snapshot, plan gate.Plan) (again bool, result reconcile.Result, err error) {
	if plan.Raise != nil {
		next, done, err := g.raise(ctx, snap, plan)
		if err != nil {
			return false, reconcile.Result{}, err
		}
		if done {
			return false, g.retry(snap.Workload), nil
		}
		plan = next
	}
	if plan.Checks != nil {
		switch err := g.writeChecks(ctx, snap.Workload, plan.Checks); {
		case apierrors.IsConflict(err):
			return g.refresh(ctx, snap)
		case apierrors.IsNotFound(err):
			return false, reconcile.Result{}, nil
		case err != nil:
			return false, reconcile.Result{}, fmt.Errorf("writing the checks: %w", err)
		}
	}
	g.memory.succeed(snap.Workload.UID)
	g.report(ctx, snap, plan)
	if plan.Retry {
		return false, g.retry(snap.Workload), nil
	}
	g.backoff.DeleteEntry(string(snap.Workload.UID))
	return false, reconcile.Result{}, nil
}

// raise writes the new count. On success the snapshot has the TrainJob as
// written, so that whatever happens to the second write, A is not raised again
// for this attempt. done means that the plan ends here for now.
func (g *Gate) raise(ctx context.Context, snap *gate.Snapshot, plan gate.Plan) (next gate.Plan, done bool, err error) {
	job := snap.TrainJob
	log := g.log.With("trainjob", job.Namespace+"/"+job.Name, "workload", snap.Workload.Name)
	u := plan.Raise.Patch(job)
	if err = g.held(); err == nil {
		err = g.writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), fieldOwner, client.ForceOwnership)
	}
	switch reason, refused := refusal(err); {
	case refused:
		g.metrics.Refusals.Inc()
		next = snap.Refused(plan, reason, time.Now())
		if next.Checks != nil {
			log.Info("the trainjob does not accept a new admission count yet", "reason", gate.Refusal(reason))
		}
		return next, false, nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		g.metrics.Conflicts.WithLabelValues("TrainJob").Inc()
		log.Info("the trainjob changed before the admission count was raised", "reason", err.Error())
		return plan, true, nil
	case err != nil:
		return plan, true, fmt.Errorf("raising the admission count: %w", err)
	}
	written := &trainer.TrainJob{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, written); err != nil {
		return plan, true, fmt.Errorf("reading the trainjob as written: %w", err)
	}
	snap.TrainJob = written
	g.memory.wrote(written.UID, written.ResourceVersion)
	g.metrics.Raises.Inc()
	log.Info("raised the admission count", "admission", plan.Raise.Count)
	return plan, false, nil
}

// writeChecks writes our entries, all of them, because server-side apply drops
// what an owner no longer claims. podSetUpdates are always given: Kueue does not
// clear them when it resets a check.
func (g *Gate) writeChecks(ctx context.Context, wl *kueue.Workload, checks []kueue.AdmissionCheckState) error {
	list := make([]any, 0, len(checks))
	for i := range checks {
		entry, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&checks[i])
		if err != nil {
			return fmt.Errorf("check %q: %w", checks[i].Name, err)
		}
		// Kueue keeps these two.
		delete(entry, "retryCount")
		delete(entry, "requeueAfterSeconds")
		if _, ok := entry["podSetUpdates"]; !ok {
			entry["podSetUpdates"] = []any{}
		}
		list = append(list, entry)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"admissionChecks": list}}}
	u.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("Workload"))
	u.SetNamespace(wl.Namespace)
	u.SetName(wl.Name)
	u.SetUID(wl.UID)
	u.SetResourceVersion(wl.ResourceVersion)
	if err := g.held(); err != nil {
		return err
	}
	if err := g.writer.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), fieldOwner, client.ForceOwnership); err != nil {
		return err
	}
	g.memory.wrote(wl.UID, u.GetResourceVersion())
	for i := range checks {
		if !slices.ContainsFunc(wl.Status.AdmissionChecks, func(c kueue.AdmissionCheckState) bool {
			return c.Name == checks[i].Name && c.State == checks[i].State && c.Message == checks[i].Message
		}) {
			g.metrics.Answers.WithLabelValues(string(checks[i].State)).Inc()
		}
	}
	return nil
}

// refresh reads the Workload anew after a conflict. It is the only read that a
// gated start may cost, and only if somebody else wrote at the same time.
func (g *Gate) refresh(ctx context.Context, snap *gate.Snapshot) (again bool, result reconcile.Result, err error) {
	g.metrics.Conflicts.WithLabelValues("Workload").Inc()
	g.log.Info("the workload changed before its checks were written", "workload", snap.Workload.Namespace+"/"+snap.Workload.Name)
	var wl kueue.Workload
	err = g.live.Get(ctx, client.ObjectKeyFromObject(snap.Workload), &wl)
	if apierrors.IsNotFound(err) || err == nil && wl.UID != snap.Workload.UID {
		return false, reconcile.Result{}, nil
	}
	if err != nil {
		return false, reconcile.Result{}, fmt.Errorf("reading the workload after a conflict: %w", err)
	}
	snap.Workload = &wl
	return true, reconcile.Result{}, nil
}
