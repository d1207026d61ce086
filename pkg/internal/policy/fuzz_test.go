package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

func addFiles(f *testing.F, patterns ...string) {
	f.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatal(pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
}

// FuzzLoad loads any text. What loads must decide, and what does not must say
// where it is wrong.
func FuzzLoad(f *testing.F) {
	addFiles(f, "testdata/malformed/*.yaml", filepath.Join(examplesDir, "*.yaml"))
	f.Add([]byte(lazy()))
	f.Add([]byte("rules: &a [*a, *a]"))
	f.Add([]byte("{rules: [{name: a, refuse: &x no, when: *x}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Load("f.yaml", data)
		checkError(t, err)
		if err != nil {
			return
		}
		for _, req := range []*admission.Request{{}, fullRequest()} {
			result, err := p.Decide(req, noon)
			if err == nil && result.Decision.Validate() != nil {
				t.Errorf("not a valid decision: %v", result.Decision)
			}
			again, _ := p.Decide(req, noon)
			if !again.Decision.Equal(result.Decision) {
				t.Errorf("%v and then %v", result.Decision, again.Decision)
			}
		}
	})
}

// checkError looks into a joined error: every part must be a problem on one
// line.
func checkError(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		t.Fatalf("not a list of problems: %v", err)
	}
	for _, one := range joined.Unwrap() {
		var p *Problem
		if !errors.As(one, &p) || p.Text == "" || strings.Contains(one.Error(), "\n") {
			t.Errorf("%#v", one)
		}
	}
}

// FuzzExpression compiles any text as each kind of expression, and evaluates it
// if it is one.
func FuzzExpression(f *testing.F) {
	for _, seed := range []string{
		`request.tenantID == "a"`, `request.podSets.map(p, p.count * units(p.resources.extended[?"a"].orValue(""))).sum() > 1`,
		`now.getHours("Europe/London") > 1`, `request.podSets[0].images[0].matches("^a+$")`, `{"a": 1}[request.tenantID]`,
		`"%s %.3f".format([request.tenantID, 1.5])`, `optional.of(request).?job.name`, `[1, 2].sum() == lists.range(3).sum()`,
		`cel.bind(x, 1, x)`, `request.execution.labels.transformMap(k, v, v + k)`, `quantity("9e99").add(quantity("1")).asInteger()`,
		`timestamp("9999-12-31T23:59:59Z") + duration("1h")`, `-9223372036854775808 / -1`, `"a".replace("", "b")`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, field := range []string{"when", "label", "until"} {
			node := &yaml.Node{Kind: yaml.ScalarNode, Value: text, Tag: "!!str"}
			p, err := LoadNode("f.yaml", ruleWith(field, node))
			checkError(t, err)
			for _, req := range []*admission.Request{{}, fullRequest()} {
				if err == nil {
					_, _ = p.Decide(req, noon)
				}
			}
		}
	})
}

// ruleWith is a policy with one rule that has the expression in a field.
func ruleWith(field string, value *yaml.Node) *yaml.Node {
	text := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s, Tag: "!!str"} }
	of := func(nodes ...*yaml.Node) *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Content: nodes} }
	rule := of(text("name"), text("a"))
	switch field {
	case "when":
		rule.Content = append(rule.Content, text("when"), value, text("refuse"), text("no"))
	case "label":
		rule.Content = append(rule.Content, text("admit"), of(text("labels"), of(text("x"), value)))
	default:
		rule.Content = append(rule.Content, text("hold"), of(text("reason"), text("no"), text("until"), value))
	}
	return of(text("rules"), &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{rule}})
}

// FuzzCases reads any text as tests of a policy.
func FuzzCases(f *testing.F) {
	addFiles(f, filepath.Join(examplesDir, "*.test.yaml"))
	p := mustLoad(f, "tenant-nodes", mustRead(f, filepath.Join(examplesDir, "tenant-nodes.yaml")))
	f.Fuzz(func(t *testing.T, data []byte) {
		cases, err := LoadCases("f.test.yaml", data)
		checkError(t, err)
		for _, c := range cases {
			if err == nil {
				c.Differences(p)
			}
		}
	})
}

// FuzzWindow looks for schedules that break the arithmetic: a window that is
// open closes later, and was open since its start.
func FuzzWindow(f *testing.F) {
	for _, s := range schedules {
		f.Add(s.schedule, s.duration, "Europe/London", noon.Unix())
	}
	f.Fuzz(func(t *testing.T, schedule, duration, zone string, unix int64) {
		c, err := parseCron(schedule)
		if err != nil {
			return
		}
		d, err := parseDuration(duration)
		if err != nil {
			return
		}
		z, err := loadZone(zone)
		if err != nil {
			return
		}
		w := &window{c, d, z}
		now := noon.AddDate(0, 0, int(unix%100000))
		end, open := w.until(now)
		if !open {
			return
		}
		if start := end.Add(-d); !now.Before(end) || start.After(now) {
			t.Fatalf("at %s open from %s to %s", now, start, end)
		}
		if same, still := w.until(end.Add(-d)); !still || !same.Equal(end) {
			t.Fatalf("open until %s, and at its start until %s, %t", end, same, still)
		}
	})
}
