// Package matrix is what the tests of the chart share, whichever Helm renders it:
// the cases, what each is to render, and the values that the chart is to refuse.
package matrix

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Version is the version of chart and program in every test, so that a release
// changes nothing of what was recorded.
const Version = "1.2.3"

// KubeVersion is the version of Kubernetes that Helm is told of.
const KubeVersion = "v1.36.0"

// Name is the chart's, and its key in the values of a parent.
const Name = "dispatch-admission"

// Case is one way to install the chart: a file in testdata/cases.
type Case struct {
	// Name is that of the file, without its ending.
	Name string `json:"-"`
	// Why says what is to be seen.
	Why string `json:"why"`
	// Release and Namespace are those of Helm; gate and gates if empty.
	Release   string `json:"release,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// APIVersions are what the API server has besides what Helm assumes.
	APIVersions []string `json:"apiVersions,omitempty"`
	// Parent has the chart rendered as a part of another one, whose values these are.
	Parent bool `json:"parent,omitempty"`
	// OwnSecurity tells that the values change security contexts.
	OwnSecurity bool `json:"ownSecurity,omitempty"`
	// Values are those of the user.
	Values map[string]any `json:"values,omitempty"`
}

// Cases reads the cases of testdata, the defaults first.
func Cases(testdata string) ([]Case, error) {
	files, err := filepath.Glob(filepath.Join(testdata, "cases", "*.yaml"))
	if err != nil {
		return nil, err
	}
	var cases []Case
	for _, file := range files {
		c := Case{Name: strings.TrimSuffix(filepath.Base(file), ".yaml"), Release: "gate", Namespace: "gates"}
		if err := read(file, &c); err != nil {
			return nil, err
		}
		if c.Name == "defaults" {
			cases = slices.Insert(cases, 0, c)
		} else {
			cases = append(cases, c)
		}
	}
	if len(cases) == 0 || cases[0].Name != "defaults" {
		return nil, fmt.Errorf("%s has no case named defaults", testdata)
	}
	return cases, nil
}

// Refusal is an entry of testdata/refused.yaml: wrong values, and all that Helm is
// to say about them.
type Refusal struct {
	Name   string         `json:"name"`
	Values map[string]any `json:"values"`
	// Says is the message after what Helm puts before every message.
	Says string `json:"says"`
}

// Refusals reads them.
func Refusals(testdata string) ([]Refusal, error) {
	var all []Refusal
	err := read(filepath.Join(testdata, "refused.yaml"), &all)
	return all, err
}

func read(file string, into any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// What Helm puts around a message of the schema, and of `fail`. Helm 3 and 4 differ
// in the second.
var around = []*regexp.Regexp{
	regexp.MustCompile(`(?s)^values don't meet the specifications of the schema\(s\) in the following chart\(s\):\n[^\n]*\n`),
	regexp.MustCompile(`(?s)^execution error at \([^)]*\): `),
	regexp.MustCompile(`(?s)^.*error calling fail: `),
}

// Message takes away what Helm puts around the chart's own words.
func Message(err error) string {
	text := err.Error()
	for _, r := range around {
		text = r.ReplaceAllString(text, "")
	}
	return strings.TrimSpace(text)
}

// Object is a rendered object.
type Object map[string]any

// String names it: kind, namespace if it has one, and name.
func (o Object) String() string {
	if ns := o.Text("metadata", "namespace"); ns != "" {
		return fmt.Sprintf("%s %s/%s", o.Text("kind"), ns, o.Text("metadata", "name"))
	}
	return fmt.Sprintf("%s %s", o.Text("kind"), o.Text("metadata", "name"))
}

// At is the value at a path of keys, nil if there is none.
func (o Object) At(path ...string) any {
	var at any = map[string]any(o)
	for _, key := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[key]
	}
	return at
}

// Text is the string at a path, empty if there is none.
func (o Object) Text(path ...string) string {
	text, _ := o.At(path...).(string)
	return text
}

// Rendered is what a chart renders to.
type Rendered struct {
	Objects []Object
	Notes   string
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// Read takes what Helm's engine returns, by path of the template, and sorts the objects.
func Read(files map[string]string) (Rendered, error) {
	var r Rendered
	for path, text := range files {
		switch {
		case strings.HasSuffix(path, "/NOTES.txt"):
			r.Notes = text
			continue
		case strings.HasSuffix(path, ".tpl"):
			continue
		}
		for _, doc := range separator.Split(text, -1) {
			var o Object
			if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
				return Rendered{}, fmt.Errorf("%s: %w: %s", path, err, doc)
			}
			if len(o) > 0 {
				r.Objects = append(r.Objects, o)
			}
		}
	}
	slices.SortFunc(r.Objects, func(a, b Object) int {
		return strings.Compare(a.String()+a.Text("metadata", "annotations", "helm.sh/hook"), b.String()+b.Text("metadata", "annotations", "helm.sh/hook"))
	})
	return r, nil
}

// Golden writes what is recorded of a case: its objects, but for those that are as in
// the defaults, and the notes. Comments are gone, and so is what is copied from files/.
func Golden(c Case, r, defaults Rendered) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s\n", c.Why)
	var same []string
	var others []Object
	for _, o := range r.Objects {
		isSame := slices.ContainsFunc(defaults.Objects, func(d Object) bool { return reflect.DeepEqual(d, o) })
		if c.Name != "defaults" && isSame {
			same = append(same, o.String())
		} else {
			others = append(others, o)
		}
	}
	if len(same) > 0 {
		fmt.Fprintf(&out, "#\n# As in defaults.yaml:\n#   %s\n", strings.Join(same, "\n#   "))
	}
	for _, o := range others {
		text, err := yaml.Marshal(short(o))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	if c.Name == "defaults" || r.Notes != defaults.Notes {
		text, err := yaml.Marshal(map[string]string{"NOTES.txt": strings.TrimSpace(r.Notes) + "\n"})
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	return out.Bytes(), nil
}

// short leaves out the spec of CRDs, which is generated, and the JSON of the dashboard.
func short(o Object) Object {
	const left = "(left out here)"
	switch {
	case o.Text("kind") == "CustomResourceDefinition":
		o = clone(o)
		o["spec"] = left
	case o.Text("data", "dispatch-admission.json") != "":
		o = clone(o)
		o["data"] = map[string]any{"dispatch-admission.json": left}
	}
	return o
}

func clone(o Object) Object {
	return maps.Clone(o)
}
