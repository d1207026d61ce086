package adapter

import (
	"context"
	"log/slog"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/policy"
)

// ruleHook asks a policy and tells what each rule had to say. For rules that
// only audit, that is all they are for.
type ruleHook struct {
	policy  *policy.Policy
	now     func() time.Time
	metrics *metrics
	log     *slog.Logger
}

// Admit decides by the policy.
func (h *ruleHook) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	result, err := h.policy.Decide(req, h.now())
	for i := range result.Rules {
		if r := &result.Rules[i]; r.Outcome == policy.Applied || r.Outcome == policy.Failed {
			h.tell(ctx, r, req)
		}
	}
	return result.Decision, err
}

func (h *ruleHook) tell(ctx context.Context, r *policy.RuleResult, req *admission.Request) {
	mode, said := "enforce", "Failed"
	if r.Audit {
		mode = "audit"
	}
	if r.Outcome == policy.Applied {
		said = r.Decision.Kind().String()
	}
	h.metrics.rules.WithLabelValues(r.Name, mode, said).Inc()
	switch {
	case !r.Audit:
		// The decision, or the error, has it.
	case r.Outcome == policy.Failed:
		h.log.WarnContext(ctx, "an audit rule failed", "rule", r.Name, "error", r.Err, "attempt", attemptOf(req))
	default:
		h.log.InfoContext(ctx, "audit", "rule", r.Name, "decision", r.Decision, "attempt", attemptOf(req))
	}
}

// attempt names what a request is about.
type attempt struct {
	tenant, dag, run, task string
	try                    int
}

func attemptOf(req *admission.Request) attempt {
	return attempt{req.TenantID, req.DagID, req.RunID, req.TaskID, req.TryNumber}
}

// LogValue is a group, empty and so left out if no request could be read.
func (a attempt) LogValue() slog.Value {
	if a == (attempt{}) {
		return slog.GroupValue()
	}
	return slog.GroupValue(slog.String("tenant", a.tenant), slog.String("dag", a.dag), slog.String("run", a.run),
		slog.String("task", a.task), slog.Int("try", a.try))
}
