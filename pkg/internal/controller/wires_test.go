package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// wiredTo is a queue that names checks.
func wiredTo(checks ...string) *kueue.ClusterQueue {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "training", UID: "cq-1", ResourceVersion: "7"}}
	for _, c := range checks {
		if cq.Spec.AdmissionChecksStrategy == nil {
			cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
		}
		cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks,
			kueue.AdmissionCheckStrategyRule{Name: kueue.AdmissionCheckReference(c)})
	}
	return cq
}

func TestFinding(t *testing.T) {
	all, some := &wiring.Entry{Check: "policy"}, &wiring.Entry{Check: "policy", OnFlavors: []string{"a", "b"}}
	for name, tc := range map[string]struct {
		x            wire
		r            remedy
		reason, text string
	}{
		"lost": {wire{stands: wiring.Lost, by: "argocd"}, remedy{}, reasonLost,
			`AdmissionCheck "policy" was taken out of the queue by argocd, so its jobs start ungated; "dispatchctl queues attach training --check policy" puts it there.`},
		"lost and put back": {wire{stands: wiring.Lost, by: "argocd", want: all}, remedy{done: true}, reasonLost,
			`AdmissionCheck "policy" was taken out of the queue by argocd; it was put back.`},
		"lost again": {wire{stands: wiring.Lost, by: "argocd", want: all}, remedy{why: "too often", after: 3 * time.Second}, reasonLost,
			`AdmissionCheck "policy" was taken out of the queue by argocd, so its jobs start ungated; the next try is in 3s: too often.`},
		"missing": {wire{stands: wiring.Missing, want: some}, remedy{}, reasonMissing,
			`AdmissionCheck "policy" is to be in the queue and is not, so its jobs start ungated; "dispatchctl queues attach training --check policy --on-flavors a,b" puts it there.`},
		"missing, and why": {wire{stands: wiring.Missing, want: all}, remedy{why: "the check does not exist."}, reasonMissing,
			`AdmissionCheck "policy" is to be in the queue and is not, so its jobs start ungated; it is not put there: the check does not exist.`},
		"kept out": {wire{stands: wiring.Missing, want: all, kept: true}, remedy{kept: true}, reasonMissing,
			`AdmissionCheck "policy" is to be in the queue and is not, so its jobs start ungated; people keep it out by the annotation dispatch.phpboyscout.uk/keep-detached of the check, which "dispatchctl queues attach training --check policy" takes back.`},
		"attached": {wire{stands: wiring.Missing, want: all}, remedy{done: true}, reasonAttached,
			`AdmissionCheck "policy" was put into the queue, which is to have it.`},
		"withdrawn": {wire{stands: wiring.Missing, want: all}, remedy{withdrawn: true, why: "references inactive"}, reasonWithdrawn,
			`AdmissionCheck "policy" was put into the queue and taken out again, because the queue was inactive with it: references inactive`},
		"on other flavors": {wire{stands: wiring.Differs, want: some}, remedy{}, reasonDiffers,
			`AdmissionCheck "policy" is in the queue for all jobs, and is to be for jobs on a, b; "dispatchctl queues attach training --check policy --on-flavors a,b" puts it there.`},
	} {
		tc.x.check = "policy"
		if reason, text := finding(wiredTo(), tc.x, tc.r); reason != tc.reason || text != tc.text {
			t.Errorf("%s: %s: %s\nwant %s: %s", name, reason, text, tc.reason, tc.text)
		}
	}
}

// TestWireMemory: what a queue has had is remembered by its UID, and told once.
func TestWireMemory(t *testing.T) {
	m := newWireMemory()
	with, without := wiredTo("policy"), wiredTo("other")
	without.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "argocd", Time: &metav1.Time{Time: time.Unix(5, 0)}}}
	m.change(with, without)
	if !m.had(without, "policy") || !m.had(without, "other") || m.had(without, "third") {
		t.Error("it does not remember what the queue had")
	}
	if by := m.by(without, "policy"); by != "argocd" {
		t.Errorf("taken out by %q", by)
	}
	now := time.Unix(10, 0)
	if d := m.lostFor(without, "policy", now); d != 0 {
		t.Error(d)
	}
	if d := m.lostFor(without, "policy", now.Add(time.Second)); d != time.Second {
		t.Error(d)
	}
	for _, tc := range []struct {
		what string
		want bool
	}{{"a", true}, {"a", false}, {"b", true}, {"a", true}} {
		if got := m.tell(without, "policy", tc.what); got != tc.want {
			t.Errorf("telling %s: %v", tc.what, got)
		}
	}
	if !m.count(without, "policy") || m.count(without, "policy") {
		t.Error("a loss counts once")
	}
	m.wired(with, "policy")
	if !m.had(with, "policy") || !m.count(with, "policy") || m.lostFor(with, "policy", now) != 0 {
		t.Error("an entry that was back is lost anew")
	}
	again := wiredTo()
	again.UID = "cq-2"
	m.see(again)
	if m.had(again, "policy") {
		t.Error("another queue of the same name has had nothing")
	}
	if !m.tellGone("typo", "policy") || m.tellGone("typo", "policy") || !m.tellGone("typo", "other") {
		t.Error("a queue that is not there is told once of each check")
	}
	back := wiredTo()
	back.Name = "typo"
	m.see(back)
	if !m.tellGone("typo", "policy") {
		t.Error("a queue that was there and is gone is told again")
	}
}

// TestSlimQueueStandsAlike: what the informer keeps must not change what is said.
func TestSlimQueueStandsAlike(t *testing.T) {
	whole := wiredTo("policy")
	whole.Labels = map[string]string{"team": "vision"}
	whole.Annotations = map[string]string{"big": strings.Repeat("x", 1000)}
	whole.Spec.ResourceGroups = []kueue.ResourceGroup{{}}
	kept, err := slimQueue(whole.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	slim, ok := kept.(*kueue.ClusterQueue)
	if !ok || slim.Annotations != nil || slim.Spec.ResourceGroups != nil {
		t.Fatalf("keeps what nobody uses: %+v", kept)
	}
	wanted := wiring.Wanted{Queues: []string{"training"}, Checks: []string{"policy"}}
	for _, cq := range []*kueue.ClusterQueue{whole, slim} {
		if s := wiring.Stands(cq, "policy", wanted.Of(cq, "policy"), true); s != wiring.Wired || cq.Labels["team"] != "vision" {
			t.Errorf("stands %d", s)
		}
	}
}
