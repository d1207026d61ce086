package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
