package policy

import (
	"errors"
	"strings"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// rule is one rule of a policy, compiled.
type rule struct {
	name         string
	audit        bool
	window       *window // nil for always
	when, unless *expression
	say          saying
}

// saying is what a rule says when it applies.
type saying struct {
	kind admission.Kind

	// reason and until are for Hold and Refuse. The reason is text unless it
	// is worked out.
	text   string
	reason *expression
	until  *expression

	changes *changes // for AdmitWith
}

// eval asks the rule. Nothing behind the first thing that keeps it from
// applying is evaluated.
func (r *rule) eval(s *scope, now time.Time) RuleResult {
	result := RuleResult{Name: r.name, Audit: r.audit, Outcome: Applied}
	var closes time.Time
	if r.window != nil {
		var open bool
		if closes, open = r.window.until(now); !open {
			result.Outcome = OutsideWindow
			return result
		}
	}
	field := "when"
	outcome, err := s.holds(r.when, true, WhenFalse)
	if err == nil && outcome == Applied {
		field = "unless"
		outcome, err = s.holds(r.unless, false, UnlessTrue)
	}
	if result.Outcome = outcome; err == nil && outcome == Applied {
		field, err = r.say.decide(s, closes, &result)
	}
	if err != nil {
		result.Outcome, result.Err = Failed, &RuleError{Rule: r.name, Field: field, Err: err}
	}
	return result
}

// holds asks a condition, which may be nil: it must be want, and otherwise is
// what becomes of the rule.
func (s *scope) holds(condition *expression, want bool, otherwise Outcome) (Outcome, error) {
	if condition == nil {
		return Applied, nil
	}
	got, err := s.bool(condition)
	if err != nil || got == want {
		return Applied, err
	}
	return otherwise, nil
}

// decide fills in what the rule says, or returns an error and the field that it
// is about. closes is when the window of the rule does, zero if there is none.
func (a *saying) decide(s *scope, closes time.Time, result *RuleResult) (field string, err error) {
	if a.changes != nil {
		if result.changes, field, err = a.changes.decide(s); err == nil {
			result.Decision = admission.AdmitWith(*result.changes)
		}
		return field, err
	}
	name, reason := "refuse", a.text
	if a.kind == admission.KindHold {
		name = "hold"
	}
	if a.reason != nil {
		if reason, err = s.string(a.reason); err == nil && strings.TrimSpace(reason) == "" {
			err = errors.New("the reason is empty")
		}
	}
	if err != nil {
		return name + ".reasonExpression", err
	}
	if a.kind == admission.KindRefuse {
		result.Decision = admission.Refuse(reason)
		return "", nil
	}
	if a.until != nil {
		if closes, err = s.time(a.until); err != nil {
			return name + ".until", err
		}
	}
	result.Decision = admission.HoldUntil(closes, reason)
	return "", nil
}
