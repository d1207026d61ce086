package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
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
	switch err := g.writeWorkload(ctx, snap, plan); {
	case apierrors.IsConflict(err):
		return g.refresh(ctx, snap)
	case apierrors.IsNotFound(err):
		return false, reconcile.Result{}, nil
	case err != nil:
		return false, reconcile.Result{}, err
	}
	g.memory.succeed(snap.Workload.UID)
	g.report(ctx, snap, plan)
	g.answered(ctx, snap, plan)
	g.ask(snap, plan) //nolint:contextcheck // the calls outlive this look at the Workload
	if plan.Retry {
		return false, g.retry(snap.Workload), nil
	}
	g.backoff.DeleteEntry(string(snap.Workload.UID))
	if plan.Wake.IsZero() {
		return false, reconcile.Result{}, nil
	}
	return false, reconcile.Result{RequeueAfter: max(time.Until(plan.Wake), time.Millisecond)}, nil
}

// writeWorkload makes the writes of a plan that go to the Workload. The snapshot
// has the version of the last one, so that the next is preconditioned on it.
func (g *Gate) writeWorkload(ctx context.Context, snap *gate.Snapshot, plan gate.Plan) error {
	if plan.Unpark {
		if err := g.unpark(ctx, snap); err != nil {
			return fmt.Errorf("clearing requeueAt: %w", err)
		}
	}
	if plan.Book != nil {
		if err := g.writeBook(ctx, snap, plan.Book); err != nil {
			return fmt.Errorf("writing the annotation %s: %w", v1alpha1.HoldAnnotation, err)
		}
	}
	if plan.Checks == nil {
		return nil
	}
	if err := g.writeChecks(ctx, snap.Workload, plan); err != nil {
		return fmt.Errorf("writing the checks: %w", err)
	}
	return nil
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

// writeChecks writes our entries and conditions, all of them, because server-side
// apply drops what an owner no longer claims.
func (g *Gate) writeChecks(ctx context.Context, wl *kueue.Workload, plan gate.Plan) error {
	checks := plan.Checks
	status, err := statusOf(checks, plan.Conditions)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
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

// statusOf is what writeChecks applies. podSetUpdates are always given: Kueue does
// not clear them when it resets a check.
func statusOf(checks []kueue.AdmissionCheckState, conditions []metav1.Condition) (map[string]any, error) {
	list := make([]any, 0, len(checks))
	for i := range checks {
		entry, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&checks[i])
		if err != nil {
			return nil, fmt.Errorf("check %q: %w", checks[i].Name, err)
		}
		// Kueue keeps the count, and the delay where it is not asked for.
		delete(entry, "retryCount")
		if checks[i].State != kueue.CheckStateRetry {
			delete(entry, "requeueAfterSeconds")
		}
		if _, ok := entry["podSetUpdates"]; !ok {
			entry["podSetUpdates"] = []any{}
		}
		list = append(list, entry)
	}
	status := map[string]any{"admissionChecks": list}
	if len(conditions) == 0 {
		return status, nil
	}
	ours := make([]any, 0, len(conditions))
	for i := range conditions {
		c, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&conditions[i])
		if err != nil {
			return nil, fmt.Errorf("condition %s: %w", conditions[i].Type, err)
		}
		ours = append(ours, c)
	}
	status["conditions"] = ours
	return status, nil
}

// writeBook writes the annotation that keeps count of holds.
func (g *Gate) writeBook(ctx context.Context, snap *gate.Snapshot, book *hold.Book) error {
	text, err := book.Annotation()
	if err != nil {
		return err
	}
	return g.patch(ctx, snap, g.patchObject, map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.HoldAnnotation: text}}})
}

// unpark takes away the time before which Kueue does not offer the Workload. Only
// a merge patch can: the field is Kueue's, and an apply would not remove it.
func (g *Gate) unpark(ctx context.Context, snap *gate.Snapshot) error {
	return g.patch(ctx, snap, g.patchStatus, map[string]any{"status": map[string]any{"requeueState": map[string]any{"requeueAt": nil}}})
}

type patchFunc func(context.Context, client.Object, client.Patch) error

func (g *Gate) patchObject(ctx context.Context, o client.Object, p client.Patch) error {
	return g.writer.Patch(ctx, o, p, fieldOwner)
}

func (g *Gate) patchStatus(ctx context.Context, o client.Object, p client.Patch) error {
	return g.writer.Status().Patch(ctx, o, p, fieldOwner)
}

// patch sends a merge patch of a Workload, preconditioned on the Workload as read.
func (g *Gate) patch(ctx context.Context, snap *gate.Snapshot, send patchFunc, change map[string]any) error {
	meta, _ := change["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		change["metadata"] = meta
	}
	meta["uid"], meta["resourceVersion"] = snap.Workload.UID, snap.Workload.ResourceVersion
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	if err := g.held(); err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("Workload"))
	u.SetNamespace(snap.Workload.Namespace)
	u.SetName(snap.Workload.Name)
	if err := send(ctx, u, client.RawPatch(types.MergePatchType, data)); err != nil {
		return err
	}
	wl := *snap.Workload
	wl.ResourceVersion = u.GetResourceVersion()
	snap.Workload = &wl
	g.memory.wrote(wl.UID, wl.ResourceVersion)
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
