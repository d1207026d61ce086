package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// combine makes one decision of what the rules said.
func combine(rules []RuleResult) (admission.Decision, error) {
	if err := failures(rules); err != nil {
		return admission.Decision{}, err
	}
	if reasons := collect(rules, admission.Decision.Refused); len(reasons) > 0 {
		return admission.Refuse(joined(reasons)), nil
	}
	if reasons := collect(rules, admission.Decision.Held); len(reasons) > 0 {
		return admission.HoldUntil(latest(rules), joined(reasons)), nil
	}
	return merge(rules)
}

// failures joins the errors of the rules that decide.
func failures(rules []RuleResult) error {
	var errs []error
	for i := range rules {
		if r := &rules[i]; r.Outcome == Failed && !r.Audit {
			errs = append(errs, r.Err)
		}
	}
	return errors.Join(errs...)
}

// decides tells whether the rule has a part in the decision.
func (r *RuleResult) decides() bool { return r.Outcome == Applied && !r.Audit }

func collect(rules []RuleResult, of func(admission.Decision) (string, bool)) []string {
	var reasons []string
	for i := range rules {
		if r := &rules[i]; r.decides() {
			if reason, ok := of(r.Decision); ok {
				reasons = append(reasons, reason)
			}
		}
	}
	return reasons
}

// joined sorts the reasons, so that they read the same at every offer.
func joined(reasons []string) string {
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; ")
}

// latest is the latest time that a hold gave, zero if none did.
func latest(rules []RuleResult) time.Time {
	var until time.Time
	for i := range rules {
		if r := &rules[i]; r.decides() {
			if t, ok := r.Decision.Until(); ok && t.After(until) {
				until = t
			}
		}
	}
	return until
}

// merged are the changes so far.
type merged struct {
	admission.Changes
	rules []RuleResult
	errs  []string
}

func merge(rules []RuleResult) (admission.Decision, error) {
	m := merged{rules: rules}
	last, number := 0, 0
	for i := range rules {
		if r := &rules[i]; r.decides() && r.changes != nil {
			m.add(i)
			last = i
			number++
		}
	}
	switch {
	case number == 0:
		return admission.Admit(), nil
	case number == 1:
		return rules[last].Decision, nil
	case len(m.errs) > 0:
		slices.Sort(m.errs)
		return admission.Decision{}, errors.New(strings.Join(m.errs, "; "))
	}
	if err := m.Validate(); err != nil {
		return admission.Decision{}, fmt.Errorf("the changes of all rules together: %w", err)
	}
	return admission.AdmitWith(m.Changes), nil
}

// parts are the fields of changes that have keys.
var parts = [...]struct {
	name string
	of   func(*admission.Changes) *map[string]string
}{
	{"nodeSelector", func(c *admission.Changes) *map[string]string { return &c.NodeSelector }},
	{"labels", func(c *admission.Changes) *map[string]string { return &c.Labels }},
	{"annotations", func(c *admission.Changes) *map[string]string { return &c.Annotations }},
}

// names are the fields that hold one name.
var names = [...]struct {
	name string
	of   func(*admission.Changes) *string
}{
	{"priorityClassName", func(c *admission.Changes) *string { return &c.PriorityClassName }},
	{"serviceAccount", func(c *admission.Changes) *string { return &c.ServiceAccount }},
}

// add merges the changes of a rule.
func (m *merged) add(rule int) {
	c := m.rules[rule].changes
	for _, part := range parts {
		m.addKeys(rule, part.name, part.of)
	}
	for _, name := range names {
		switch have, want := name.of(&m.Changes), *name.of(c); {
		case *have == "":
			*have = want
		case want != "" && want != *have:
			m.conflict(rule, name.name, *have, want, func(c *admission.Changes) bool { return *name.of(c) != "" })
		}
	}
	for _, t := range c.Tolerations {
		if !slices.ContainsFunc(m.Tolerations, func(o admission.Toleration) bool { return sameToleration(t, o) }) {
			m.Tolerations = append(m.Tolerations, t)
		}
	}
}

func (m *merged) addKeys(rule int, name string, of func(*admission.Changes) *map[string]string) {
	into := of(&m.Changes)
	for key, value := range *of(m.rules[rule].changes) {
		have, taken := (*into)[key]
		switch {
		case !taken && *into == nil:
			*into = map[string]string{key: value}
		case !taken:
			(*into)[key] = value
		case have != value:
			m.conflict(rule, fmt.Sprintf("%s[%q]", name, key), have, value, func(c *admission.Changes) bool {
				_, has := (*of(c))[key]
				return has
			})
		}
	}
}

// conflict records that a rule contradicts the first one that sets the field.
func (m *merged) conflict(rule int, field, have, want string, sets func(*admission.Changes) bool) {
	first := slices.IndexFunc(m.rules, func(r RuleResult) bool {
		return r.decides() && r.changes != nil && sets(r.changes)
	})
	m.errs = append(m.errs, fmt.Sprintf("rules %q and %q contradict each other: %s is %q by the one and %q by the other",
		m.rules[first].Name, m.rules[rule].Name, field, have, want))
}

func sameToleration(a, b admission.Toleration) bool {
	x, y := a.TolerationSeconds, b.TolerationSeconds
	a.TolerationSeconds, b.TolerationSeconds = nil, nil
	return a == b && (x == y || x != nil && y != nil && *x == *y)
}
