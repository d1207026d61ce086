package wiring

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

func TestManagers(t *testing.T) {
	field := func(manager, subresource, raw string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(raw)}
	}
	const ours = `{"f:spec":{"f:admissionChecksStrategy":{"f:admissionChecks":{"k:{\"name\":\"policy\"}":{".":{},"f:name":{}}}}}}`
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		field("dispatchctl/policy", "", ours),
		field("argocd", "", ours),
		field("status", "status", ours),
		field("other-check", "", `{"f:spec":{"f:admissionChecksStrategy":{"f:admissionChecks":{"k:{\"name\":\"policy2\"}":{".":{}}}}}}`),
		field("old-api", "", `{"f:spec":{"f:admissionChecksStrategy":{".":{},"f:admissionChecks":{}}}}`),
		field("quota", "", `{"f:spec":{"f:resourceGroups":{}}}`),
		field("garbled", "", `[`),
		{Manager: "empty"},
	}}}
	got := Managers(cq, "policy")
	if diff := cmp.Diff([]string{"argocd", "dispatchctl/policy", "old-api"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"argocd", "old-api"}, others(got)); diff != "" {
		t.Error(diff)
	}
}

func TestManager(t *testing.T) {
	if got := Manager("policy"); got != "dispatchctl/policy" {
		t.Error(got)
	}
	a, b := Manager(strings.Repeat("a", 200)), Manager(strings.Repeat("a", 201))
	if len(a) != maxManager || len(b) != maxManager || a == b {
		t.Errorf("%q and %q", a, b)
	}
}

func TestBlames(t *testing.T) {
	for message, want := range map[string]bool{
		"Can't admit new workloads: references inactive AdmissionCheck(s): policy.":                                                        true,
		"Can't admit new workloads: references inactive AdmissionCheck(s): other,policy.":                                                  true,
		"Can't admit new workloads: is stopped, references missing AdmissionCheck(s): a, references inactive AdmissionCheck(s): policy,b.": true,
		"Can't admit new workloads: references inactive AdmissionCheck(s): policy2,my-policy.":                                             false,
		"Can't admit new workloads: references missing ResourceFlavor(s): policy.":                                                         false,
		"Can't admit new workloads: is stopped.":                                                                                           false,
	} {
		if got := blames(&metav1.Condition{Message: message}, "policy"); got != want {
			t.Errorf("%s: %v", message, got)
		}
	}
}

func TestWithout(t *testing.T) {
	queue := func(entries ...any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		if entries != nil {
			u.Object["spec"] = map[string]any{"admissionChecksStrategy": map[string]any{"admissionChecks": entries}}
		}
		return u
	}
	ours, theirs := map[string]any{"name": "policy"}, map[string]any{"name": "other", "onFlavors": []any{"a"}, "novel": "kept"}
	for name, tc := range map[string]struct {
		cq    *unstructured.Unstructured
		want  any
		found bool
	}{
		"among others": {queue(theirs, ours), map[string]any{"admissionChecks": []any{theirs}}, true},
		"alone":        {queue(ours), nil, true},
		"not there":    {queue(theirs), map[string]any{"admissionChecks": []any{theirs}}, false},
		"no strategy":  {queue(), nil, false},
	} {
		got, found, err := without(tc.cq, "policy")
		if err != nil || found != tc.found || !cmp.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v, %v", name, got, found, err)
		}
	}
}

func TestEntryIs(t *testing.T) {
	have := &kueue.AdmissionCheckStrategyRule{Name: "policy", OnFlavors: []kueue.ResourceFlavorReference{"b", "a"}}
	for name, tc := range map[string]struct {
		entry Entry
		have  *kueue.AdmissionCheckStrategyRule
		want  bool
	}{
		"same":          {Entry{"policy", []string{"a", "b", "a"}}, have, true},
		"all flavors":   {Entry{"policy", nil}, &kueue.AdmissionCheckStrategyRule{Name: "policy"}, true},
		"fewer flavors": {Entry{"policy", []string{"a"}}, have, false},
		"limited":       {Entry{"policy", nil}, have, false},
		"absent":        {Entry{"policy", nil}, nil, false},
	} {
		if got := tc.entry.is(tc.have); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhyInactive(t *testing.T) {
	check := func(change func(*kueue.AdmissionCheck)) *kueue.AdmissionCheck {
		c := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "policy", Generation: 2}, Spec: kueue.AdmissionCheckSpec{ControllerName: v1alpha1.ControllerName}}
		meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, ObservedGeneration: 2})
		change(c)
		return c
	}
	for want, c := range map[string]*kueue.AdmissionCheck{
		"":                    check(func(*kueue.AdmissionCheck) {}),
		"it is being deleted": check(func(c *kueue.AdmissionCheck) { c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }),
		"no gate has looked":  check(func(c *kueue.AdmissionCheck) { c.Status.Conditions = nil }),
		"its present spec":    check(func(c *kueue.AdmissionCheck) { c.Generation = 3 }),
		"spec.parameters name": check(func(c *kueue.AdmissionCheck) {
			c.Status.Conditions[0].Status, c.Status.Conditions[0].Message = metav1.ConditionFalse, "spec.parameters names"
		}),
	} {
		if got := WhyInactive(c); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestWithdrawWhenTimeIsUp: what stops a queue is taken back, also when the time is
// up before Kueue could have changed its mind. No real Kueue is that slow on demand.
func TestWithdrawWhenTimeIsUp(t *testing.T) {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "training", Generation: 2}}
	cq.Status.Conditions = []metav1.Condition{{
		Type: kueue.ClusterQueueActive, Status: metav1.ConditionFalse, ObservedGeneration: 2, Message: "references inactive AdmissionCheck(s): policy.",
	}}
	set := func(names ...string) {
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
		for _, name := range names {
			cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks, kueue.AdmissionCheckStrategyRule{Name: kueue.AdmissionCheckReference(name)})
		}
	}
	set("other")
	var patches []string
	c := interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if u, ok := o.(*unstructured.Unstructured); ok {
				content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cq)
				u.Object = content
				return err
			}
			cq.DeepCopyInto(o.(*kueue.ClusterQueue))
			return nil
		},
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			set("other", "policy")
			return nil
		},
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
			data, err := patch.Data(o)
			patches = append(patches, string(data))
			set("other")
			return err
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	w := New(c, func(string) {}, false)
	w.Tick = time.Millisecond
	r := w.Attach(ctx, "training", Entry{Check: "policy"})
	if r.Change != Withdrawn || !strings.Contains(r.Problem, "taken back, because it made the queue inactive: references inactive") {
		t.Errorf("%+v", r)
	}
	want := `{"metadata":{"resourceVersion":"","uid":""},"spec":{"admissionChecksStrategy":{"admissionChecks":[{"name":"other"}]}}}`
	if diff := cmp.Diff([]string{want}, patches); diff != "" {
		t.Error(diff)
	}
}
