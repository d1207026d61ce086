package policy

import (
	"fmt"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Result is a decision, and how it came about.
type Result struct {
	Decision admission.Decision

	// Rules has the part of every rule, in the order of the policy.
	Rules []RuleResult
}

// RuleResult is the part of one rule in a decision.
type RuleResult struct {
	Name string

	// Audit rules have no part in the decision, whatever they say.
	Audit bool

	Outcome Outcome

	// Decision is what the rule says, for Applied.
	Decision admission.Decision

	// Err is a [*RuleError], for Failed.
	Err error

	// changes are those of the Decision, without the copy that it makes.
	changes *admission.Changes
}

// Outcome says what became of a rule.
type Outcome uint8

// The outcomes.
const (
	Applied       Outcome = iota + 1 // it says something about this request
	OutsideWindow                    // its window is not open
	WhenFalse                        // its condition does not hold
	UnlessTrue                       // its exception holds
	Failed                           // it could not be evaluated
)

var outcomes = [...]string{
	Applied: "applied", OutsideWindow: "outside its window", WhenFalse: "when is false",
	UnlessTrue: "unless is true", Failed: "failed",
}

// String describes o in a few words.
func (o Outcome) String() string {
	if int(o) >= len(outcomes) || o == 0 {
		return fmt.Sprintf("Outcome(%d)", uint8(o))
	}
	return outcomes[o]
}

// RuleError says that a rule could not be evaluated about a request.
type RuleError struct {
	Rule  string
	Field string // of the rule, such as when or admit.labels["team"]
	Err   error
}

// Error names the rule and the field.
func (e *RuleError) Error() string { return fmt.Sprintf("rule %q: %s: %v", e.Rule, e.Field, e.Err) }

// Unwrap returns the cause.
func (e *RuleError) Unwrap() error { return e.Err }

// Problem is something wrong with a policy or with a file of tests.
type Problem struct { //nolint:errname // it is what a reader of policies is shown
	File  string
	Line  int    // 0 if it is about the whole file
	Rule  string // or the test, "" if it is about none
	Field string
	Text  string
}

// Error has all of it on one line, the way compilers do.
func (p *Problem) Error() string {
	s := p.File + ": "
	if p.Line > 0 {
		s = fmt.Sprintf("%s:%d: ", p.File, p.Line)
	}
	if p.Rule != "" {
		s += p.Rule + ": "
	}
	if p.Field != "" {
		s += p.Field + ": "
	}
	return s + p.Text
}
