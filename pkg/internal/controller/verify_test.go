package controller

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// reads answers every read with an error, or as if the object were there.
type reads struct {
	client.Reader

	answer func(client.Object) error
}

func (r reads) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return r.answer(o)
}

// TestVerify: a choice that pods cannot get is found before their job starts, and told
// apart from one of which nobody knows.
func TestVerify(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "a")
	// An API server before Kubernetes 1.36 does not serve the kind.
	notServed := &meta.NoKindMatchError{GroupKind: admissionv1.SchemeGroupVersion.WithKind("MutatingAdmissionPolicy").GroupKind()}
	account, class := admission.Changes{ServiceAccount: "a"}, admission.Changes{PriorityClassName: "a"}
	for name, tc := range map[string]struct {
		changes admission.Changes
		answer  func(client.Object) error
		refused bool
		says    string // "" if the choice is fine
	}{
		"there":     {account, func(client.Object) error { return nil }, false, ""},
		"no choice": {admission.Changes{Labels: map[string]string{"a": "b"}}, func(client.Object) error { return gone }, false, ""},
		"no API": {class, func(o client.Object) error {
			if _, ok := o.(*admissionv1.MutatingAdmissionPolicy); ok {
				return notServed
			}
			return nil
		}, true, `changes.priorityClassName: the MutatingAdmissionPolicy "pods.dispatch.phpboyscout.uk", by which pods get it, is not installed; the chart installs it on Kubernetes 1.36 and newer`},
		"no binding": {account, func(o client.Object) error {
			if _, ok := o.(*admissionv1.MutatingAdmissionPolicyBinding); ok {
				return gone
			}
			return nil
		}, true, "changes.serviceAccount: the MutatingAdmissionPolicy"},
		"no account": {account, func(o client.Object) error {
			if _, ok := o.(*corev1.ServiceAccount); ok {
				return gone
			}
			return nil
		}, true, `changes.serviceAccount: the ServiceAccount "a" does not exist in namespace "team"`},
		"unknown": {account, func(client.Object) error { return errors.New("the API server is away") }, false, "the API server is away"},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&choices{live: reads{answer: tc.answer}}).verify(t.Context(), "team", tc.changes)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%v, want %q", err, tc.says)
			}
			if _, refused := errors.AsType[*admission.FieldError](err); refused != tc.refused {
				t.Errorf("refused: %v, want %v: %v", refused, tc.refused, err)
			}
		})
	}
}
