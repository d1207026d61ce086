package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// Reasons of the condition Active of our checks.
const (
	reasonStarted       = "ControllerStarted"
	reasonBadParameters = "BadParameters"
)

// Checks reconciles AdmissionChecks: it keeps the condition Active of ours.
type Checks struct {
	cached client.Reader
	writer client.Client
	held   func() error
	log    *slog.Logger

	policies *policies
}

// Reconcile looks at one AdmissionCheck.
func (c *Checks) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var check kueue.AdmissionCheck
	err := c.cached.Get(ctx, req.NamespacedName, &check)
	if apierrors.IsNotFound(err) || err == nil && !isOurs(&check) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the check: %w", err)
	}
	return reconcile.Result{}, c.ensureActive(ctx, &check)
}

// ensureActive writes the condition Active of a check, unless it is right.
func (c *Checks) ensureActive(ctx context.Context, check *kueue.AdmissionCheck) error {
	if check.DeletionTimestamp != nil {
		return nil
	}
	_, broken, err := c.policies.ofCheck(ctx, check)
	if err != nil {
		return err
	}
	want, right := activeCondition(check, broken)
	if right {
		return nil
	}
	if err := c.held(); err != nil {
		return err
	}
	condition, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want)
	if err != nil {
		return fmt.Errorf("admission check %q: %w", check.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{condition}}}}
	u.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("AdmissionCheck"))
	u.SetName(check.Name)
	u.SetUID(check.UID)
	err = c.writer.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), fieldOwner, client.ForceOwnership)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another one of the same name, which has its own event
	}
	if err != nil {
		return fmt.Errorf("admission check %q: writing the condition %s: %w", check.Name, kueue.AdmissionCheckActive, err)
	}
	if want.Status == metav1.ConditionTrue {
		c.log.InfoContext(ctx, "the check is active", "admissioncheck", check.Name)
	} else {
		c.log.WarnContext(ctx, "the check cannot be served", "admissioncheck", check.Name, "reason", want.Message)
	}
	return nil
}

// activeCondition is the condition Active that a check should have, and whether
// it has it. broken says why it cannot be served, if it cannot.
func activeCondition(check *kueue.AdmissionCheck, broken string) (want metav1.Condition, right bool) {
	want = metav1.Condition{
		Type:               kueue.AdmissionCheckActive,
		Status:             metav1.ConditionTrue,
		Reason:             reasonStarted,
		Message:            "The readmission gate serves this check.",
		ObservedGeneration: check.Generation,
	}
	if broken != "" {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonBadParameters, broken
	}
	conditions := slices.Clone(check.Status.Conditions)
	right = !meta.SetStatusCondition(&conditions, want)
	return *meta.FindStatusCondition(conditions, want.Type), right
}

func isOurs(check *kueue.AdmissionCheck) bool {
	return check.Spec.ControllerName == v1alpha1.ControllerName
}

// ourChecks lists the AdmissionChecks of ours.
func ourChecks(ctx context.Context, r client.Reader) ([]kueue.AdmissionCheck, error) {
	var list kueue.AdmissionCheckList
	if err := r.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing the checks: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(c kueue.AdmissionCheck) bool { return !isOurs(&c) }), nil
}
