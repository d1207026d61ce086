package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

// notInValues are keys of the schema that values.yaml does not have.
var notInValues = map[string]string{
	"enabled": "the condition of a parent chart; a value here would be one that nothing reads",
}

// openMaps are maps whose keys are the user's, so that the schema has none of them.
var openMaps = []string{"metrics.dashboard.labels", "controller.resources", "adapter.resources", "jobs.resources", "podSecurityContext", "securityContext"}

// schema is a node of values.schema.json.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       any               `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Additional any               `json:"additionalProperties"`
	Defs       map[string]schema `json:"$defs"`
}

func readSchema(t *testing.T) schema {
	t.Helper()
	var s schema
	if err := json.Unmarshal(loadChart(t).Schema, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// at follows a reference.
func (s schema) at(node schema) schema {
	if name, ok := strings.CutPrefix(node.Ref, "#/$defs/"); ok {
		return s.Defs[name]
	}
	return node
}

// values are those of values.yaml.
func values(t *testing.T) map[string]any {
	t.Helper()
	for _, f := range loadChart(t).Raw {
		if f.Name == "values.yaml" {
			var v map[string]any
			if err := yaml.UnmarshalStrict(f.Data, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatal("the chart has no values.yaml")
	return nil
}

// TestSchemaAndValues: every value is in the schema, and what the schema has, values.yaml
// has with a default and a comment.
func TestSchemaAndValues(t *testing.T) {
	root := readSchema(t)
	var walk func(path string, node schema, value map[string]any)
	walk = func(path string, node schema, value map[string]any) {
		if slices.Contains(openMaps, path) {
			return
		}
		if closed, ok := node.Additional.(bool); (!ok || closed) && path != "global" {
			t.Errorf("%s: the schema is open here", path)
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			at := strings.TrimPrefix(path+"."+key, ".")
			property, ok := node.Properties[key]
			if !ok {
				t.Errorf("%s: is in values.yaml and not in the schema", at)
				continue
			}
			if m, ok := value[key].(map[string]any); ok && len(m) > 0 {
				walk(at, root.at(property), m)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(node.Properties)) {
			at := strings.TrimPrefix(path+"."+key, ".")
			if _, ok := value[key]; !ok && notInValues[at] == "" {
				t.Errorf("%s: is in the schema and not in values.yaml", at)
			}
		}
		for _, key := range node.Required {
			if _, ok := value[key]; !ok {
				t.Errorf("%s.%s: is required and has no default", path, key)
			}
		}
	}
	walk("", root, values(t))
}

// paths are those of all maps and other values, as lists of keys.
func paths(value map[string]any, above ...string) [][]string {
	var all [][]string
	for _, key := range slices.Sorted(maps.Keys(value)) {
		at := append(slices.Clone(above), key)
		all = append(all, at)
		if m, ok := value[key].(map[string]any); ok {
			all = append(all, paths(m, at...)...)
		}
	}
	return all
}

// set is a tree of values with one leaf.
func set(leaf any, path ...string) map[string]any {
	for i := len(path) - 1; i > 0; i-- {
		leaf = map[string]any{path[i]: leaf}
	}
	return map[string]any{path[0]: leaf}
}

func get(value map[string]any, path ...string) any {
	return matrix.Object(value).At(path...)
}

// nullMeans are values for which null is not the same as nothing, on purpose.
var nullMeans = map[string]string{
	"adapter.policy":                    "no policy at all, for a hook of one's own",
	"adapter.replicas":                  "whoever scales it",
	"controller.replicas":               "whoever scales it",
	"global":                            "nothing of other charts",
	"podSecurityContext":                "none, not that of the chart",
	"podSecurityContext.runAsUser":      "whom the platform picks",
	"podSecurityContext.runAsNonRoot":   "not said",
	"podSecurityContext.seccompProfile": "not said",
	"securityContext":                   "none, not that of the chart",
	"podDisruptionBudget.minAvailable":  "the default",
}

// TestNull takes away every value in turn, by null. Either one message names it, or the
// chart renders as if it were empty. It never fails in the middle of a template, and
// never takes a null number for 0 or a null switch for off.
func TestNull(t *testing.T) {
	defaults := values(t)
	open := func(path []string) bool { return slices.Contains(openMaps, strings.Join(path[:len(path)-1], ".")) }
	for _, path := range paths(defaults) {
		name := strings.Join(path, ".")
		t.Run(name, func(t *testing.T) {
			got, err := renderValues(t, set(nil, path...))
			if err != nil {
				checkNullMessage(t, matrix.Message(err), path)
				return
			}
			if nullMeans[name] != "" || open(path) || deepIn(openMaps, name) {
				return
			}
			var empty any
			switch get(defaults, path...).(type) {
			case string:
				empty = ""
			case []any:
				empty = []any{}
			case map[string]any:
				// An empty map would be filled up again with the defaults.
				if m := get(defaults, path...).(map[string]any); len(m) > 0 {
					t.Fatalf("null is taken for %v", m)
				}
				empty = map[string]any{}
			default:
				t.Fatalf("null is taken for something, although the default is %v; it should be required", get(defaults, path...))
			}
			want, err := renderValues(t, set(empty, path...))
			if err != nil {
				t.Fatalf("null is taken, although empty is refused: %v", err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("null is not the same as empty: -empty +null\n%s", diff)
			}
		})
	}
}

func deepIn(open []string, path string) bool {
	return slices.ContainsFunc(open, func(o string) bool { return strings.HasPrefix(path, o+".") || path == o })
}

// checkNullMessage wants one line with the path and no trace of a template.
func checkNullMessage(t *testing.T, message string, path []string) {
	t.Helper()
	if strings.Contains(message, "nil pointer") || strings.Contains(message, "template:") || strings.Contains(message, "\n") {
		t.Errorf("null breaks a template: %s", message)
	}
	if !strings.Contains(message, path[len(path)-1]) {
		t.Errorf("the message does not name the value: %s", message)
	}
}

// TestNullInAParent: the same for what a parent chart sets, where Helm may leave a null
// where it is instead of taking the value away.
func TestNullInAParent(t *testing.T) {
	for key := range values(t) {
		t.Run(key, func(t *testing.T) {
			_, err := render(t, matrix.Case{Release: "gate", Namespace: "gates", Parent: true, Values: set(nil, matrix.Name, key)})
			if err != nil {
				checkNullMessage(t, matrix.Message(err), []string{key})
			}
		})
	}
}

// TestValuesTwice: rendering the defaults as a user's values is rendering the defaults.
func TestValuesTwice(t *testing.T) {
	want := renderAll(t)[0]
	got, err := renderValues(t, values(t))
	if err != nil {
		t.Fatal(fmt.Errorf("values.yaml is refused by its own schema: %w", err))
	}
	if diff := cmp.Diff(want.Rendered, got); diff != "" {
		t.Errorf("-defaults +values.yaml given\n%s", diff)
	}
}
