package placement

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Conflict says why changes cannot be carried out. It is the error of [Updates].
type Conflict struct { //nolint:errname // callers read it as what it says, not as a failure of the call
	// PodSet is the pod set it is about; empty if it is about all.
	PodSet kueue.PodSetReference
	// Field is the field of the changes, such as "nodeSelector", and Key the key in
	// it, if one is to blame.
	Field, Key string
	// Chosen is the hook's value and Held the other one.
	Chosen, Held string
	// Holder is who has the other value, such as `the ResourceFlavor "spot"`. Empty
	// if it is not about two values; then Problem says what it is about.
	Holder, Problem string
}

// Error is one line for the owner of the job, such as
//
//	nodeSelector "zone": the hook chose "a", the ResourceFlavor "spot" has "b"
//
// with values cut to 128 bytes.
func (c *Conflict) Error() string {
	where := c.Field
	if c.Key != "" {
		where += fmt.Sprintf(" %q", c.Key)
	}
	if c.Holder == "" {
		return where + ": " + c.Problem
	}
	return fmt.Sprintf("%s: the hook chose %q, %s has %q", where, cut(c.Chosen), c.Holder, cut(c.Held))
}

// cut keeps what tells two values apart at a glance.
func cut(s string) string {
	const limit = 128
	if len(s) <= limit {
		return s
	}
	n := limit
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// Fields of admission.Changes, as its readers know them.
const (
	nodeSelectorField   = "nodeSelector"
	labelsField         = "labels"
	annotationsField    = "annotations"
	tolerationsField    = "tolerations"
	serviceAccountField = "serviceAccount"
	priorityClassField  = "priorityClassName"
)

// unfit finds what is wrong with the changes whatever they are merged with: what
// Kueue's webhook refuses in an update, the reserved keys, among them all that Kueue
// puts into pods by itself, and labels that belong to the Job controller.
func unfit(c admission.Changes, wl *kueue.Workload) *Conflict {
	if invalid, ok := errors.AsType[*admission.FieldError](c.Validate()); ok {
		return &Conflict{Field: strings.TrimPrefix(invalid.Field, "changes."), Problem: invalid.Problem}
	}
	if isJob(metav1.GetControllerOfNoCopy(wl)) {
		return nil // the values are known, see jobHolder
	}
	for _, key := range jobLabels {
		if chosen, ok := c.Labels[key]; ok {
			return &Conflict{Field: labelsField, Key: key, Chosen: chosen, Problem: "this label is for Kubernetes' Jobs alone to set"}
		}
	}
	return nil
}

// jobLabels are labels without a prefix that the API server sets in the pod template
// of every Job, and it refuses a Job that has them from elsewhere. JobSet, Trainer and
// others make Jobs. The labels with a prefix are reserved keys.
var jobLabels = []string{"controller-uid", "job-name"}

func isJob(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String()
}

// groupAnnotation marks the Workloads of pod groups, of StatefulSets and of
// LeaderWorkerSets.
const groupAnnotation = "kueue.x-k8s.io/is-group-workload"

// MadeOfPods tells whether the pods of a Workload exist before it starts, each held by
// a gate of Kueue. Kueue then updates them instead of a template.
func MadeOfPods(wl *kueue.Workload) bool {
	return wl.Annotations[groupAnnotation] == "true" ||
		slices.ContainsFunc(wl.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.Kind == "Pod" && o.APIVersion == corev1.SchemeGroupVersion.String()
		})
}

// pinned finds a choice that pods cannot take on once they exist.
func (f Facts) pinned(c admission.Changes, ps *kueue.PodSet) *Conflict {
	if !MadeOfPods(f.Workload) {
		return nil
	}
	if conflict := pin(serviceAccountField, c.ServiceAccount, serviceAccount(&ps.Template.Spec)); conflict != nil {
		return conflict
	}
	return pin(priorityClassField, c.PriorityClassName, ps.Template.Spec.PriorityClassName)
}

func pin(field, chosen, held string) *Conflict {
	if chosen == "" || chosen == held {
		return nil
	}
	return &Conflict{Field: field, Chosen: chosen, Held: held, Holder: "the pod, which exists already and cannot change it,"}
}

// clash finds the first key, in the order of fields and keys, that somebody has with
// another value.
func clash(u kueue.PodSetUpdate, holders []holder) *Conflict {
	for _, field := range []struct {
		name   string
		chosen map[string]string
		held   func(holder) map[string]string
	}{
		{nodeSelectorField, u.NodeSelector, func(h holder) map[string]string { return h.nodeSelector }},
		{labelsField, u.Labels, func(h holder) map[string]string { return h.labels }},
		{annotationsField, u.Annotations, func(h holder) map[string]string { return h.annotations }},
	} {
		for _, key := range slices.Sorted(maps.Keys(field.chosen)) {
			conflict := Conflict{Field: field.name, Key: key, Chosen: field.chosen[key]}
			if conflict.heldBy(holders, field.held) {
				return &conflict
			}
		}
	}
	return nil
}

// heldBy completes a conflict with the first holder that has the key with another
// value, if there is one.
func (c *Conflict) heldBy(holders []holder, keys func(holder) map[string]string) bool {
	for _, h := range holders {
		if held, ok := keys(h)[c.Key]; ok && held != c.Chosen {
			c.Held, c.Holder = held, h.name
			return true
		}
	}
	return false
}
