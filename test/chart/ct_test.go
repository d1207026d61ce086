package chart

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// ctKeys are the settings of chart-testing v3, which ignores others.
var ctKeys = []string{
	"additional-commands", "all", "build-id", "chart-dirs", "chart-repos", "chart-yaml-schema", "charts", "check-version-increment", "debug",
	"exclude-deprecated", "excluded-charts", "github-groups", "helm-dependency-extra-args", "helm-extra-args", "helm-extra-set-args",
	"helm-lint-extra-args", "helm-repo-extra-args", "kubectl-timeout", "lint-conf", "namespace", "print-logs", "release-label", "release-name",
	"remote", "since", "skip-clean-up", "skip-helm-dependencies", "skip-missing-values", "target-branch", "upgrade", "use-helmignore",
	"validate-chart-schema", "validate-maintainers", "validate-yaml",
}

// TestChartTesting: ct.yaml has only what ct knows, and each file of values that it would
// take renders.
func TestChartTesting(t *testing.T) {
	text, err := os.ReadFile(root + "/ct.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var settings map[string]any
	if err := yaml.UnmarshalStrict(text, &settings); err != nil {
		t.Fatal(err)
	}
	for key := range settings {
		if !slices.Contains(ctKeys, key) {
			t.Errorf("ct.yaml: chart-testing has no setting %s", key)
		}
	}
	for _, folder := range settings["chart-dirs"].([]any) {
		if charts, err := filepath.Glob(filepath.Join(root, folder.(string), "*", "Chart.yaml")); err != nil || len(charts) == 0 {
			t.Errorf("ct.yaml: there is no chart in %s", folder)
		}
	}
	files, err := filepath.Glob(dir + "/ci/*-values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no files of values for ct: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var given map[string]any
			if err := yaml.UnmarshalStrict(text, &given); err != nil {
				t.Fatal(err)
			}
			if _, err := renderValues(t, given); err != nil {
				t.Error(err)
			}
		})
	}
}
