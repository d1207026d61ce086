package integration

import (
	"context"
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// TestPodPolicyIsRequired: without the policy that gives pods what a hook chose, and
// without its binding, the choice is no verdict, and the job waits until both are
// back. What needs no policy starts meanwhile.
func TestPodPolicyIsRequired(t *testing.T) {
	place := newPodPlace(t)
	bindingBack := takeAway(t, &admissionregistrationv1.MutatingAdmissionPolicyBinding{})
	policyBack := takeAway(t, &admissionregistrationv1.MutatingAdmissionPolicy{})
	startLeading(t, run{name: "gate"}) // one that has not seen them
	h := newHook(t, admission.AdmitWith(admission.Changes{ServiceAccount: chosenAccount, PriorityClassName: place.class}))
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	q.newChoices()
	job := q.submit(dispatchName())
	missing := []string{fmt.Sprintf("the MutatingAdmissionPolicy %q", v1alpha1.PodPolicyName), "is not installed"}
	q.awaitWrong(gate, job, append(missing, "changes.serviceAccount")...)
	h.says(admission.AdmitWith(admission.Changes{PriorityClassName: place.class}))
	policyBack()
	q.awaitWrong(gate, job, append(missing, "changes.priorityClassName")...)
	h.does(func(_ context.Context, r *admission.Request) (admission.Decision, error) {
		if r.Job.Name == "other" {
			return label("ours"), nil
		}
		return admission.AdmitWith(admission.Changes{PriorityClassName: place.class}), nil
	})
	q.awaitPods(q.batchJob("other"), 2)

	h.says(admission.Hold("until the API server knows the policy"))
	bindingBack()
	eventually(t, patience, "the policy is at work", func() error {
		pod, err := place.try(place.pod(place.chosen()))
		if err == nil && pod.Spec.ServiceAccountName != chosenAccount {
			err = errNotYet
		}
		return err
	})
	h.says(admission.AdmitWith(admission.Changes{ServiceAccount: chosenAccount, PriorityClassName: place.class}))
	q.awaitStart(job, "1")
	for _, p := range q.awaitPods(job, 2) {
		if p.Spec.ServiceAccountName != chosenAccount || p.Spec.PriorityClassName != place.class {
			t.Errorf("account %q and class %q", p.Spec.ServiceAccountName, p.Spec.PriorityClassName)
		}
	}
}

// takeAway takes the policy or its binding away. It comes back with the returned
// function, at the latest when the test ends.
func takeAway(t *testing.T, o client.Object) (back func()) {
	t.Helper()
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: v1alpha1.PodPolicyName}, o); err != nil {
		t.Fatal(err)
	}
	if err := shared.admin.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	away := true
	back = func() {
		if !away {
			return
		}
		away = false
		o.SetUID("")
		o.SetResourceVersion("")
		o.SetGeneration(0)
		o.SetCreationTimestamp(metav1.Time{})
		if err := shared.admin.Create(context.Background(), o); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(back)
	return back
}
