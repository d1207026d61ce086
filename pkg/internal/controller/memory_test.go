package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

func version(uid types.UID, resourceVersion string) *kueue.Workload {
	wl := &kueue.Workload{}
	wl.UID, wl.ResourceVersion = uid, resourceVersion
	return wl
}

func TestBehind(t *testing.T) {
	m := newMemory()
	want := func(behind bool, uid types.UID, rv string) {
		t.Helper()
		if got := m.behind(version(uid, rv)); got != behind {
			t.Errorf("%s at %s: behind %v, want %v", uid, rv, got, behind)
		}
	}
	want(false, "a", "5")
	m.wrote("a", "100")
	want(true, "a", "99")
	want(false, "b", "99")
	want(true, "a", "20")
	want(false, "a", "100")
	want(false, "a", "20") // caught up once is for good
	m.wrote("a", "200")
	want(false, "a", "201")
	m.wrote("a", "300")
	m.age()
	want(true, "a", "299")
	m.age()
	want(false, "a", "299") // two passes are long enough for any informer
	m.wrote("c", "opaque")
	want(false, "c", "99") // versions that cannot be compared cost a conflict at most
}

func TestMemoryOfLossesAndReports(t *testing.T) {
	m := newMemory()
	if m.loss("a") != nil {
		t.Error("a loss that never was")
	}
	m.lose("a", gate.Loss{"ours": 7})
	if m.loss("a")["ours"] != 7 || m.loss("b") != nil {
		t.Error("the loss is not kept apart")
	}
	first := fence.Attempt{Workload: "a", Reserved: 1}
	second := fence.Attempt{Workload: "a", Reserved: 2}
	for i, tc := range []struct {
		attempt fence.Attempt
		want    bool
	}{{first, true}, {first, false}, {second, true}, {second, false}} {
		if got := m.reportOnce("a", tc.attempt); got != tc.want {
			t.Errorf("report %d: %v, want %v", i, got, tc.want)
		}
	}
	if !m.suspect("a") || m.suspect("a") || !m.suspect("a") {
		t.Error("every first sighting is a suspicion, every second one is not")
	}
	m.forget("a")
	if m.loss("a") != nil || !m.reportOnce("a", first) || !m.suspect("a") {
		t.Error("a Workload that is gone is remembered")
	}
}
