package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/utils/expression"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/isolation"
)

func TestPodStagesAreYAML(t *testing.T) {
	docs := splitDocuments([]byte(podStages(nil)))
	if len(docs) != 5 {
		t.Errorf("%d stages, want 5", len(docs))
	}
	for _, doc := range docs {
		obj, err := decodeObject(doc)
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if obj["kind"] != "Stage" || child(obj["spec"], "next") == nil || child(obj["spec"], "selector") == nil {
			t.Errorf("not a complete stage:\n%s", doc)
		}
	}
}

// TestStagesLeaveProgramsAlone asks kwok's own evaluation which pods are its.
func TestStagesLeaveProgramsAlone(t *testing.T) {
	programs := map[string]string{"gate": "/bin", "tool.x": "/bin"}
	const digest = "@sha256:0123"
	for name, tc := range map[string]struct {
		programs    map[string]string
		init, named []string
		want        bool
	}{
		"another image":                   {programs, nil, []string{"example.com/none"}, true},
		"a program":                       {programs, nil, []string{"ghcr.io/org/gate:v1"}, false},
		"without a tag":                   {programs, nil, []string{"gate"}, false},
		"by digest, from a port":          {programs, nil, []string{"localhost:5000/a/gate" + digest}, false},
		"tag and digest":                  {programs, nil, []string{"a/gate:v1" + digest}, false},
		"two programs and init container": {programs, []string{"tool.x"}, []string{"gate", "gate:v2"}, false},
		"a program beside another image":  {programs, nil, []string{"gate", "sidecar"}, true},
		"another image as init container": {programs, []string{"busybox"}, []string{"gate"}, true},
		"the name as a folder":            {programs, nil, []string{"gate/other"}, true},
		"the name as an end":              {programs, nil, []string{"mygate"}, true},
		"no programs":                     {nil, nil, []string{"gate"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := map[string]any{
				"metadata": map[string]any{"name": "p"},
				"spec":     map[string]any{"nodeName": "n", "containers": images(tc.named)},
				"status":   map[string]any{"phase": "Pending"},
			}
			if tc.init != nil {
				child(pod, "spec")["initContainers"] = images(tc.init)
			}
			if got := selects(t, splitDocuments([]byte(podStages(tc.programs)))[0], pod); got != tc.want {
				t.Errorf("kwok runs it: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestEveryStageLeavesProgramsAlone keeps a new stage from forgetting it.
func TestEveryStageLeavesProgramsAlone(t *testing.T) {
	for _, doc := range splitDocuments([]byte(podStages(map[string]string{"gate": "/bin"}))) {
		if !strings.Contains(string(doc), notPrograms(map[string]string{"gate": "/bin"})) {
			t.Errorf("a stage for all images:\n%s", doc)
		}
	}
}

func images(names []string) []any {
	var list []any
	for _, name := range names {
		list = append(list, map[string]any{"image": name})
	}
	return list
}

// selects reports whether all expressions of a stage match the pod.
func selects(t *testing.T, stage []byte, pod any) bool {
	t.Helper()
	var s struct {
		Spec struct {
			Selector struct {
				MatchExpressions []struct {
					Key, Operator string
					Values        []string
				} `json:"matchExpressions"`
			} `json:"selector"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(stage, &s); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Spec.Selector.MatchExpressions {
		r, err := expression.NewRequirement(e.Key, internalversion.SelectorOperator(e.Operator), e.Values)
		if err != nil {
			t.Fatal(err)
		}
		ok, err := r.Matches(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return false
		}
	}
	return true
}

func TestCheckPrograms(t *testing.T) {
	full, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "gate"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(empty, "readme"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		image, dir, want string
	}{
		"right":                {"dispatch-admission", full, ""},
		"a whole reference":    {"ghcr.io/a/gate", full, "the last element of its repository"},
		"with a tag":           {"gate:v1", full, "without tag"},
		"no name":              {"", full, "no name of an image"},
		"relative":             {"gate", "bin", "give its absolute path"},
		"missing directory":    {"gate", full + "/x", "no such file"},
		"without any programs": {"gate", empty, "holds no program"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkPrograms(map[string]string{tc.image: tc.dir})
			if tc.want == "" && isolation.Check() != nil {
				t.Skip("this user may run no programs at all")
			}
			if got := fmt.Sprint(err); (err == nil) != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
