package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// choices finds out whether the service account and the priority class that a hook
// chose can be given to pods. Otherwise the pods could not be created, long after
// the job has started. It reads from the API server, only when a hook chose one.
type choices struct {
	live client.Reader

	mu sync.Mutex
	// policy says why there is no policy that changes the pods; checked is when
	// that was found out.
	policy  error
	checked time.Time
}

// policyFresh is how long the presence of the pod policy is taken for granted.
const policyFresh = 30 * time.Second

// verify returns an *admission.FieldError for a choice that cannot be carried out,
// and any other error if that could not be found out.
func (c *choices) verify(ctx context.Context, namespace string, changes admission.Changes) error {
	if changes.ServiceAccount == "" && changes.PriorityClassName == "" {
		return nil
	}
	if err := c.podPolicy(ctx, fieldOf(changes)); err != nil {
		return err
	}
	if name := changes.ServiceAccount; name != "" {
		err := c.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &corev1.ServiceAccount{})
		if err := found(err, "changes.serviceAccount", fmt.Sprintf("the ServiceAccount %q does not exist in namespace %q", name, namespace)); err != nil {
			return err
		}
	}
	if name := changes.PriorityClassName; name != "" {
		err := c.live.Get(ctx, client.ObjectKey{Name: name}, &schedulingv1.PriorityClass{})
		return found(err, "changes.priorityClassName", fmt.Sprintf("the PriorityClass %q does not exist", name))
	}
	return nil
}

// fieldOf names the choice that needs the pod policy.
func fieldOf(changes admission.Changes) string {
	if changes.ServiceAccount != "" {
		return "changes.serviceAccount"
	}
	return "changes.priorityClassName"
}

// podPolicy sees that the MutatingAdmissionPolicy and its binding are there.
func (c *choices) podPolicy(ctx context.Context, field string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.checked.IsZero() || now.Sub(c.checked) > policyFresh || c.policy != nil {
		c.policy, c.checked = c.readPolicy(ctx, field), now
	}
	return c.policy
}

func (c *choices) readPolicy(ctx context.Context, field string) error {
	const missing = "the MutatingAdmissionPolicy %q, by which pods get it, is not installed; the chart installs it on Kubernetes 1.36 and newer"
	for _, o := range []client.Object{&admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyBinding{}} {
		err := c.live.Get(ctx, client.ObjectKey{Name: v1alpha1.PodPolicyName}, o)
		if meta.IsNoMatchError(err) {
			err = apierrors.NewNotFound(admissionv1.Resource("mutatingadmissionpolicies"), v1alpha1.PodPolicyName)
		}
		if err := found(err, field, fmt.Sprintf(missing, v1alpha1.PodPolicyName)); err != nil {
			return err
		}
	}
	return nil
}

// found turns an absence into what is wrong with a field.
func found(err error, field, problem string) error {
	if apierrors.IsNotFound(err) {
		return &admission.FieldError{Field: field, Problem: problem}
	}
	return err
}
