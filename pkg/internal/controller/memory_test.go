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

func TestNotes(t *testing.T) {
	m := newMemory()
	if m.read("a").loss != nil {
		t.Error("a loss that never was")
	}
	m.lose("a", gate.Loss{"ours": 7})
	if m.read("a").loss["ours"] != 7 || m.read("b").loss != nil {
		t.Error("the loss is not kept apart")
	}
	first, second := fence.Attempt{Workload: "a", Reserved: 1}, fence.Attempt{Workload: "a", Reserved: 2}
	for i, tc := range []struct {
		attempt fence.Attempt
		want    bool
	}{{first, true}, {first, false}, {second, true}, {second, false}} {
		if got := m.tellOnce("a", tc.attempt); got != tc.want {
			t.Errorf("ungated start %d: told %v, want %v", i, got, tc.want)
		}
	}
	if !m.fail("a", "x") || m.fail("a", "x") || !m.fail("a", "y") {
		t.Error("a fault is logged once")
	}
	m.succeed("a")
	if !m.fail("a", "y") {
		t.Error("a fault that comes back is logged again")
	}
	m.forget("a")
	if m.read("a").loss != nil || !m.tellOnce("a", first) || !m.fail("a", "y") {
		t.Error("a Workload that is gone is remembered")
	}
}

func TestSuspicion(t *testing.T) {
	m := newMemory()
	want := func(l look, finding gate.Case) {
		t.Helper()
		if got := m.suspect("a", finding); got != l {
			t.Errorf("%s: look %d, want %d", finding, got, l)
		}
	}
	want(firstLook, gate.CaseRunning)
	want(secondLook, gate.CaseRunning)
	want(secondLook, gate.CaseRunning) // the API server did not answer
	want(firstLook, gate.CaseOwnerGone)
	m.settle("a", gate.CaseOwnerGone)
	want(settledLook, gate.CaseOwnerGone)
	m.settle("a", gate.CaseRaise) // the API server knew better
	want(firstLook, gate.CaseOwnerGone)
	m.unsuspect("a")
	want(firstLook, gate.CaseOwnerGone)
}
