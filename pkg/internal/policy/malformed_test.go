package policy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write what is expected instead of reading it")

// TestMalformed loads policies that are wrong and compares every message with
// the .txt file beside the policy.
func TestMalformed(t *testing.T) {
	files, err := filepath.Glob("testdata/malformed/*.yaml")
	if err != nil || len(files) < 95 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			_, err := Load("policy.yaml", mustRead(t, file))
			if err == nil {
				t.Fatal("nothing is wrong with it")
			}
			got := err.Error() + "\n"
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(mustRead(t, golden)); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// TestLoadNode tells the lines of the file that the policy is a part of.
func TestLoadNode(t *testing.T) {
	const file = "listen: 1\npolicy:\n  rules:\n  - name: a\n    when: |\n      request.imgae == 'x'\n    refuse: no\n"
	load := func(text string) error {
		var config struct{ Policy yaml.Node }
		if err := yaml.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		_, err := LoadNode("config.yaml", &config.Policy)
		return err
	}
	if err := load(strings.Replace(file, "imgae", "image", 1)); err != nil {
		t.Error(err)
	}
	if err := load(file); err == nil || !contains(err, `config.yaml:6: rule "a": when: line 1, column 8: there is no field "imgae"`) {
		t.Errorf("got %v", err)
	}
	if err := load("policy: &a {rules: []}"); err != nil {
		t.Error(err)
	}
	for _, node := range []*yaml.Node{nil, {}, {Kind: yaml.AliasNode}} {
		if _, err := LoadNode("config.yaml", node); err == nil || !contains(err, "config.yaml: must be a mapping") {
			t.Errorf("%v: got %v", node, err)
		}
	}
}

// TestTooLarge is for what would make a large file.
func TestTooLarge(t *testing.T) {
	cases := map[string]struct{ data, want string }{
		"File":        {"rules: []\n#" + strings.Repeat("x", maxFile), "policy.yaml: has 1048587 bytes, and 1048576 are allowed"},
		"Rules":       {"rules: [" + strings.Repeat("1,", maxRules+1) + "]", "policy.yaml:1: rules: has 1001 rules, and 1000 are allowed"},
		"Expressions": {"rules: [{name: a, admit: {labels: {" + many(maxExpressions+1, "k%d: request.tenantID, ") + "}}}]", "the policy is too large: 4000 expressions"},
		"Text":        {"x: &x " + strings.Repeat("request.sourceMode && ", 300) + "true\nrules: [" + many(100, "{name: r%d, when: *x, refuse: no}, ") + "]", `unknown field "x"`},
		"Problems":    {"rules: [" + strings.Repeat("1,", 150) + "]", "policy.yaml: and 50 problems more"},
		"Lazy":        {lazy(), "must be a mapping"},
		"Late":        {"rules: [" + strings.Repeat("1,", 150) + "{name: a, admit: {labels: {x: y}}}, {name: b, admit: {tolerations: [{key: x}]}}]", "problems more"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Load("policy.yaml", []byte(tc.data))
			if err == nil || !contains(err, tc.want) {
				t.Errorf("got %.1000v, want %s", err, tc.want)
			}
			if n := strings.Count(err.Error(), "\n"); n > maxProblems {
				t.Errorf("%d problems", n)
			}
		})
	}
	if _, err := Load("policy.yaml", []byte(cases["Text"].data)); !contains(err, "the policy is too large: 4000 expressions of 262144 bytes") {
		t.Errorf("got %v", err)
	}
}

func many(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// lazy is a file of aliases that would be a billion nodes if each was followed.
func lazy() string {
	var b strings.Builder
	b.WriteString("a0: &a0 {name: a}\n")
	for i := 1; i < 20; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), ", "))
	}
	b.WriteString("rules: *a19\n")
	return b.String()
}
