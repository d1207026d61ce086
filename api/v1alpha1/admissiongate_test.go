package v1alpha1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestAllowlistKeepsEmpty sees to it that a list which allows nothing never turns
// into one that is no rule, on any way that an object takes in a controller.
func TestAllowlistKeepsEmpty(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		list   []string
		want   string // of hook.allowlist in JSON
	}{
		"NotSet": {reason: "no rule", list: nil, want: ``},
		"Empty":  {reason: "allows nothing", list: []string{}, want: `{"priorityClasses":[],"serviceAccounts":[]}`},
		"One":    {reason: "allows one", list: []string{"a"}, want: `{"priorityClasses":["a"],"serviceAccounts":["a"]}`},
	}
	ways := map[string]func(*testing.T, *AdmissionGate) *AdmissionGate{
		"JSON":         throughJSON,
		"Unstructured": throughUnstructured,
		"DeepCopy":     func(_ *testing.T, g *AdmissionGate) *AdmissionGate { return g.DeepCopy() },
	}
	for name, tc := range cases {
		gate := &AdmissionGate{Spec: AdmissionGateSpec{Hook: &Hook{
			Endpoint:  Endpoint{UnixSocket: "/hook.sock"},
			Allowlist: Allowlist{PriorityClasses: tc.list, ServiceAccounts: tc.list},
		}}}
		for way, through := range ways {
			t.Run(name+way, func(t *testing.T) {
				t.Parallel()
				// Diff tells nil from empty.
				if diff := cmp.Diff(gate, through(t, gate)); diff != "" {
					t.Errorf("%s: changed on its way (-want +got):\n%s", tc.reason, diff)
				}
			})
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got struct {
				Spec struct {
					Hook struct {
						Allowlist json.RawMessage `json:"allowlist"`
					} `json:"hook"`
				} `json:"spec"`
			}
			decode(t, encode(t, gate), &got)
			if string(got.Spec.Hook.Allowlist) != tc.want {
				t.Errorf("%s: allowlist is %q, want %q", tc.reason, got.Spec.Hook.Allowlist, tc.want)
			}
		})
	}
}

// TestUnsetFieldsAreLeftOut is what lets the API server fill in its defaults when
// the object comes from Go.
func TestUnsetFieldsAreLeftOut(t *testing.T) {
	t.Parallel()
	for want, gate := range map[string]*AdmissionGate{
		`{"metadata":{}}`: {},
		`{"metadata":{},"spec":{"hook":{"endpoint":{"url":"https://hook.example.com"}}}}`: {
			Spec: AdmissionGateSpec{Hook: &Hook{Endpoint: Endpoint{URL: "https://hook.example.com"}}}},
		`{"metadata":{},"status":{"breaker":"Open"}}`: {Status: AdmissionGateStatus{Breaker: BreakerOpen}},
	} {
		if got := string(encode(t, gate)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestAddToScheme(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if gvk := GroupVersion.WithKind(AdmissionGateKind); !scheme.Recognizes(gvk) {
		t.Errorf("%s is not in the scheme", gvk)
	}
	if gvk := GroupVersion.WithKind(AdmissionGateKind + "List"); !scheme.Recognizes(gvk) {
		t.Errorf("%s is not in the scheme", gvk)
	}
}

func throughJSON(t *testing.T, gate *AdmissionGate) *AdmissionGate {
	t.Helper()
	var out AdmissionGate
	decode(t, encode(t, gate), &out)
	return &out
}

func throughUnstructured(t *testing.T, gate *AdmissionGate) *AdmissionGate {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(gate)
	if err != nil {
		t.Fatal(err)
	}
	var out AdmissionGate
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}
