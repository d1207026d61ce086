package ctl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/policy"
)

// verdict is what was decided about a request, or was to be, as data. Its names
// are those of the want of a test.
type verdict struct {
	Decision string             `json:"decision,omitempty"`
	Error    string             `json:"error,omitempty"`
	Reason   string             `json:"reason,omitempty"`
	Until    *time.Time         `json:"until,omitempty"`
	Changes  *admission.Changes `json:"changes,omitempty"`
	Rules    []string           `json:"rules,omitempty"`
}

// wanted is what a test wants.
func wanted(w *policy.Want) *verdict {
	v := &verdict{Error: w.Error, Until: w.Until, Changes: w.Changes, Rules: w.Rules}
	if w.Error == "" {
		v.Decision = w.Kind.String()
	}
	if w.Reason != nil {
		v.Reason = *w.Reason
	}
	return v
}

// got is what came.
func got(result policy.Result, err error) *verdict {
	if err != nil {
		return &verdict{Error: err.Error(), Rules: result.Applied()}
	}
	v := decided(result.Decision)
	v.Rules = result.Applied()
	return v
}

// decided is a decision as data.
func decided(d admission.Decision) *verdict {
	v := &verdict{Decision: d.Kind().String()}
	if reason, ok := d.Held(); ok {
		v.Reason = reason
	}
	if reason, ok := d.Refused(); ok {
		v.Reason = reason
	}
	if until, ok := d.Until(); ok {
		v.Until = &until
	}
	if changes, ok := d.Changes(); ok {
		v.Changes = &changes
	}
	return v
}

// only is v without what want does not compare. Of another decision than the
// wanted one all is shown: it says how that came.
func (v *verdict) only(want *verdict) *verdict {
	if v.Decision != want.Decision || v.Error != "" {
		return v
	}
	w := *v
	if want.Reason == "" {
		w.Reason = ""
	}
	if want.Until == nil {
		w.Until = nil
	}
	if want.Changes == nil {
		w.Changes = nil
	}
	return &w
}

// lines is v as a test would have it, a fact a line.
func (v *verdict) lines() []string {
	var lines []string
	add := func(name, value string) {
		if value != "" {
			lines = append(lines, name+": "+oneLine(value))
		}
	}
	add("decision", v.Decision)
	add("error", v.Error)
	add("reason", v.Reason)
	if v.Until != nil {
		add("until", v.Until.Format(time.RFC3339Nano))
	}
	if v.Changes != nil {
		changes, err := encode(formatYAML, v.Changes)
		if err != nil {
			changes = []byte(err.Error())
		}
		lines = append(lines, "changes:")
		lines = append(lines, strings.Split(strings.TrimSuffix(indent("  ", string(changes)), "\n"), "\n")...)
	}
	add("rules", strings.Join(v.Rules, ", "))
	return lines
}

// rulePart is the part of a rule in a decision, as data.
type rulePart struct {
	Name    string   `json:"name"`
	Audit   bool     `json:"audit,omitempty"`
	Outcome string   `json:"outcome"`
	Says    *verdict `json:"says,omitempty"`
	Error   string   `json:"error,omitempty"`
}

func partsOf(result policy.Result) []rulePart {
	parts := make([]rulePart, len(result.Rules))
	for i, r := range result.Rules {
		parts[i] = rulePart{Name: r.Name, Audit: r.Audit, Outcome: r.Outcome.String()}
		switch r.Outcome {
		case policy.Applied:
			parts[i].Says = decided(r.Decision)
		case policy.Failed:
			parts[i].Error = failure(r.Err)
		case policy.OutsideWindow, policy.WhenFalse, policy.UnlessTrue:
		}
	}
	return parts
}

// failure is why a rule failed, without the name of the rule.
func failure(err error) string {
	if e, ok := errors.AsType[*policy.RuleError](err); ok {
		return e.Field + ": " + e.Err.Error()
	}
	return err.Error()
}

// partRows are the rows of a table of parts.
func partRows(parts []rulePart) [][]string {
	rows := make([][]string, 0, len(parts)+1)
	rows = append(rows, []string{"RULE", "PART", "SAYS"})
	for _, p := range parts {
		outcome := p.Outcome
		if p.Audit {
			outcome += " (audit)"
		}
		says := p.Error
		if p.Says != nil {
			says = p.Says.sentence()
		}
		rows = append(rows, []string{p.Name, outcome, says})
	}
	return rows
}

// sentence is a decision on one line.
func (v *verdict) sentence() string {
	text := v.Decision
	if v.Until != nil {
		text += " until " + v.Until.Format(time.RFC3339)
	}
	if v.Reason != "" {
		text += ": " + v.Reason
	}
	if v.Changes != nil {
		text += " " + compact(v.Changes)
	}
	return text
}

// lineDiff compares two texts by lines: "-" stands before a line of a only, "+"
// before one of b only.
func lineDiff(a, b []string) string {
	common := commonLines(a, b)
	var out strings.Builder
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			fmt.Fprintln(&out, " ", a[i])
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			fmt.Fprintln(&out, "-", a[i])
			i++
		default:
			fmt.Fprintln(&out, "+", b[j])
			j++
		}
	}
	for _, line := range a[i:] {
		fmt.Fprintln(&out, "-", line)
	}
	for _, line := range b[j:] {
		fmt.Fprintln(&out, "+", line)
	}
	return out.String()
}

// commonLines has at [i][j] how many lines a[i:] and b[j:] have in common, in
// order.
func commonLines(a, b []string) [][]int {
	common := make([][]int, len(a)+1)
	common[len(a)] = make([]int, len(b)+1)
	for i, line := range slices.Backward(a) {
		common[i] = make([]int, len(b)+1)
		for j := range slices.Backward(b) {
			if line == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}
