package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hooks"
)

// policies turns AdmissionGates into what decisions need of them, and has their
// hooks asked accordingly. A gate is looked at once per version.
type policies struct {
	cached client.Reader
	hooks  *hooks.Hooks
	// wait is called when a gate wants pods to be waited for.
	wait func()

	mu    sync.Mutex
	known map[string]known
}

// known is what came of one version of a gate.
type known struct {
	policy *gate.Policy
	names  v1alpha1.AttemptNames
	// unfit says why the gate cannot be used; empty if it can.
	unfit string
}

func newPolicies(cached client.Reader, h *hooks.Hooks, wait func()) *policies {
	return &policies{cached: cached, hooks: h, wait: wait, known: map[string]known{}}
}

// ofCheck returns what the gate of a check says. broken says why the check cannot
// be served; empty if it can. Without parameters both are empty: that is the plain
// readmission gate.
func (p *policies) ofCheck(ctx context.Context, check *kueue.AdmissionCheck) (policy *gate.Policy, broken string, err error) {
	ref := check.Spec.Parameters
	if ref == nil {
		return nil, "", nil
	}
	if ref.APIGroup != v1alpha1.GroupName || ref.Kind != v1alpha1.AdmissionGateKind {
		return nil, fmt.Sprintf("spec.parameters names the %s %q of %s; it must name an %s of %s, or be removed for the plain readmission gate.",
			ref.Kind, ref.Name, ref.APIGroup, v1alpha1.AdmissionGateKind, v1alpha1.GroupName), nil
	}
	var g v1alpha1.AdmissionGate
	switch err := p.cached.Get(ctx, types.NamespacedName{Name: ref.Name}, &g); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("spec.parameters names the AdmissionGate %q, which does not exist; create it, or name another one.", ref.Name), nil
	case err != nil:
		return nil, "", fmt.Errorf("reading the gate %q: %w", ref.Name, err)
	}
	k := p.of(&g)
	if k.unfit != "" {
		return nil, fmt.Sprintf("spec.parameters names the AdmissionGate %q, which cannot be used: %s.", ref.Name, k.unfit), nil
	}
	return k.policy, "", nil
}

// of looks at a gate, once per version, and has its hook asked as it says.
func (p *policies) of(g *v1alpha1.AdmissionGate) known {
	version := versionOf(g)
	p.mu.Lock()
	defer p.mu.Unlock()
	if k, ok := p.known[g.Name]; ok && k.policy.Version == version {
		return k
	}
	k := known{policy: newPolicy(g, version)}
	if err := p.hooks.Configure(g); err != nil {
		k.unfit = err.Error()
	}
	if g.Spec.Hook != nil {
		k.names = g.Spec.Hook.Attempt
	}
	p.known[g.Name] = k
	if k.policy.WaitForPods {
		p.wait()
	}
	return k
}

// names are where the names of an attempt come from, as a gate says.
func (p *policies) names(gateName string) v1alpha1.AttemptNames {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[gateName].names
}

// remove forgets a gate that is gone.
func (p *policies) remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, name)
	p.hooks.Remove(name)
}

// versionOf changes whenever the spec of a gate does, also when the gate is made
// anew under the same name.
func versionOf(g *v1alpha1.AdmissionGate) string {
	return fmt.Sprintf("%s.%d", g.UID, g.Generation)
}

func newPolicy(g *v1alpha1.AdmissionGate, version string) *gate.Policy {
	r := g.Spec.Readmission
	policy := &gate.Policy{
		Name: g.Name, Version: version,
		WaitForPods:  r.WaitForPods == nil || *r.WaitForPods,
		PodTimeout:   or(r.PodTimeout, 10*time.Minute),
		EvictUngated: r.OnUngated == v1alpha1.OnUngatedEvict,
	}
	h := g.Spec.Hook
	if h == nil {
		return policy
	}
	policy.Hook = &gate.HookPolicy{
		FailOpen: h.FailurePolicy == v1alpha1.FailurePolicyAdmit,
		Audit:    h.Mode == v1alpha1.ModeAudit,
		Terms: hold.Terms{
			Reoffer:   or(h.Hold.ReofferInterval, 30*time.Second),
			KeepQuota: or(h.Hold.KeepQuotaFor, time.Minute),
			Window:    or(h.Hold.Window, 24*time.Hour),
		},
	}
	return policy
}

// or is d, or what the schema has as its default, for an object that was stored
// before the schema had one.
func or(d *metav1.Duration, missing time.Duration) time.Duration {
	if d == nil {
		return missing
	}
	return d.Duration
}
