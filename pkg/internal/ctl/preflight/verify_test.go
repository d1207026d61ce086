package preflight

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestQueueLine shows what verify says of a queue.
func TestQueueLine(t *testing.T) {
	queue := func(status metav1.ConditionStatus, stop kueue.StopPolicy, flavors ...kueue.ResourceFlavorReference) *kueue.ClusterQueue {
		cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "training"}, Spec: kueue.ClusterQueueSpec{StopPolicy: &stop}}
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: "policy", OnFlavors: flavors}}}
		cq.Status.Conditions = active(status, kueue.ClusterQueueActive, "references missing ResourceFlavor(s): a")
		return cq
	}
	policy, both := Named{Checks: []string{"policy"}}, Named{Checks: []string{"policy", "other"}}
	says := func(name string, n Named, cq *kueue.ClusterQueue, state State, words ...string) {
		t.Helper()
		n.queueLine(cq).says(t, name, state, words...)
	}
	says("as wanted", policy, queue(metav1.ConditionTrue, kueue.None), OK, "ClusterQueue training", "active with policy")
	says("no check", Named{}, queue(metav1.ConditionTrue, kueue.None), OK, "active")
	says("one of two", both, queue(metav1.ConditionTrue, kueue.None), Wrong, "does not name check other", "dispatchctl queues attach training --check other")
	says("other flavors", policy, queue(metav1.ConditionTrue, kueue.None, "a"), Wrong, `on the flavors ["a"]`)
	says("stopped", policy, queue(metav1.ConditionFalse, kueue.Hold), Wrong, "stopPolicy Hold", "kubectl patch clusterqueue training")
	says("broken", policy, queue(metav1.ConditionFalse, kueue.None), Wrong, "references missing ResourceFlavor(s): a")
}
