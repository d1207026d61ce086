package policy

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const docs = "../../../docs/policy.md"

// TestDocumentedFields looks for every field of a request in the documentation.
func TestDocumentedFields(t *testing.T) {
	text := string(mustRead(t, docs))
	for _, f := range requestType.fields {
		if !strings.Contains(text, "`request."+f.name+"`") {
			t.Errorf("request.%s is not documented", f.name)
		}
	}
	for _, m := range regexp.MustCompile("`request\\.([a-zA-Z]+)`").FindAllStringSubmatch(text, -1) {
		if requestType.byName[m[1]] == nil {
			t.Errorf("request.%s is documented and does not exist", m[1])
		}
	}
	for _, o := range objectTypes {
		for _, f := range o.fields {
			if o != requestType && !strings.Contains(text, "`"+f.name+"`") {
				t.Errorf("%s of %s is not documented", f.name, o.name)
			}
		}
	}
}

// TestDocumentedPolicies loads what the documentation shows.
func TestDocumentedPolicies(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(mustRead(t, docs)), -1)
	kinds := map[string]int{}
	for _, block := range blocks {
		kind, _, _ := strings.Cut(block[1], ":")
		kinds[kind]++
		var err error
		switch kind {
		case "rules":
			_, err = Load(docs, []byte(block[1]))
		case "tests":
			_, err = LoadCases(docs, []byte(block[1]))
		}
		if err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
	}
	if kinds["rules"] < 4 || kinds["tests"] != 1 || len(kinds) != 2 {
		t.Errorf("found %v", kinds)
	}
}

// TestDocumentedFunctions compiles a call of every function that the
// documentation names in its tables.
func TestDocumentedFunctions(t *testing.T) {
	base, err := baseEnv()
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for name := range base.Functions() {
		known = append(known, name)
	}
	for _, m := range base.Macros() {
		known = append(known, m.Function())
	}
	section := regexp.MustCompile(`(?s)### Functions\n(.*?)### Cost`).FindStringSubmatch(string(mustRead(t, docs)))
	if section == nil {
		t.Fatal("no section")
	}
	names := regexp.MustCompile("`([a-zA-Z_.]{2,})(\\([^`]*\\))?`").FindAllStringSubmatch(section[1], -1)
	for _, m := range names {
		if name := m[1]; !slices.Contains(known, name) && !slices.Contains([]string{"optMap", "now.getHours"}, name) {
			t.Errorf("%s does not exist", name)
		}
	}
	if len(names) < 60 {
		t.Errorf("only %d functions", len(names))
	}
}

// TestDocumentedLimits keeps the numbers of the text true.
func TestDocumentedLimits(t *testing.T) {
	text := string(mustRead(t, docs))
	want := []string{
		"10,000,000 units", "lists of 32 items, maps of 128 entries, annotations of 16 KiB and other text of 1 KiB",
		"8192 characters at most, nested 50 deep", "1000 rules, 4000 expressions of 256 KiB in all, and 1 MiB as a file", "up to 8784 hours",
	}
	have := []any{maxCost, usualItems, usualEntries, usualAnnotation, usualText, maxExpression, maxDepth, maxRules, maxExpressions, maxTotal, maxFile, maxDuration.Hours()}
	is := []any{10_000_000, 32, 128, 16 << 10, 1 << 10, 8192, 50, 1000, 4000, 256 << 10, 1 << 20, 8784.0}
	if !slices.Equal(have, is) {
		t.Errorf("limits are %v", have)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("the text does not say %q", w)
		}
	}
}

// TestDocumentedMessage is the example of a message.
func TestDocumentedMessage(t *testing.T) {
	data := strings.Repeat("\n", 6) + "rules: [{name: cpu-ceiling,\n  when: \"quantity(request.resources.request.cpu).isGreaterThan(quantity('8'))\", refuse: no}]"
	_, err := Load("policy.yaml", []byte(data))
	if err == nil || !strings.Contains(string(mustRead(t, docs)), "    "+err.Error()+"\n") {
		t.Errorf("got %v", err)
	}
}

// TestPoliciesHaveHeaders: every example says what it is for, and has tests.
func TestPoliciesHaveHeaders(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examplesDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, ".test.yaml") && !strings.HasPrefix(string(mustRead(t, file)), "# ") {
			t.Errorf("%s has no header", file)
		}
	}
	number := 0
	for _, file := range files {
		if !strings.HasSuffix(file, ".test.yaml") {
			number++
		}
	}
	if number != 17 || !strings.Contains(string(mustRead(t, docs)), "Seventeen policies") {
		t.Errorf("%d policies", number)
	}
}
