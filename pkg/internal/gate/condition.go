package gate

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// conditions are ours as they should be.
func (r *round) conditions() []metav1.Condition {
	conditions := ourConditions(r.s.Workload)
	switch held := r.heldText(); {
	case held != "":
		setCondition(&conditions, v1alpha1.WorkloadHeld, metav1.ConditionTrue, reasonHeld, held, r.since())
	case meta.IsStatusConditionTrue(conditions, v1alpha1.WorkloadHeld):
		setCondition(&conditions, v1alpha1.WorkloadHeld, metav1.ConditionFalse, reasonReleased, MessageReleased, r.now)
	}
	switch {
	case r.refused != "":
		setCondition(&conditions, v1alpha1.WorkloadRefused, metav1.ConditionTrue, reasonRefused, r.refused, r.now)
	case len(r.opens) > 0 && meta.IsStatusConditionTrue(conditions, v1alpha1.WorkloadRefused):
		setCondition(&conditions, v1alpha1.WorkloadRefused, metav1.ConditionFalse, reasonReleased, MessageReleased, r.now)
	}
	return conditions
}

// heldText describes every hold; empty if there is none.
func (r *round) heldText() string {
	var text string
	for _, name := range r.heldChecks() {
		if text != "" {
			text += " "
		}
		text += describe(r.book.Checks[name], r.e.checks[name].Policy)
	}
	return text
}

// heldChecks are the checks that are held, by name.
func (r *round) heldChecks() []kueue.AdmissionCheckReference {
	var names []kueue.AdmissionCheckReference
	for _, c := range r.out {
		_, held := r.book.Checks[c.Name]
		waits := c.State == kueue.CheckStatePending || c.State == kueue.CheckStateRetry
		if held && waits && r.e.checks[c.Name].hook() != nil {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}

// since is when the longest of the holds began.
func (r *round) since() time.Time {
	since := r.now
	for _, name := range r.heldChecks() {
		if s := r.book.Checks[name].Since; s.Before(since) {
			since = s
		}
	}
	return since
}

// ourConditions are the conditions of ours that a Workload has, sorted by type.
func ourConditions(wl *kueue.Workload) []metav1.Condition {
	var ours []metav1.Condition
	for _, c := range wl.Status.Conditions {
		if c.Type == v1alpha1.WorkloadHeld || c.Type == v1alpha1.WorkloadRefused {
			ours = append(ours, c)
		}
	}
	slices.SortFunc(ours, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return ours
}

func sameConditions(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
	})
}

// setCondition changes a condition; its time only with its status.
func setCondition(conditions *[]metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string, since time.Time) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(since.UTC().Truncate(time.Second)),
	})
	slices.SortFunc(*conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
}
