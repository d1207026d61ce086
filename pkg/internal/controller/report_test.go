package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// references records what events are about.
type references []corev1.ObjectReference

func (r *references) Eventf(regarding, related runtime.Object, _, _, _, _ string, _ ...any) {
	for _, o := range []runtime.Object{regarding, related} {
		if ref, ok := o.(*corev1.ObjectReference); ok {
			*r = append(*r, *ref)
		}
	}
}

// TestEventReferences: events become one with a count if all their references are
// the same. What repeats with each round of a hold must, and what may say something
// new must not, because only the first text is kept.
func TestEventReferences(t *testing.T) {
	controller := true
	for topic, repeats := range map[gate.Topic]bool{
		gate.ToldQuota: true, gate.ToldNoVerdict: true, gate.ToldHeld: false, gate.ToldRefused: false,
	} {
		var first, second references
		for version, to := range map[string]*references{"7": &first, "8": &second} {
			wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "wl", Namespace: "ns", UID: "uid", ResourceVersion: version, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "job", UID: "owner", Controller: &controller}}}}
			(&Gate{events: to}).event(wl, corev1.EventTypeNormal, topic, "text")
		}
		if len(first) != 3 || len(second) != 3 {
			t.Fatalf("%s: references %v, %v; want the workload alone, then the job and the workload", topic, first, second)
		}
		for i := range first {
			same := first[i] == second[i]
			if isJob := first[i].Kind == "TrainJob"; same != (repeats || isJob) {
				t.Errorf("%s: the same reference: %t: %v", topic, same, first[i])
			}
		}
	}
}

// TestEventTexts: what is wrong with the answers of a hook may change, and each text
// is told.
func TestEventTexts(t *testing.T) {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "wl", Namespace: "ns", UID: "uid", ResourceVersion: "7"}}
	var r references
	for _, text := range []string{"no such account", "no such class", "no such account"} {
		(&Gate{events: &r}).event(wl, corev1.EventTypeWarning, gate.ToldNoVerdict, text)
	}
	if len(r) != 3 || r[0] == r[1] || r[0] != r[2] {
		t.Errorf("references %v, want one for each text", r)
	}
}
