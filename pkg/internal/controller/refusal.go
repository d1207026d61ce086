package controller

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusal tells whether the API server took a write for what it is and said no:
// a webhook denied it, a rule of the schema or a right forbids it. Such an
// answer may change with the object, so it is shown to the job's owner and the
// write is tried again. Everything else is a fault.
func refusal(err error) (reason string, refused bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "", false
	}
	message := status.Status().Message
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return message, true
	case strings.Contains(message, "field not declared in schema"):
		return "this TrainJob API has no spec.runtimePatches; it needs Kubeflow Trainer v2.2 or newer (" + message + ")", true
	}
	return "", false
}
