// Package helm4 renders the cases of the chart with Helm 4, whose libraries do not go
// with those of Helm 3 in one module.
package helm4

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

const (
	dir      = "../../../charts/dispatch-admission"
	testdata = "../testdata"
)

func render(t *testing.T, c matrix.Case) (matrix.Rendered, error) {
	t.Helper()
	whole, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	whole.Metadata.Version, whole.Metadata.AppVersion = matrix.Version, matrix.Version
	if c.Parent {
		part := whole
		whole = &chart.Chart{Metadata: &chart.Metadata{
			APIVersion: chart.APIVersionV2, Name: "parent", Version: "0.0.1", Type: "application",
			Dependencies: []*chart.Dependency{{Name: matrix.Name, Version: matrix.Version, Condition: matrix.Name + ".enabled"}},
		}}
		whole.AddDependency(part)
	}
	caps := common.DefaultCapabilities.Copy()
	caps.KubeVersion = *kubeVersion(t)
	caps.APIVersions = append(caps.APIVersions, c.APIVersions...)
	given := maps.Clone(c.Values)
	if given == nil {
		given = map[string]any{}
	}
	if err := chartutil.ProcessDependencies(whole, given); err != nil {
		t.Fatal(err)
	}
	values, err := util.ToRenderValues(whole, given, common.ReleaseOptions{
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

func kubeVersion(t *testing.T) *common.KubeVersion {
	t.Helper()
	kube, err := common.ParseKubeVersion(matrix.KubeVersion)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

func cases(t *testing.T) []matrix.Case {
	t.Helper()
	all, err := matrix.Cases(testdata)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLint(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			if c.Parent {
				t.Skip("the linter takes a folder, and the parent is none")
			}
			for _, m := range lint.RunAll(dir, c.Values, c.Namespace, lint.WithKubeVersion(kubeVersion(t))).Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
}

// TestRefused wants the messages that were recorded of Helm 3.
func TestRefused(t *testing.T) {
	refusals, err := matrix.Refusals(testdata)
	if err != nil || len(refusals) == 0 {
		t.Fatalf("%d refusals: %v", len(refusals), err)
	}
	for _, tc := range refusals {
		t.Run(tc.Name, func(t *testing.T) {
			_, err := render(t, matrix.Case{Release: "gate", Namespace: "gates", Values: tc.Values})
			if err == nil {
				t.Fatal("was rendered")
			}
			if diff := cmp.Diff(tc.Says, matrix.Message(err)); diff != "" {
				t.Errorf("-Helm 3 +Helm 4\n%s", diff)
			}
		})
	}
}

// TestGolden wants of Helm 4 what was recorded of Helm 3.
func TestGolden(t *testing.T) {
	var defaults matrix.Rendered
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			r, err := render(t, c)
			if err != nil {
				t.Fatal(err)
			}
			if c.Name == "defaults" {
				defaults = r
			}
			got, err := matrix.Golden(c, r, defaults)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(testdata, "golden", c.Name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-Helm 3 +Helm 4\n%s", diff)
			}
		})
	}
}
