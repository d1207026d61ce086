package policy

import (
	"context"
	"errors"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Policy is a set of rules. It never changes and may be used by many at once.
type Policy struct {
	rules []*rule
}

// Decide asks every rule about req at the time now. Any refusal refuses, with
// the reasons of all; else any hold holds, until the latest time that one gave;
// else the changes of all are merged in the order of the policy.
//
// An error is no verdict: a rule that decides could not be evaluated, or the
// changes of two contradict each other. The Result beside it has the rules, and
// no decision.
func (p *Policy) Decide(req *admission.Request, now time.Time) (Result, error) {
	if req == nil {
		return Result{}, errors.New("there is no request to decide about")
	}
	s := newScope(req, now)
	result := Result{Rules: make([]RuleResult, len(p.rules))}
	// Audit rules come last: what they spend must be missing nowhere else.
	for _, audit := range [...]bool{false, true} {
		for i, r := range p.rules {
			if r.audit == audit {
				result.Rules[i] = r.eval(s, now)
			}
		}
	}
	var err error
	result.Decision, err = combine(result.Rules)
	return result, err
}

// Hook returns the policy as a hook by the clock now. It says nothing about
// audit rules: who wants to know calls [Policy.Decide].
func (p *Policy) Hook(now func() time.Time) admission.Hook {
	return admission.HookFunc(func(_ context.Context, req *admission.Request) (admission.Decision, error) {
		result, err := p.Decide(req, now())
		return result.Decision, err
	})
}
