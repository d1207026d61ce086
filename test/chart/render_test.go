// Package chart tests the Helm chart without a cluster: what it renders, what it
// refuses, and that what it renders fits together.
package chart

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

const (
	root     = "../.."
	dir      = root + "/charts/dispatch-admission"
	testdata = "testdata"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew, to be reviewed")

// loadChart reads the chart of the repository. Helm changes a chart while it works
// out the values, so each rendering has its own.
func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.Metadata.Version, c.Metadata.AppVersion = matrix.Version, matrix.Version
	return c
}

// inParent makes the chart a part of another one, as its Chart.yaml would.
func inParent(c *chart.Chart) *chart.Chart {
	parent := &chart.Chart{Metadata: &chart.Metadata{
		APIVersion: chart.APIVersionV2, Name: "parent", Version: "0.0.1", Type: "application",
		Dependencies: []*chart.Dependency{{Name: matrix.Name, Version: matrix.Version, Condition: matrix.Name + ".enabled"}},
	}}
	parent.AddDependency(c)
	return parent
}

// render does what `helm template` does.
func render(t *testing.T, c matrix.Case) (matrix.Rendered, error) {
	t.Helper()
	whole := loadChart(t)
	if c.Parent {
		whole = inParent(whole)
	}
	kube, err := chartutil.ParseKubeVersion(matrix.KubeVersion)
	if err != nil {
		t.Fatal(err)
	}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = *kube
	caps.APIVersions = append(caps.APIVersions, c.APIVersions...)
	given := maps.Clone(c.Values)
	if given == nil {
		given = map[string]any{}
	}
	if err := chartutil.ProcessDependenciesWithMerge(whole, given); err != nil {
		t.Fatal(err)
	}
	values, err := chartutil.ToRenderValues(whole, given, chartutil.ReleaseOptions{
		Name: c.Release, Namespace: c.Namespace, Revision: 1, IsInstall: true,
	}, caps)
	if err != nil {
		return matrix.Rendered{}, err
	}
	files, err := engine.Render(whole, values)
	if err != nil {
		return matrix.Rendered{}, err
	}
	r, err := matrix.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	return r, nil
}

// rendering is a case and what it renders to.
type rendering struct {
	matrix.Case
	matrix.Rendered
}

var (
	renderings     []rendering
	renderingsOnce sync.Once
)

// renderAll renders every case of the matrix, once for all tests.
func renderAll(t *testing.T) []rendering {
	t.Helper()
	renderingsOnce.Do(func() {
		cases, err := matrix.Cases(testdata)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			r, err := render(t, c)
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			renderings = append(renderings, rendering{c, r})
		}
	})
	if len(renderings) == 0 {
		t.Fatal("a case of the matrix does not render; another test says which")
	}
	return renderings
}

// each has a test look at every case of the matrix.
func each(t *testing.T, look func(t *testing.T, r rendering)) {
	t.Helper()
	for _, r := range renderAll(t) {
		t.Run(r.Name, func(t *testing.T) { look(t, r) })
	}
}

// renderValues renders the chart with the defaults' release.
func renderValues(t *testing.T, values map[string]any) (matrix.Rendered, error) {
	t.Helper()
	return render(t, matrix.Case{Release: "gate", Namespace: "gates", Values: values})
}

func TestLint(t *testing.T) {
	kube, err := chartutil.ParseKubeVersion(matrix.KubeVersion)
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, r rendering) {
		if r.Parent {
			t.Skip("the linter takes a folder, and the parent is none")
		}
		for _, m := range lint.AllWithKubeVersion(dir, r.Values, r.Namespace, kube).Messages {
			if m.Severity > support.InfoSev {
				t.Error(m)
			}
		}
	})
}

func TestGolden(t *testing.T) {
	defaults := renderAll(t)[0]
	known := map[string]bool{}
	each(t, func(t *testing.T, r rendering) {
		known[r.Name+".yaml"] = true
		got, err := matrix.Golden(r.Case, r.Rendered, defaults.Rendered)
		if err != nil {
			t.Fatal(err)
		}
		compareGolden(t, filepath.Join(testdata, "golden", r.Name+".yaml"), got)
	})
	files, err := os.ReadDir(filepath.Join(testdata, "golden"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("testdata/golden/%s is of no case", f.Name())
		}
	}
}

// compareGolden compares with what was recorded, or records it.
func compareGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; `make golden` writes it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: -recorded +rendered\n%s\n`make golden` records what is rendered now", file, diff)
	}
}
