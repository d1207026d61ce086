package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// mended is a cluster of one queue and one check, for moments that no real one offers
// on demand.
type mended struct {
	cq    *kueue.ClusterQueue
	check *kueue.AdmissionCheck
	// looks counts reads of the check, applies writes of the queue.
	looks, applies int
	// afterLook comes after a read of the check, onApply in place of a write.
	afterLook, onApply func(*mended)
}

func newMended() *mended {
	m := &mended{cq: wiredTo("other"), check: &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "policy", UID: "ac-1"}, Spec: kueue.AdmissionCheckSpec{ControllerName: v1alpha1.ControllerName}}}
	meta.SetStatusCondition(&m.check.Status.Conditions, metav1.Condition{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue})
	meta.SetStatusCondition(&m.cq.Status.Conditions, metav1.Condition{Type: kueue.ClusterQueueActive, Status: metav1.ConditionTrue})
	m.afterLook, m.onApply = func(*mended) {}, func(m *mended) { m.cq.Spec = wiredTo("other", "policy").Spec }
	return m
}

func (m *mended) mender() *mender {
	c := interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			switch o := o.(type) {
			case *kueue.ClusterQueue:
				m.cq.DeepCopyInto(o)
			case *kueue.AdmissionCheck:
				m.looks++
				m.check.DeepCopyInto(o)
				m.afterLook(m)
			}
			return nil
		},
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			m.applies++
			m.onApply(m)
			return nil
		},
	})
	wirer := wiring.New(c, func(string) {}, false)
	wirer.Tick, wirer.Settle = time.Millisecond, time.Millisecond
	return &mender{wirer: wirer, held: func() error { return nil }, backoff: flowcontrol.NewBackOff(mendBase, mendMax), tries: map[string]map[string]try{}}
}

func TestMend(t *testing.T) {
	keep := func(m *mended) { m.check.Annotations = map[string]string{v1alpha1.KeepDetachedAnnotation: "training"} }
	for name, tc := range map[string]struct {
		reason  string
		change  func(*mended)
		applies int
		want    remedy
		why     string
	}{
		"put there":       {"nothing speaks against it", func(*mended) {}, 1, remedy{done: true}, ""},
		"there already":   {"somebody else was faster", func(m *mended) { m.onApply(m) }, 0, remedy{found: true}, ""},
		"kept out":        {"people said so before", keep, 0, remedy{kept: true}, ""},
		"kept out just":   {"people say so between the look and the write", func(m *mended) { m.afterLook = keep }, 0, remedy{kept: true}, ""},
		"inactive":        {"nobody would serve it", func(m *mended) { m.check.Status.Conditions = nil }, 0, remedy{}, "cannot be served: no gate has looked at it"},
		"of another":      {"it is not ours", func(m *mended) { m.check.Spec.ControllerName = "example.com/x" }, 0, remedy{}, "served by example.com/x"},
		"dropped at once": {"an owner who insists is not fought", func(m *mended) { m.onApply = func(*mended) {} }, 1, remedy{after: 3 * time.Second}, "gone again"},
	} {
		m := newMended()
		tc.change(m)
		got, err := m.mender().mend(t.Context(), m.cq, wiring.Entry{Check: "policy"})
		if err != nil || m.applies != tc.applies || !strings.Contains(got.why, tc.why) || (got.why == "") != (tc.why == "") {
			t.Errorf("%s (%s): %+v after %d writes, %v", name, tc.reason, got, m.applies, err)
		}
		if got.why = ""; got != tc.want {
			t.Errorf("%s (%s): %+v, want %+v", name, tc.reason, got, tc.want)
		}
	}
}

// TestMendIsPutOff: a check that is dropped again and again is put there later each
// time.
func TestMendIsPutOff(t *testing.T) {
	m := newMended()
	mender := m.mender()
	without := m.cq.DeepCopy()
	for i, want := range []remedy{{done: true}, {after: 3 * time.Second}} {
		m.cq = without.DeepCopy()
		got, err := mender.mend(t.Context(), m.cq, wiring.Entry{Check: "policy"})
		if got.why = ""; err != nil || got != want {
			t.Errorf("%d: %+v, %v, want %+v", i, got, err, want)
		}
	}
	if m.applies != 1 {
		t.Errorf("%d writes", m.applies)
	}
	mender.forget("training")
	if last := mender.last("training", "policy"); last != (try{}) {
		t.Errorf("a queue that is gone is remembered: %+v", last)
	}
}
