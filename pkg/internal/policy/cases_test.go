package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoadCases(t *testing.T) {
	cases, err := LoadCases("a.test.yaml", []byte(`
tests:
- name: all of it
  now: 2026-03-04T12:00:00+01:00
  request:
    tenantID: research
    creationTime: 2026-03-04T10:00:00Z
    execution: {labels: {day: 2026-12-24, "on": "off"}}
    podSets: [{name: node, count: 2}]
  want: {decision: Hold, reason: wait, until: 2026-03-05T00:00:00Z, rules: [a, b]}
- name: an error
  now: 2026-03-04T12:00:00Z
  request: {}
  want: {error: some text, rules: []}
`))
	if err != nil {
		t.Fatal(err)
	}
	c := cases[0]
	got := []any{c.Name, c.Line, c.Now.UTC().String(), c.Request.TenantID, c.Request.CreationTime.String(), c.Request.Execution.Labels,
		c.Request.PodSets[0].Count, c.Want.Kind.String(), *c.Want.Reason, c.Want.Until.String(), c.Want.Rules, c.Want.Changes == nil, cases[1].Want.Error}
	want := []any{"all of it", 3, "2026-03-04 11:00:00 +0000 UTC", "research", "2026-03-04 10:00:00 +0000 UTC",
		map[string]string{"day": "2026-12-24", "on": "off"}, 2, "Hold", "wait", "2026-03-05 00:00:00 +0000 UTC", []string{"a", "b"}, true, "some text"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLoadCasesErrors(t *testing.T) {
	one := func(fields string) string {
		base := map[string]string{"name": "name: a", "now": "now: 2026-03-04T12:00:00Z", "request": "request: {}", "want": "want: {decision: Admit}"}
		var items []string
		for field := range strings.SplitSeq(fields, "\n") {
			name, _, _ := strings.Cut(field, ":")
			base[name] = field
		}
		for _, name := range []string{"name", "now", "request", "want", "extra"} {
			if base[name] != "" && !strings.HasSuffix(base[name], "~") {
				items = append(items, base[name])
			}
		}
		return "tests:\n- " + strings.Join(items, "\n  ") + "\n"
	}
	for name, tc := range map[string]struct{ data, want string }{
		"Empty":     {"", "t.yaml: is empty"},
		"NoTests":   {"{}", "t.yaml:1: the field tests is missing"},
		"Misspelt":  {"test: []", `t.yaml:1: unknown field "test"; did you mean "tests"?`},
		"None":      {"tests: []", "t.yaml:1: tests: is empty"},
		"Mapping":   {"tests: {}", "t.yaml:1: tests: must be a list"},
		"Text":      {"tests: [x]", "t.yaml:1: tests[0]: must be a mapping"},
		"NoName":    {one("name: ~"), "t.yaml:2: tests[0]: the field name is missing"},
		"NoNow":     {one("now: ~"), "t.yaml:2: tests[0]: the field now is missing"},
		"NoRequest": {one("request: ~"), "the field request is missing"},
		"NoWant":    {one("want: ~"), "the field want is missing"},
		"Extra":     {one("extra: 1"), `t.yaml:6: tests[0]: unknown field "extra"`},
		"Now":       {one("now: tomorrow"), `t.yaml:3: test "a": now: "tomorrow" is not a time such as`},
		"Date":      {one("now: 2026-03-04"), `now: "2026-03-04" is not a time`},
		"Request":   {one("request: {tenant: x}"), `t.yaml:4: test "a": request: unknown field "tenant"`},
		"Type":      {one("request: {tryNumber: x}"), `request: cannot unmarshal string into Go struct field Request.tryNumber of type int`},
		"Label":     {one("request: {execution: {labels: {a: 1}}}"), `request: cannot unmarshal number`},
		"Key":       {one("request: {1: x}"), `request: `},
		"Decision":  {one("want: {decision: admit}"), `t.yaml:5: test "a": want.decision: "admit" is none of`},
		"Neither":   {one("want: {reason: x}"), `test "a": want: must have one of decision and error`},
		"Both":      {one("want: {decision: Admit, error: x}"), `must have one of decision and error`},
		"Changes":   {one("want: {decision: AdmitWith, changes: {label: {}}}"), `want.changes: unknown field "label"`},
		"Rules":     {one("want: {decision: Admit, rules: a}"), `want.rules: must be a list`},
		"Until":     {one("want: {decision: Hold, until: soon}"), `want.until: "soon" is not a time`},
		"WantField": {one("want: {deciion: Hold}"), `unknown field "deciion"; did you mean "decision"?`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := LoadCases("t.yaml", []byte(tc.data)); err == nil || !contains(err, tc.want) {
				t.Errorf("got %v, want %s, for\n%s", err, tc.want, tc.data)
			}
		})
	}
}

// TestDifferences asks one policy about cases that expect something else.
func TestDifferences(t *testing.T) {
	p := policyOf(t,
		"{name: refuse, when: request.tryNumber == 1, refuse: no}", "{name: hold, when: request.tryNumber == 2, hold: {reason: wait, until: now}}",
		"{name: admit, when: request.tryNumber == 3, admit: {labels: {x: \"'1'\"}}}", "{name: fail, when: 'request.tryNumber == 4 && request.podSets[0].count > 0', refuse: no}",
	)
	for name, tc := range map[string]struct {
		try, want string
		diffs     []string
	}{
		"Refused":   {"1", "{decision: Refuse, reason: no, rules: [refuse]}", nil},
		"Held":      {"2", "{decision: Hold, reason: wait, until: 2026-03-04T12:00:00Z, rules: [hold]}", nil},
		"Changed":   {"3", "{decision: AdmitWith, changes: {labels: {x: '1'}}, rules: [admit]}", nil},
		"Failed":    {"4", "{error: 'rule \"fail\": when', rules: []}", nil},
		"Admitted":  {"5", "{decision: Admit, rules: []}", nil},
		"Least":     {"2", "{decision: Hold}", nil},
		"Kind":      {"1", "{decision: Hold, reason: wait}", []string{`decision: got Refuse {"decision":"Refuse","reason":"no"}, want Hold`}},
		"Reason":    {"1", "{decision: Refuse, reason: yes}", []string{`reason: got "no", want "yes"`}},
		"HeldWhy":   {"2", "{decision: Hold, reason: yes}", []string{`reason: got "wait", want "yes"`}},
		"Until":     {"2", "{decision: Hold, until: 2026-03-04T13:00:00Z}", []string{"until: got 2026-03-04T12:00:00Z, want 2026-03-04T13:00:00Z"}},
		"NoUntil":   {"1", "{decision: Refuse, until: 2026-03-04T13:00:00Z}", []string{"until: got 0001-01-01T00:00:00Z, want 2026-03-04T13:00:00Z"}},
		"Changes":   {"3", "{decision: AdmitWith, changes: {labels: {x: '2'}}}", []string{`changes: got AdmitWith {"decision":"AdmitWith","changes":{"labels":{"x":"1"}}}, want AdmitWith {"decision":"AdmitWith","changes":{"labels":{"x":"2"}}}`}},
		"Rules":     {"1", "{decision: Refuse, rules: []}", []string{"rules: got [refuse], want []"}},
		"Error":     {"1", "{error: x}", []string{"error: got none, want x"}},
		"NoError":   {"4", "{decision: Admit}", []string{`error: got rule "fail": when: index out of bounds: 0, want none`}},
		"ErrorText": {"4", "{error: z}", []string{`error: got rule "fail": when: index out of bounds: 0, want z`}},
		"Two":       {"1", "{decision: Hold, rules: [x]}", []string{`decision: got Refuse {"decision":"Refuse","reason":"no"}, want Hold`, "rules: got [refuse], want [x]"}},
	} {
		t.Run(name, func(t *testing.T) {
			cases, err := LoadCases("t.yaml", []byte("tests:\n- {name: a, now: 2026-03-04T12:00:00Z, request: {tryNumber: "+tc.try+"}, want: "+tc.want+"}\n"))
			if err != nil {
				t.Fatal(err)
			}
			if got := cases[0].Differences(p); !slices.Equal(got, tc.diffs) {
				t.Errorf("got %q, want %q", got, tc.diffs)
			}
		})
	}
}
