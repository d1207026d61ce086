package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

// TestRefused: wrong values get one message, which names the path of the value and the
// way out. The whole message is recorded, so that it is reviewed.
func TestRefused(t *testing.T) {
	refusals, err := matrix.Refusals(testdata)
	if err != nil {
		t.Fatal(err)
	}
	if len(refusals) == 0 {
		t.Fatal("there are none")
	}
	for _, tc := range refusals {
		t.Run(tc.Name, func(t *testing.T) {
			_, err := renderValues(t, tc.Values)
			if err == nil {
				t.Fatal("was rendered")
			}
			if diff := cmp.Diff(tc.Says, matrix.Message(err)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if parts := strings.Split(tc.Says, "\n"); len(parts) > 1 {
				t.Errorf("%d messages, want one: %q", len(parts), tc.Says)
			}
		})
	}
}

// TestGates: what the values of checks and gates come to.
func TestGates(t *testing.T) {
	const (
		policy = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
		served = "dispatch.phpboyscout.uk/v1alpha1/AdmissionGate"
	)
	gated := map[string]any{"admissionChecks": []any{
		map[string]any{"name": "a", "gate": map[string]any{"hook": map[string]any{"endpoint": map[string]any{"url": "https://h", "clientCertificateSecret": "of-a"}}}},
		map[string]any{"name": "b", "gateRef": "other"},
		map[string]any{"name": "a.plain"},
	}, "hookClientCertificates": []any{"z", "of-a"}}
	for name, tc := range map[string]struct {
		reason  string
		values  map[string]any
		serves  []string
		rows    []string
		without []string
	}{
		"Plain": {"a check without a gate needs no Secret", map[string]any{"admissionChecks": []any{map[string]any{"name": "a"}}}, nil,
			[]string{"CustomResourceDefinition admissiongates.dispatch.phpboyscout.uk: keep", "AdmissionCheck a: no gate", "reads pods"},
			[]string{"AdmissionGate", "MutatingAdmissionPolicy", "reads secrets"}},
		"NoCRD":    {"somebody else's", map[string]any{"crds": map[string]any{"enabled": false}}, nil, nil, []string{"CustomResourceDefinition"}},
		"CRDGoes":  {"gates and all", map[string]any{"crds": map[string]any{"keep": false}}, nil, []string{"CustomResourceDefinition admissiongates.dispatch.phpboyscout.uk: "}, []string{": keep"}},
		"Policy":   {"where it is served", nil, []string{policy}, []string{"MutatingAdmissionPolicy pods.dispatch", "MutatingAdmissionPolicyBinding pods.dispatch"}, nil},
		"NoPolicy": {"another release has it", map[string]any{"podPolicy": map[string]any{"enabled": false}}, []string{policy}, nil, []string{"MutatingAdmissionPolicy"}},
		"NoPods":   {"not wanted", map[string]any{"rbac": map[string]any{"waitForPods": false}}, nil, nil, []string{"reads jobs", "reads jobsets"}},
		"Gates": {"two of three have one, one is ours", gated, []string{served},
			[]string{"AdmissionCheck a: gate a", "AdmissionCheck b: gate other", "AdmissionCheck a.plain: no gate", "AdmissionGate a: ordinary", "reads secrets [of-a z]"},
			[]string{"AdmissionGate other"}},
		"FirstGates": {"the CRD comes with them", gated, nil, []string{"AdmissionGate a: post-install,post-upgrade,post-rollback of gate"}, nil},
		"Empty": {"a gate of defaults alone", map[string]any{"admissionChecks": []any{map[string]any{"name": "a", "gate": map[string]any{}}}}, []string{served},
			[]string{"AdmissionGate a: ordinary"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := render(t, matrix.Case{Release: "gate", Namespace: "gates", APIVersions: tc.serves, Values: tc.values})
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(aboutGates(t, r), "\n")
			for _, want := range tc.rows {
				if !strings.Contains(got, want) {
					t.Errorf("%s: %q is missing in\n%s", tc.reason, want, got)
				}
			}
			for _, none := range tc.without {
				if strings.Contains(got, none) {
					t.Errorf("%s: %q is in\n%s", tc.reason, none, got)
				}
			}
		})
	}
}

// aboutGates says in a line each what a release has that concerns gates.
func aboutGates(t *testing.T, r matrix.Rendered) []string {
	t.Helper()
	var rows []string
	for _, o := range r.Objects {
		hook := o.Text("metadata", "annotations", "helm.sh/hook")
		switch o.Text("kind") {
		case "AdmissionCheck":
			row := o.String() + ": no gate"
			if o.Text("spec", "parameters", "kind") == "AdmissionGate" && o.Text("spec", "parameters", "apiGroup") == "dispatch.phpboyscout.uk" {
				row = o.String() + ": gate " + o.Text("spec", "parameters", "name")
			}
			rows = append(rows, row)
		case "AdmissionGate":
			row := o.String() + ": ordinary"
			if hook != "" {
				row = o.String() + ": " + hook + " of " + o.Text("metadata", "annotations", "meta.helm.sh/release-name")
			}
			rows = append(rows, row)
		case "CustomResourceDefinition":
			rows = append(rows, o.String()+": "+o.Text("metadata", "annotations", "helm.sh/resource-policy"))
		case "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding":
			rows = append(rows, o.String())
		case "ClusterRole", "Role":
			if o.Text("metadata", "labels", "app.kubernetes.io/component") == "controller" {
				rows = append(rows, reads(o)...)
			}
		}
	}
	return rows
}

func reads(role matrix.Object) []string {
	var rows []string
	for _, rule := range role["rules"].([]any) {
		o := matrix.Object(rule.(map[string]any))
		for _, resource := range o.At("resources").([]any) {
			row := "reads " + resource.(string)
			if names, ok := o.At("resourceNames").([]any); ok {
				var text []string
				for _, name := range names {
					text = append(text, name.(string))
				}
				row += " [" + strings.Join(text, " ") + "]"
			}
			rows = append(rows, row)
		}
	}
	return rows
}
