package ctl

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// TestForeign: a gate is deleted only if the release made it.
func TestForeign(t *testing.T) {
	release := types.NamespacedName{Namespace: "dispatch-system", Name: "gate"}
	gate := func(change func(g *v1alpha1.AdmissionGate)) *v1alpha1.AdmissionGate {
		g := &v1alpha1.AdmissionGate{}
		g.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "gate"}
		g.Annotations = map[string]string{"meta.helm.sh/release-namespace": "dispatch-system"}
		change(g)
		return g
	}
	for name, tc := range map[string]struct {
		gate    *v1alpha1.AdmissionGate
		release types.NamespacedName
		want    string // part of it, empty if it is the release's
	}{
		"the release's":           {gate(func(*v1alpha1.AdmissionGate) {}), release, ""},
		"a hook's, without notes": {gate(func(g *v1alpha1.AdmissionGate) { g.Annotations = nil }), release, ""},
		"no release is named":     {gate(func(g *v1alpha1.AdmissionGate) { g.Labels = nil }), types.NamespacedName{}, ""},
		"made by hand":            {gate(func(g *v1alpha1.AdmissionGate) { g.Labels = nil }), release, "the release dispatch-system/gate did not make it"},
		"another release's":       {gate(func(g *v1alpha1.AdmissionGate) { g.Labels["app.kubernetes.io/instance"] = "other" }), release, "did not make it"},
		"the same name elsewhere": {gate(func(g *v1alpha1.AdmissionGate) { g.Annotations["meta.helm.sh/release-namespace"] = "other" }), release, "a release of the namespace other"},
	} {
		if got := foreign(tc.gate, tc.release); !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
