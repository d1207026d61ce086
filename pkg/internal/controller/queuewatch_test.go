package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func namingChecks(names ...kueue.AdmissionCheckReference) *kueue.ClusterQueue {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "training"}}
	if len(names) > 0 {
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
	}
	for _, name := range names {
		cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks, kueue.AdmissionCheckStrategyRule{Name: name})
	}
	return cq
}

func TestLosesCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after *kueue.ClusterQueue
		want          bool
	}{
		"the only one":     {namingChecks("a"), namingChecks(), true},
		"one of two":       {namingChecks("a", "b"), namingChecks("b"), true},
		"for another":      {namingChecks("a"), namingChecks("b"), true},
		"in another order": {namingChecks("a", "b"), namingChecks("b", "a"), false},
		"gets one":         {namingChecks(), namingChecks("a"), false},
		"has none":         {namingChecks(), namingChecks(), false},
	} {
		if got := losesCheck.Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestLossesSettle: a loss counts a second after it was seen, and at once if it was
// before this process looked.
func TestLossesSettle(t *testing.T) {
	var l losses
	now := time.Unix(100, 0)
	if !l.settled("training", now) {
		t.Error("a loss that nobody saw is as old as can be")
	}
	l.note("training", now)
	if l.settled("training", now.Add(lossSettles-1)) || !l.settled("other", now) {
		t.Error("a loss counts before it has settled, or for another queue")
	}
	if !l.settled("training", now.Add(lossSettles)) || len(l.at) > 0 {
		t.Errorf("a loss has not settled after %s, or is kept: %v", lossSettles, l.at)
	}
}

// TestGroupOf: Kueue names the group of a pod by an annotation, people by a label.
func TestGroupOf(t *testing.T) {
	for want, pod := range map[string]*metav1.ObjectMeta{
		"":  {},
		"a": {Labels: map[string]string{groupKey: "a"}},
		"b": {Labels: map[string]string{groupKey: "a"}, Annotations: map[string]string{groupKey: "b"}},
	} {
		if got := groupOf(pod); got != want {
			t.Errorf("%+v: %q, want %q", pod, got, want)
		}
	}
}
