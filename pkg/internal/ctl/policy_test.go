package ctl

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
)

// TestPolicyCommands shows what each command prints.
func TestPolicyCommands(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, lines := range map[string][]string{
		"policy-lint": {
			"policy lint freeze.yaml freeze.test.yaml config.yaml", "policy lint freeze.yaml", "policy lint broken.yaml broken.test.yaml",
			"policy lint empty.yaml missing.yaml elsewhere.yaml", "policy lint -o json broken.test.yaml freeze.yaml", "policy lint -o yaml freeze.yaml",
			"policy lint -",
		},
		"policy-test": {
			"policy test freeze.yaml", "policy test freeze.test.yaml", "policy test -f freeze.yaml wrong.test.yaml freeze.test.yaml",
			"policy test -f freeze.yaml .", "policy test broken.yaml", "policy test config.yaml", "policy test missing.yaml", "policy test -f missing.yaml freeze.test.yaml",
			"policy test nothing", "policy test -o json freeze.yaml", "policy test -o yaml -f freeze.yaml wrong.test.yaml",
		},
		"policy-eval": {
			"policy eval -f freeze.yaml -r request.yaml --now 2026-07-04T12:00:00Z", "policy eval -f freeze.yaml -r request.yaml --now 2026-07-07T12:00:00Z",
			"policy eval -f freeze.yaml -r request.json --now 2026-07-07T12:00:00Z", "policy eval -f freeze.yaml -r - --now 2026-07-07T12:00:00Z",
			"policy eval -o json -f freeze.yaml -r request.yaml --now 2026-07-04T12:00:00Z", "policy eval -o yaml -f freeze.yaml -r request.json --now 2026-07-07T12:00:00Z",
			"policy eval -f config.yaml -r request.yaml", "policy eval -f broken.yaml -r request.yaml", "policy eval -f freeze.yaml -r misspelt.yaml",
			"policy eval -f freeze.yaml -r empty.yaml", "policy eval -f freeze.yaml -r missing.json",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir("testdata/policy")
			if err := os.MkdirAll("nothing", 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove("nothing") })
			var all strings.Builder
			for _, line := range lines {
				fmt.Fprintf(&all, "$ %s %s\n%s\n", Name, line, run(t, `{"tryNumber": 5, "image": "x"}`, strings.Fields(line)...))
			}
			t.Chdir(here)
			golden(t, name, all.String())
		})
	}
}

// TestRequestIsReadAsItWasPrinted: what request prints, policy eval reads.
func TestRequestIsReadAsItWasPrinted(t *testing.T) {
	for _, sample := range hooktest.Samples() {
		want := sample.Request
		for _, f := range []format{formatJSON, formatYAML} {
			text, err := encode(f, want)
			if err != nil {
				t.Fatal(err)
			}
			c := &cli{Streams: Streams{In: strings.NewReader(string(text))}}
			got, err := c.readRequest(stdinName)
			if err != nil {
				t.Fatalf("sample %s as %s: %v", sample.Name, f, err)
			}
			if g, w := mustJSON(t, got), mustJSON(t, want); g != w {
				t.Errorf("sample %s as %s: got %s, want %s", sample.Name, f, g, w)
			}
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestLineDiff(t *testing.T) {
	for name, tc := range map[string]struct{ a, b, want string }{
		"Equal":   {"x y", "x y", "  x\n  y\n"},
		"Changed": {"x y z", "x w z", "  x\n- y\n+ w\n  z\n"},
		"Added":   {"x", "x y", "  x\n+ y\n"},
		"Removed": {"x y", "y", "- x\n  y\n"},
	} {
		if got := lineDiff(strings.Fields(tc.a), strings.Fields(tc.b)); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
