package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"go.yaml.in/yaml/v3"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// The size of a policy is bounded, so that loading one takes seconds at most.
const (
	maxRules       = 1000
	maxExpressions = 4000
	maxTotal       = 256 << 10 // bytes of all expressions
)

// loader builds a policy from a document.
type loader struct {
	document
	compiler *compiler
	all      []*expression
	names    map[string]int // lines of the rules so far
	compiled int
	total    int // bytes
}

// Load reads a policy from the YAML text of a file: a mapping with the field
// rules. name is that of the file, for messages. The error joins a [*Problem]
// for everything that is wrong.
func Load(name string, data []byte) (*Policy, error) {
	l := &loader{document: document{file: name}}
	root := l.parse(data)
	if len(l.problems) > 0 {
		return nil, l.err()
	}
	return l.load(root)
}

// LoadNode is [Load] for a policy that is part of a larger file. Lines are
// those of the node.
func LoadNode(name string, node *yaml.Node) (*Policy, error) {
	l := &loader{document: document{file: name}}
	return l.load(resolve(node))
}

func (l *loader) load(root *yaml.Node) (*Policy, error) {
	var err error
	if l.compiler, err = newCompiler(); err != nil {
		return nil, err
	}
	l.names = map[string]int{}
	top := place{}.at(root)
	p := &Policy{}
	fields, _ := l.fields(root, top, "rules")
	if list, ok := fields["rules"]; ok {
		p.rules = l.rules(list, place{}.sub("rules", list))
	} else if len(l.problems) == 0 {
		l.problem(top, "the field rules is missing")
	}
	if err := l.err(); err != nil {
		return nil, err
	}
	prove(l.all)
	return p, nil
}

func (l *loader) rules(list *yaml.Node, p place) []*rule {
	items := l.items(list, p)
	if len(items) > maxRules {
		l.problem(p, "has %d rules, and %d are allowed", len(items), maxRules)
		return nil
	}
	rules := make([]*rule, len(items))
	for i, item := range items {
		rules[i] = l.rule(item, place{rule: fmt.Sprintf("rules[%d]", i), line: p.line}.at(item))
	}
	return rules
}

func (l *loader) rule(n *yaml.Node, p place) *rule {
	if name := nameOf(n); name != "" {
		p.rule = fmt.Sprintf("rule %q", name)
	}
	f, ok := l.fields(n, p, "name", "when", "unless", "during", "mode", "hold", "refuse", "admit")
	if !ok {
		return nil
	}
	r := &rule{name: l.name(f["name"], p)}
	if mode := f["mode"]; mode != nil {
		r.audit = l.mode(mode, p.sub("mode", mode))
	}
	if during := f["during"]; during != nil {
		r.window = l.window(during, p.sub("during", during))
	}
	seen := tests{}
	r.when = l.expression(f["when"], p.sub("when", f["when"]), cel.BoolType, seen)
	r.unless = l.expression(f["unless"], p.sub("unless", f["unless"]), cel.BoolType, seen)
	r.say = l.saying(f, p, seen)
	return r
}

// nameOf returns the name of a rule before anything is known to be right with
// it.
func nameOf(n *yaml.Node) string {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "name" && isLabel(n.Content[i+1].Value) {
			return n.Content[i+1].Value
		}
	}
	return ""
}

func (l *loader) name(n *yaml.Node, p place) string {
	if n == nil {
		l.problem(p, "the field name is missing")
		return ""
	}
	p = p.sub("name", n)
	name := l.text(n, p)
	line, taken := l.names[name]
	switch {
	case name == "":
	case !isLabel(name):
		l.problem(p, "%q is not a name: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends", name)
	case taken:
		l.problem(p, "%q is the name of the rule in line %d too", name, line)
	default:
		l.names[name] = n.Line
		return name
	}
	return ""
}

// isLabel tells whether s is a DNS label.
func isLabel(s string) bool {
	for _, c := range []byte(s) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-'
}

func (l *loader) mode(n *yaml.Node, p place) (audit bool) {
	switch mode := l.text(n, p); mode {
	case "", "enforce":
	case "audit":
		return true
	default:
		l.problem(p, "%q is neither enforce nor audit", mode)
	}
	return false
}

