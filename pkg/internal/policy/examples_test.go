package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const examplesDir = "../../../docs/policies"

// TestExamples runs the policies of the documentation against their tests.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examplesDir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	policies := 0
	for _, file := range files {
		name, isPolicy := strings.CutSuffix(file, ".yaml")
		if strings.HasSuffix(name, ".test") {
			continue
		}
		policies++
		t.Run(filepath.Base(name), func(t *testing.T) {
			if !isPolicy {
				t.Fatal(file)
			}
			p := mustLoad(t, file, mustRead(t, file))
			cases, err := LoadCases(name+".test.yaml", mustRead(t, name+".test.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cases {
				for _, d := range c.Differences(p) {
					t.Errorf("%s.test.yaml:%d: %s: %s", name, c.Line, c.Name, d)
				}
			}
		})
	}
	if policies < 15 {
		t.Errorf("only %d policies were found", policies)
	}
}

func mustRead(tb testing.TB, file string) []byte {
	tb.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func mustLoad(tb testing.TB, name string, data []byte) *Policy {
	tb.Helper()
	p, err := Load(name, data)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func contains(err error, part string) bool { return strings.Contains(err.Error(), part) }
