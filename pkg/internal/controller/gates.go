package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hooks"
)

// Reasons of the condition Ready of a gate.
const (
	reasonServed  = "Served"
	reasonInvalid = "Invalid"
)

// Gates reconciles AdmissionGates: it has their hooks asked as they say, and keeps
// their status.
type Gates struct {
	cached   client.Reader
	writer   client.Client
	held     func() error
	log      *slog.Logger
	policies *policies
	queue    atomic.Pointer[queue]
	// wrote has when the status of each gate was last written.
	wrote sync.Map
}

// stateEvery is the least time between two writes of what a hook's state is. A
// hook that fails now and then changes it with every call.
const stateEvery = 2 * time.Second

// changed has the status of a gate written: at once, unless that was done a moment
// ago. Were each change looked at only after a while, a hook that fails every other
// time could look well each time.
func (g *Gates) changed(name string) {
	wait := time.Duration(0)
	last, _ := g.wrote.Load(name)
	if at, ok := last.(time.Time); ok {
		wait = stateEvery - time.Since(at)
	}
	if q := g.queue.Load(); q != nil {
		(*q).AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}, wait)
	}
}

// Reconcile looks at one AdmissionGate.
func (g *Gates) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var ag v1alpha1.AdmissionGate
	err := g.cached.Get(ctx, req.NamespacedName, &ag)
	if apierrors.IsNotFound(err) {
		g.policies.remove(req.Name)
		g.wrote.Delete(req.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the gate: %w", err)
	}
	k := g.policies.of(&ag)
	want := gateStatus(&ag, g.policies.hooks.State(ag.Name), k.unfit)
	if ag.DeletionTimestamp != nil || equality.Semantic.DeepEqual(want, ag.Status) {
		return reconcile.Result{}, nil
	}
	if err := g.write(ctx, &ag, want); err != nil {
		return reconcile.Result{}, err
	}
	if k.unfit != "" {
		g.log.WarnContext(ctx, "the gate cannot be used", "admissiongate", ag.Name, "reason", k.unfit)
	}
	return reconcile.Result{}, nil
}

func (g *Gates) write(ctx context.Context, ag *v1alpha1.AdmissionGate, status v1alpha1.AdmissionGateStatus) error {
	if err := g.held(); err != nil {
		return err
	}
	g.wrote.Store(ag.Name, time.Now())
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("admission gate %q: %w", ag.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.AdmissionGateKind))
	u.SetName(ag.Name)
	u.SetUID(ag.UID)
	err = g.writer.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), fieldOwner, client.ForceOwnership)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another one of the same name, which has its own event
	}
	if err != nil {
		return fmt.Errorf("admission gate %q: writing the status: %w", ag.Name, err)
	}
	return nil
}

// gateStatus is the status that a gate should have.
func gateStatus(ag *v1alpha1.AdmissionGate, state hooks.State, broken string) v1alpha1.AdmissionGateStatus {
	ready := metav1.Condition{
		Type: v1alpha1.GateReady, Status: metav1.ConditionTrue, Reason: reasonServed,
		Message: "Checks that refer to this gate are served.", ObservedGeneration: ag.Generation,
	}
	if broken != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonInvalid, broken
	}
	status := v1alpha1.AdmissionGateStatus{
		ObservedGeneration: ag.Generation, Conditions: slices.Clone(ag.Status.Conditions),
		Endpoint: state.Endpoint, Breaker: state.Breaker, LastError: state.LastError,
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	return status
}
