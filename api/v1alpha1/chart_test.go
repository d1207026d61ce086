package v1alpha1

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const chart = "../../charts/dispatch-admission"

// node is what the schema of a CRD and that of the chart's values have in common.
type node struct {
	Type       string           `json:"type"`
	Properties map[string]*node `json:"properties"`
	Required   []string         `json:"required"`
	Enum       []string         `json:"enum"`
	MaxLength  *int             `json:"maxLength"`
	MaxItems   *int             `json:"maxItems"`
	Minimum    *int             `json:"minimum"`
	Maximum    *int             `json:"maximum"`
	Items      *node            `json:"items"`

	// In the values only.
	Ref                  string `json:"$ref"`
	AdditionalProperties *bool  `json:"additionalProperties"`
}

// TestChartKnowsTheSpec compares what the chart lets an operator write below
// admissionChecks[].gate with what an AdmissionGate can have. The chart is closed,
// because Helm lets the API server drop a misspelt field in silence.
func TestChartKnowsTheSpec(t *testing.T) {
	t.Parallel()
	var values struct {
		Defs definitions `json:"$defs"`
	}
	read(t, "values.schema.json", &values)
	spec := customResource(t).Properties["spec"]
	// A hook without an endpoint asks the adapter of the release.
	spec.Properties["hook"].Required = nil
	compareSchemas(t, "gate", spec, &node{Ref: "#/$defs/gate"}, values.Defs)
}

// TestEveryFieldIsExplained is for those who read kubectl explain.
func TestEveryFieldIsExplained(t *testing.T) {
	t.Parallel()
	type field struct {
		Description string            `json:"description"`
		Properties  map[string]*field `json:"properties"`
	}
	var explained func(path, name string, f *field)
	explained = func(path, name string, f *field) {
		// By its own name, not by that of the Go field.
		if !strings.HasPrefix(f.Description, name) {
			t.Errorf("%s: its description %q does not begin with its name", path, f.Description)
		}
		for name, sub := range f.Properties {
			explained(path+"."+name, name, sub)
		}
	}
	var root field
	decode(t, encode(t, rawSchema(t)), &root)
	for name, sub := range root.Properties["spec"].Properties {
		explained("spec."+name, name, sub)
	}
}

// definitions are the $defs of the values. Not all of them are about gates.
type definitions map[string]json.RawMessage

func (d definitions) node(t *testing.T, name string) *node {
	t.Helper()
	if d[name] == nil {
		return nil
	}
	var n node
	decode(t, d[name], &n)
	return &n
}

// compareSchemas holds a part of the values against the same part of the CRD. The
// values may say less than the CRD, which is asked in the end, but nothing else.
func compareSchemas(t *testing.T, path string, crd, values *node, defs definitions) {
	t.Helper()
	if name, ok := strings.CutPrefix(values.Ref, "#/$defs/"); ok {
		values = defs.node(t, name)
	}
	if values == nil {
		t.Errorf("%s: its $ref leads nowhere", path)
		return
	}
	if values.Type != "" && values.Type != crd.Type {
		t.Errorf("%s: is of type %s, want %s", path, values.Type, crd.Type)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(crd.Properties)), slices.Sorted(maps.Keys(values.Properties))); diff != "" {
		t.Errorf("%s: fields of the CRD (-) and of the values (+):\n%s", path, diff)
	}
	if len(crd.Properties) > 0 && (values.AdditionalProperties == nil || *values.AdditionalProperties) {
		t.Errorf("%s: is not closed", path)
	}
	for what, pair := range map[string][2]any{
		"required": {crd.Required, values.Required}, "enum": {crd.Enum, values.Enum},
		"maxLength": {crd.MaxLength, values.MaxLength}, "maxItems": {crd.MaxItems, values.MaxItems},
		"minimum": {crd.Minimum, values.Minimum}, "maximum": {crd.Maximum, values.Maximum},
	} {
		lax := reflect.ValueOf(pair[1]).IsNil() && what == "maxLength"
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" && !lax {
			t.Errorf("%s: %s of the CRD (-) and of the values (+):\n%s", path, what, diff)
		}
	}
	for name, sub := range crd.Properties {
		if values.Properties[name] != nil {
			compareSchemas(t, path+"."+name, sub, values.Properties[name], defs)
		}
	}
	if crd.Items != nil && values.Items != nil {
		compareSchemas(t, path+"[]", crd.Items, values.Items, defs)
	}
}

func customResource(t *testing.T) *node {
	t.Helper()
	var n node
	decode(t, encode(t, rawSchema(t)), &n)
	return &n
}

// rawSchema is the schema of the one version that the CRD has.
func rawSchema(t *testing.T) json.RawMessage {
	t.Helper()
	var crd struct {
		Spec struct {
			Group    string `json:"group"`
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema json.RawMessage `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	read(t, "files/crds/dispatch.phpboyscout.uk_admissiongates.yaml", &crd)
	if len(crd.Spec.Versions) != 1 || crd.Spec.Group != GroupName || crd.Spec.Versions[0].Name != GroupVersion.Version {
		t.Fatalf("the CRD is of %s %v, want %s only", crd.Spec.Group, crd.Spec.Versions, GroupVersion)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// read reads a file of the chart, YAML or JSON.
func read(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chart, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
