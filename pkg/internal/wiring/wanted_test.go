package wiring

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// queueWith is a queue that names checks.
func queueWith(names ...string) *kueue.ClusterQueue {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "training", Labels: map[string]string{"team": "vision"}}}
	cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
	for _, name := range names {
		cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks, kueue.AdmissionCheckStrategyRule{Name: kueue.AdmissionCheckReference(name)})
	}
	return cq
}

func TestDropped(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after *kueue.ClusterQueue
		want          []string
	}{
		"the only one":     {queueWith("a"), queueWith(), []string{"a"}},
		"one of two":       {queueWith("a", "b"), queueWith("b"), []string{"a"}},
		"for another":      {queueWith("a"), queueWith("b"), []string{"a"}},
		"in another order": {queueWith("a", "b"), queueWith("b", "a"), nil},
		"gets one":         {queueWith(), queueWith("a"), nil},
		"has none":         {&kueue.ClusterQueue{}, &kueue.ClusterQueue{}, nil},
	} {
		if diff := cmp.Diff(tc.want, Dropped(tc.before, tc.after)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestWanted(t *testing.T) {
	selector := func(text string) labels.Selector {
		s, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, tc := range map[string]struct {
		wanted Wanted
		want   *Entry
	}{
		"nothing":       {Wanted{}, nil},
		"by name":       {Wanted{Queues: []string{"batch", "training"}, Checks: []string{"policy"}, OnFlavors: []string{"a"}}, &Entry{Check: "policy", OnFlavors: []string{"a"}}},
		"by both":       {Wanted{Queues: []string{"batch"}, Selector: selector("team=vision"), Checks: []string{"policy"}}, &Entry{Check: "policy"}},
		"another name":  {Wanted{Queues: []string{"batch"}, Checks: []string{"policy"}}, nil},
		"another check": {Wanted{Queues: []string{"training"}, Checks: []string{"other"}}, nil},
		"by label":      {Wanted{Selector: selector("team=vision"), Checks: []string{"policy"}}, &Entry{Check: "policy"}},
		"another label": {Wanted{Selector: selector("team=speech"), Checks: []string{"policy"}}, nil},
	} {
		if diff := cmp.Diff(tc.want, tc.wanted.Of(queueWith(), "policy")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestStands(t *testing.T) {
	all, some := &Entry{Check: "policy"}, &Entry{Check: "policy", OnFlavors: []string{"a"}}
	for name, tc := range map[string]struct {
		cq   *kueue.ClusterQueue
		want *Entry
		had  bool
		is   Standing
	}{
		"never there, not wanted": {queueWith("other"), nil, false, Unconcerned},
		"there, not wanted":       {queueWith("policy"), nil, false, Wired},
		"there as wanted":         {queueWith("policy"), all, true, Wired},
		"there otherwise":         {queueWith("policy"), some, true, Differs},
		"never there":             {queueWith("other"), all, false, Missing},
		"gone, not wanted":        {queueWith(), nil, true, Lost},
		"gone":                    {queueWith(), all, true, Lost},
	} {
		if got := Stands(tc.cq, "policy", tc.want, tc.had); got != tc.is {
			t.Errorf("%s: %d, want %d", name, got, tc.is)
		}
	}
}

// TestWriters: who wrote is told if the API server noted it, and never guessed.
func TestWriters(t *testing.T) {
	const list = `{"f:spec":{"f:admissionChecksStrategy":{"f:admissionChecks":{}}}}`
	managed := func(at int64, manager, subresource, raw string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: &metav1.Time{Time: time.Unix(at, 0)}, FieldsV1: metav1.NewFieldsV1(raw)}
	}
	of := func(managers ...metav1.ManagedFieldsEntry) *kueue.ClusterQueue {
		return &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{ManagedFields: managers}}
	}
	before := of(managed(1, "argocd", "", list), managed(1, "quota", "", `{}`), managed(1, "kueue", "status", `{}`))
	for want, after := range map[string]*kueue.ClusterQueue{
		"quota":        of(managed(1, "argocd", "", list), managed(2, "quota", "", `{}`)),
		"argocd, helm": of(managed(2, "argocd", "", list), managed(2, "helm", "", list)),
		"somebody unknown; the list of checks is managed by argocd": of(managed(1, "argocd", "", list), managed(1, "quota", "", `{}`), managed(9, "kueue", "status", `{}`)),
		"somebody unknown": of(managed(1, "quota", "", `{}`)),
	} {
		if got := Writers(before, after); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestSlimManagers: what is dropped makes no difference.
func TestSlimManagers(t *testing.T) {
	raw := `{"f:metadata":{"f:labels":{}},"f:spec":{"f:cohort":{},"f:admissionChecksStrategy":{".":{},"f:admissionChecks":{"k:{\"name\":\"policy\"}":{".":{},"f:name":{}}}}}}`
	whole := queueWith("policy")
	whole.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "argocd", Time: &metav1.Time{Time: time.Unix(5, 0)}, FieldsV1: metav1.NewFieldsV1(raw)},
		{Manager: "kueue", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{}`)},
		{Manager: "quota", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:cohort":{}}}`)},
	}
	slim := whole.DeepCopy()
	slim.ManagedFields = SlimManagers(slim.ManagedFields)
	if len(slim.ManagedFields) != 2 || slim.ManagedFields[1].FieldsV1 != nil || len(slim.ManagedFields[0].FieldsV1.GetRawString()) >= len(raw) {
		t.Errorf("%+v", slim.ManagedFields)
	}
	if diff := cmp.Diff(Managers(whole, "policy"), Managers(slim, "policy")); diff != "" {
		t.Error(diff)
	}
	empty := &kueue.ClusterQueue{}
	if a, b := Writers(empty, whole), Writers(empty, slim); a != b || a != "argocd" {
		t.Errorf("%q, %q", a, b)
	}
}

func TestKeptDetached(t *testing.T) {
	for value, want := range map[string]bool{"": false, "batch": false, "training": true, "batch, training": true, "*": true, "train": false} {
		check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.KeepDetachedAnnotation: value}}}
		if got := KeptDetached(check, "training"); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}

func TestRemovalCommand(t *testing.T) {
	for want, cq := range map[string]*kueue.ClusterQueue{
		"": queueWith("other"),
		`kubectl patch clusterqueue training --type=json -p '[{"op":"test","path":"/spec/admissionChecksStrategy/admissionChecks/1/name","value":"policy"},{"op":"remove","path":"/spec/admissionChecksStrategy/admissionChecks/1"}]'`: queueWith("other", "policy"),
		`kubectl patch clusterqueue training --type=json -p '[{"op":"test","path":"/spec/admissionChecksStrategy/admissionChecks/0/name","value":"policy"},{"op":"remove","path":"/spec/admissionChecksStrategy"}]'`:                   queueWith("policy"),
	} {
		if got := RemovalCommand(cq, "policy"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
