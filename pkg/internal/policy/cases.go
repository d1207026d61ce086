package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Case is one test of a policy: a request, and what is to become of it.
type Case struct {
	Name    string
	Line    int
	Now     time.Time
	Request *admission.Request
	Want    Want
}

// Want is what a case expects. What it does not give is not compared.
type Want struct {
	// Kind is the decision; it does not count when there is an Error.
	Kind admission.Kind

	// Error is part of the error of a request that gets no verdict.
	Error string

	Reason  *string
	Until   *time.Time
	Changes *admission.Changes

	// Rules are the names of all rules that apply, audited ones too, in the
	// order of the policy.
	Rules []string

	// rules tells whether Rules was given: it may be empty.
	rules bool
}

// LoadCases reads the tests of a policy from the YAML text of a file: a mapping
// with the field tests. The error joins a [*Problem] for everything that is
// wrong.
func LoadCases(name string, data []byte) ([]Case, error) {
	d := &document{file: name}
	root := d.parse(data)
	if len(d.problems) > 0 {
		return nil, d.err()
	}
	keepText(root)
	f, _ := d.fields(root, place{}.at(root), "tests")
	if f["tests"] == nil && len(d.problems) == 0 {
		d.problem(place{}.at(root), "the field tests is missing")
	}
	if len(d.problems) > 0 {
		return nil, d.err()
	}
	items := d.items(f["tests"], place{}.sub("tests", f["tests"]))
	if len(items) == 0 && len(d.problems) == 0 {
		d.problem(place{}.sub("tests", f["tests"]), "is empty")
	}
	cases := make([]Case, len(items))
	for i, item := range items {
		cases[i] = d.testCase(item, place{rule: fmt.Sprintf("tests[%d]", i)}.at(item))
	}
	return cases, d.err()
}

// keepText makes text of what YAML takes for a time: a label such as 2026-12-24
// must stay what it is.
func keepText(n *yaml.Node) {
	if n.Tag == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, c := range n.Content {
		keepText(c)
	}
}

func (d *document) testCase(n *yaml.Node, p place) Case {
	f, ok := d.fields(n, p, "name", "now", "request", "want")
	for _, name := range []string{"name", "now", "request", "want"} {
		if ok && f[name] == nil {
			d.problem(p, "the field %s is missing", name)
		}
	}
	c := Case{Line: n.Line, Request: &admission.Request{}, Name: d.text(f["name"], p.sub("name", f["name"]))}
	if c.Name != "" {
		p.rule = fmt.Sprintf("test %q", c.Name)
	}
	if now := d.time(f["now"], p.sub("now", f["now"])); now != nil {
		c.Now = *now
	}
	d.into(f["request"], p.sub("request", f["request"]), c.Request)
	if want := f["want"]; want != nil {
		c.Want = d.want(want, p.sub("want", want))
	}
	return c
}

func (d *document) want(n *yaml.Node, p place) Want {
	f, _ := d.fields(n, p, "decision", "error", "reason", "until", "changes", "rules")
	w := Want{Error: d.text(f["error"], p.sub("error", f["error"]))}
	switch name := d.text(f["decision"], p.sub("decision", f["decision"])); {
	case (name == "") == (w.Error == ""):
		d.problem(p, "must have one of decision and error")
	case w.Error == "":
		kind, known := kindOf(name)
		if w.Kind = kind; !known {
			d.problem(p.sub("decision", f["decision"]), "%q is none of Admit, AdmitWith, Hold and Refuse", name)
		}
	}
	if reason := f["reason"]; reason != nil {
		w.Reason = new(d.text(reason, p.sub("reason", reason)))
	}
	w.Until = d.time(f["until"], p.sub("until", f["until"]))
	if changes := f["changes"]; changes != nil {
		w.Changes = &admission.Changes{}
		d.into(changes, p.sub("changes", changes), w.Changes)
	}
	if rules := f["rules"]; rules != nil {
		w.rules = true
		for i, item := range d.items(rules, p.sub("rules", rules)) {
			w.Rules = append(w.Rules, d.text(item, p.sub("rules", rules).item(i, item)))
		}
	}
	return w
}

func kindOf(name string) (admission.Kind, bool) {
	for _, k := range []admission.Kind{admission.KindAdmit, admission.KindAdmitWith, admission.KindHold, admission.KindRefuse} {
		if k.String() == name {
			return k, true
		}
	}
	return 0, false
}

func (d *document) time(n *yaml.Node, p place) *time.Time {
	text := d.text(n, p)
	if text == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		d.problem(p, "%q is not a time such as 2026-03-02T12:00:00Z", text)
		return nil
	}
	return &t
}

// into reads a part of the file by the rules of JSON, in which requests and
// changes are written everywhere else.
func (d *document) into(n *yaml.Node, p place, value any) {
	if n == nil {
		return
	}
	var plain any
	if err := n.Decode(&plain); err != nil {
		d.problem(p, "%v", err)
		return
	}
	data, err := json.Marshal(plain)
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(value)
	}
	if err != nil {
		d.problem(p, "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
}

// Differences asks p about the request and returns what is not as wanted, a
// line for each; none if all is.
func (c *Case) Differences(p *Policy) []string {
	result, err := p.Decide(c.Request, c.Now)
	var diffs []string
	differ := func(what string, got, want any) {
		diffs = append(diffs, fmt.Sprintf("%s: got %v, want %v", what, got, want))
	}
	switch {
	case err != nil && (c.Want.Error == "" || !strings.Contains(err.Error(), c.Want.Error)):
		differ("error", err, orNone(c.Want.Error))
	case err == nil && c.Want.Error != "":
		differ("error", "none", c.Want.Error)
	case err == nil:
		c.Want.compare(result.Decision, differ)
	}
	if got := result.Applied(); c.Want.rules && !slices.Equal(got, c.Want.Rules) {
		differ("rules", got, c.Want.Rules)
	}
	return diffs
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (w *Want) compare(d admission.Decision, differ func(what string, got, want any)) {
	if d.Kind() != w.Kind {
		differ("decision", d, w.Kind)
		return
	}
	reason, _ := d.Held()
	if d.Kind() == admission.KindRefuse {
		reason, _ = d.Refused()
	}
	if w.Reason != nil && reason != *w.Reason {
		differ("reason", fmt.Sprintf("%q", reason), fmt.Sprintf("%q", *w.Reason))
	}
	if until, _ := d.Until(); w.Until != nil && !until.Equal(*w.Until) {
		differ("until", until.Format(time.RFC3339Nano), w.Until.Format(time.RFC3339Nano))
	}
	if changes, _ := d.Changes(); w.Changes != nil && !reflect.DeepEqual(changes, *w.Changes) {
		differ("changes", admission.AdmitWith(changes), admission.AdmitWith(*w.Changes))
	}
}

// Applied returns the names of the rules that apply, audited ones too.
func (r *Result) Applied() []string {
	var names []string
	for i := range r.Rules {
		if r.Rules[i].Outcome == Applied {
			names = append(names, r.Rules[i].Name)
		}
	}
	return names
}
