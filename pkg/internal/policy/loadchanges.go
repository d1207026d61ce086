package policy

import (
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// changes reads what an admit wants, and checks what is known of it by now.
func (l *loader) changes(n *yaml.Node, p place, seen tests) *changes {
	f, ok := l.fields(n, p, "nodeSelector", "labels", "annotations", "tolerations", "priorityClassName", "serviceAccount")
	if !ok {
		return nil
	}
	before := l.count()
	c := &changes{
		nodeSelector: l.entries(f["nodeSelector"], p.sub("nodeSelector", f["nodeSelector"]), seen,
			func(m map[string]string) admission.Changes { return admission.Changes{NodeSelector: m} }),
		labels: l.entries(f["labels"], p.sub("labels", f["labels"]), seen,
			func(m map[string]string) admission.Changes { return admission.Changes{Labels: m} }),
		annotations: l.entries(f["annotations"], p.sub("annotations", f["annotations"]), seen,
			func(m map[string]string) admission.Changes { return admission.Changes{Annotations: m} }),
		tolerations: l.tolerations(f["tolerations"], p.sub("tolerations", f["tolerations"]), seen),
		priorityClassName: l.className(f["priorityClassName"], p.sub("priorityClassName", f["priorityClassName"]), seen,
			func(s string) admission.Changes { return admission.Changes{PriorityClassName: s} }),
		serviceAccount: l.className(f["serviceAccount"], p.sub("serviceAccount", f["serviceAccount"]), seen,
			func(s string) admission.Changes { return admission.Changes{ServiceAccount: s} }),
	}
	if len(f) == 0 && l.count() == before {
		l.problem(p, "changes nothing; to let some jobs pass a rule, give that rule an unless")
	}
	if l.count() == before && c.isConstant() {
		fixed, field, err := c.decide(&scope{})
		if err != nil {
			p.field = field
			l.problem(p, "%v", err)
		}
		c.fixed = fixed
	}
	return c
}

// valid reports what is wrong with one change by itself.
func (l *loader) valid(p place, c admission.Changes) {
	if err := c.Validate(); err != nil {
		_, problem := fieldOf(err)
		l.problem(p, "%v", problem)
	}
}

func (l *loader) entries(n *yaml.Node, p place, seen tests, wrap func(map[string]string) admission.Changes) []entry {
	if n == nil {
		return nil
	}
	var list []entry
	members, _ := l.members(n, p)
	for _, m := range members {
		q := p.key(m.name, m.key)
		e := l.expression(m.value, q.at(m.value), cel.StringType, seen)
		l.valid(q, wrap(map[string]string{m.name: constantText(e, "")}))
		list = append(list, entry{m.name, e})
	}
	return list
}

func (l *loader) className(n *yaml.Node, p place, seen tests, wrap func(string) admission.Changes) *expression {
	e := l.expression(n, p, cel.StringType, seen)
	l.valid(p, wrap(constantText(e, "")))
	return e
}

func (l *loader) tolerations(n *yaml.Node, p place, seen tests) []toleration {
	if n == nil {
		return nil
	}
	items := l.items(n, p)
	if len(items) > admission.MaxTolerations {
		l.problem(p, "%d given, at most %d allowed", len(items), admission.MaxTolerations)
		return nil
	}
	list := make([]toleration, len(items))
	for i, item := range items {
		list[i] = l.toleration(item, p.item(i, item), seen)
	}
	return list
}

func (l *loader) toleration(n *yaml.Node, p place, seen tests) toleration {
	f, _ := l.fields(n, p, "key", "operator", "value", "effect", "tolerationSeconds")
	before := l.count()
	t := toleration{
		key:   l.expression(f["key"], p.sub("key", f["key"]), cel.StringType, seen),
		value: l.expression(f["value"], p.sub("value", f["value"]), cel.StringType, seen),
	}
	t.rest.Operator = l.text(f["operator"], p.sub("operator", f["operator"]))
	t.rest.Effect = l.text(f["effect"], p.sub("effect", f["effect"]))
	if seconds := f["tolerationSeconds"]; seconds != nil {
		text := l.text(seconds, p.sub("tolerationSeconds", seconds))
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			l.problem(p.sub("tolerationSeconds", seconds), "%q is not a whole number", text)
		}
		t.rest.TolerationSeconds = &n
	}
	if l.count() == before {
		example := t.rest
		example.Key, example.Value = constantText(t.key, "key"), constantText(t.value, "value")
		if field, err := fieldOf(admission.Changes{Tolerations: []admission.Toleration{example}}.Validate()); err != nil {
			p.field += strings.TrimPrefix(field, "admit.tolerations[0]")
			l.problem(p, "%v", err)
		}
	}
	return t
}

// constantText is the value of a constant, something else for what is worked
// out, and nothing for what is not given.
func constantText(e *expression, otherwise string) string {
	if e == nil {
		return ""
	}
	if s, ok := e.constant.(types.String); ok {
		return string(s)
	}
	return otherwise
}

func (c *changes) isConstant() bool {
	all := []*expression{c.priorityClassName, c.serviceAccount}
	for _, list := range [][]entry{c.nodeSelector, c.labels, c.annotations} {
		for _, e := range list {
			all = append(all, e.value)
		}
	}
	for _, t := range c.tolerations {
		all = append(all, t.key, t.value)
	}
	for _, e := range all {
		if e != nil && e.constant == nil {
			return false
		}
	}
	return true
}