func (l *loader) window(n *yaml.Node, p place) *window {
	f, ok := l.fields(n, p, "schedule", "duration", "timezone")
	if !ok {
		return nil
	}
	w := &window{zone: time.UTC}
	for _, field := range []struct {
		name     string
		read     func(string) error
		optional bool
	}{
		{"schedule", func(s string) (err error) { w.cron, err = parseCron(s); return err }, false},
		{"duration", func(s string) (err error) { w.duration, err = parseDuration(s); return err }, false},
		{"timezone", func(s string) (err error) { w.zone, err = loadZone(s); return err }, true},
	} {
		value := f[field.name]
		q := p.sub(field.name, value)
		switch text := l.text(value, q); {
		case value == nil && !field.optional:
			l.problem(p, "the field %s is missing", field.name)
		case text == "":
		default:
			if err := field.read(text); err != nil {
				l.problem(q, "%v", err)
			}
		}
	}
	return w
}

// saying reads the one of hold, refuse and admit that a rule has.
func (l *loader) saying(f map[string]*yaml.Node, p place, seen tests) saying {
	var given []string
	for _, name := range []string{"hold", "refuse", "admit"} {
		if f[name] != nil {
			given = append(given, name)
		}
	}
	if len(given) != 1 {
		said := "none"
		if len(given) > 1 {
			said = strings.Join(given, " and ")
		}
		l.problem(p, "a rule has exactly one of hold, refuse and admit; this one has %s", said)
		return saying{}
	}
	n := f[given[0]]
	p2 := p.sub(given[0], n)
	switch given[0] {
	case "hold":
		return l.reason(n, p2, admission.KindHold, f["during"] != nil, seen)
	case "refuse":
		return l.reason(n, p2, admission.KindRefuse, false, seen)
	}
	return saying{kind: admission.KindAdmitWith, changes: l.changes(n, p2, seen)}
}

// reason reads a hold or a refusal: a text, or a mapping.
func (l *loader) reason(n *yaml.Node, p place, kind admission.Kind, windowed bool, seen tests) saying {
	a := saying{kind: kind}
	if n.Kind == yaml.ScalarNode {
		a.text = l.reasonText(n, p)
		return a
	}
	known := []string{"reason", "reasonExpression"}
	if kind == admission.KindHold {
		known = append(known, "until")
	}
	f, ok := l.fields(n, p, known...)
	if !ok {
		return a
	}
	if (f["reason"] == nil) == (f["reasonExpression"] == nil) {
		l.problem(p, "must have one of reason and reasonExpression")
	}
	a.text = l.reasonText(f["reason"], p.sub("reason", f["reason"]))
	a.reason = l.expression(f["reasonExpression"], p.sub("reasonExpression", f["reasonExpression"]), cel.StringType, seen)
	if until := f["until"]; until != nil {
		if windowed {
			l.problem(p.sub("until", until), "a rule with during holds until the window closes; leave one of the two out")
		}
		a.until = l.expression(until, p.sub("until", until), cel.TimestampType, seen)
	}
	return a
}

func (l *loader) reasonText(n *yaml.Node, p place) string {
	text := strings.TrimSpace(l.text(n, p))
	if len(text) > admission.MaxReasonBytes {
		l.problem(p, "has %d bytes, and the owner of the job sees the first %d", len(text), admission.MaxReasonBytes)
	}
	return text
}

// expression compiles what n holds, which may be nil. Faults are told with the
// line that they are in.
func (l *loader) expression(n *yaml.Node, p place, want *cel.Type, seen tests) *expression {
	text := l.text(n, p)
	if text == "" {
		return nil
	}
	l.compiled++
	l.total += len(text)
	if l.compiled > maxExpressions || l.total > maxTotal {
		if l.compiled-1 <= maxExpressions && l.total-len(text) <= maxTotal {
			l.problem(p, "the policy is too large: %d expressions of %d bytes in all are allowed", maxExpressions, maxTotal)
		}
		return nil
	}
	e, faults := l.compiler.compile(text, want, seen)
	for _, f := range faults {
		l.fault(n, p, f)
	}
	if e != nil && e.constant == nil {
		l.all = append(l.all, e)
	}
	return e
}

func (l *loader) fault(n *yaml.Node, p place, f fault) {
	where := ""
	switch {
	case n.Style == yaml.LiteralStyle && f.line > 0:
		// A block begins on the line below its sign, and keeps its lines.
		p.line = n.Line + f.line
		where = fmt.Sprintf("line %d, column %d: ", f.line, f.column)
	case f.line > 1:
		where = fmt.Sprintf("line %d, column %d: ", f.line, f.column)
	case f.line == 1:
		where = fmt.Sprintf("column %d: ", f.column)
	}
	l.problem(p, "%s%s", where, f.text)
}
