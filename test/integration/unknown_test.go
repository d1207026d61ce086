package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// future is a field that a newer version of the APIs might have.
const future = "fromTheFuture"

// TestUnknownFields: fields of TrainJob and Workload that our types do not know
// survive our writes, also within the entries that we write.
func TestUnknownFields(t *testing.T) {
	addField(t, "trainjobs.trainer.kubeflow.org", "v1alpha1", "spec", "spec.properties.runtimePatches.items")
	addField(t, "workloads.kueue.x-k8s.io", "v1beta2", "status", "status.properties.admissionChecks.items")

	ours, theirs := unique("check"), unique("check")+"-foreign"
	q := newQueue(t, ours, theirs)
	// The check is ours, and nobody serves it yet.
	activate(t, &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: ours}})
	job := q.submit(dispatchName())
	wl := awaitWorkload(t, job, "has quota and both checks", func(wl *kueue.Workload) bool {
		return has(wl, kueue.WorkloadQuotaReserved) && len(wl.Status.AdmissionChecks) == 2
	})
	setFuture(t, trainJobKind, job, 2, `[{"op":"add","path":"/spec/fromTheFuture","value":"job"},
		{"op":"add","path":"/spec/runtimePatches/0/fromTheFuture","value":"patch"}]`)
	setFuture(t, workloadKind, wl, 3, `[{"op":"add","path":"/status/fromTheFuture","value":"status"},
		{"op":"add","path":"/status/admissionChecks/0/fromTheFuture","value":"check"},
		{"op":"add","path":"/status/admissionChecks/1/fromTheFuture","value":"check"}]`, "status")

	startLeading(t, run{name: "gate"})
	awaitCheck(t, job, ours, kueue.CheckStateReady)
	wantCount(t, job, "1")
	got := read(t, trainJobKind, job)
	wantField(t, got, "job", "spec", future)
	wantEntries(t, got, 1, "spec", "runtimePatches")
	got = read(t, workloadKind, wl)
	wantField(t, got, "status", "status", future)
	wantEntries(t, got, 2, "status", "admissionChecks")
}

var (
	trainJobKind = schema.GroupVersionKind{Group: "trainer.kubeflow.org", Version: "v1alpha1", Kind: "TrainJob"}
	workloadKind = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: "Workload"}
	crdKind      = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
)

func read(t *testing.T, kind schema.GroupVersionKind, o client.Object) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(o), u); err != nil {
		t.Fatal(err)
	}
	return u
}

func wantField(t *testing.T, u *unstructured.Unstructured, want string, path ...string) {
	t.Helper()
	if got, _, _ := unstructured.NestedString(u.Object, path...); got != want {
		t.Errorf("%s: %v = %q, want %q", u.GetKind(), path, got, want)
	}
}

// wantEntries wants n entries of a list to have kept the field.
func wantEntries(t *testing.T, u *unstructured.Unstructured, n int, path ...string) {
	t.Helper()
	list, _, _ := unstructured.NestedSlice(u.Object, path...)
	kept := 0
	for _, e := range list {
		if entry, ok := e.(map[string]any); ok && entry[future] != nil {
			kept++
		}
	}
	if kept != n {
		t.Errorf("%s: %d entries of %v kept %s, want %d: %v", u.GetKind(), kept, path, future, n, list)
	}
}

// setFuture sets the field in n places, as soon as the API server serves the new
// schema, which takes it a moment.
func setFuture(t *testing.T, kind schema.GroupVersionKind, o client.Object, n int, patch string, subresource ...string) {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	raw := client.RawPatch(types.JSONPatchType, []byte(patch))
	eventually(t, patience, kind.Kind+" takes the new field", func() (err error) {
		if len(subresource) == 0 {
			err = shared.admin.Patch(t.Context(), u, raw)
		} else {
			err = shared.admin.SubResource(subresource[0]).Patch(t.Context(), u, raw)
		}
		if err != nil {
			return err
		}
		data, err := u.MarshalJSON()
		if err == nil && strings.Count(string(data), `"`+future+`"`) < n {
			err = errNotYet
		}
		return err
	})
}

// addField adds the field to a CRD's schema, at each of the places below the
// schema's properties, for the time of the test.
func addField(t *testing.T, crd, version string, places ...string) {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(crdKind)
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: crd}, u); err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	index := -1
	for i, v := range versions {
		if v.(map[string]any)["name"] == version {
			index = i
		}
	}
	patch := func(ctx context.Context, op, value string) error {
		text := ""
		for _, place := range places {
			text += fmt.Sprintf(`,{"op":%q,"path":"/spec/versions/%d/schema/openAPIV3Schema/properties/%s/properties/%s"%s}`,
				op, index, strings.ReplaceAll(place, ".", "/"), future, value)
		}
		return shared.admin.Patch(ctx, u, client.RawPatch(types.JSONPatchType, []byte("["+text[1:]+"]")))
	}
	if err := patch(t.Context(), "add", `,"value":{"type":"string"}`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := patch(context.Background(), "remove", ""); err != nil {
			t.Error(err)
		}
	})
}
