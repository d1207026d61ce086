package preflight

import (
	"context"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// world is what there is of ours.
type world struct {
	checks []kueue.AdmissionCheck
	gates  []v1alpha1.AdmissionGate
	queues []wiring.Status
	// checksErr and its like are why something could not be read.
	checksErr, gatesErr, queuesErr error
}

func (c *Checker) world(ctx context.Context) world {
	var w world
	var checks kueue.AdmissionCheckList
	w.checksErr = c.Client.List(ctx, &checks)
	w.checks = slices.DeleteFunc(checks.Items, func(check kueue.AdmissionCheck) bool {
		return check.Spec.ControllerName != v1alpha1.ControllerName
	})
	var gates v1alpha1.AdmissionGateList
	w.gatesErr = c.Client.List(ctx, &gates)
	w.gates = gates.Items
	wirer := c.wirer()
	queues, err := wirer.Queues(ctx, labels.Everything())
	if err == nil {
		w.queues, err = wirer.Look(ctx, queues, w.checks)
	}
	w.queuesErr = err
	return w
}

// waitForPods tells whether a gate that a check names waits for pods. Which one
// cannot be known does.
func (w *world) waitForPods() bool {
	return w.gatesErr != nil || slices.ContainsFunc(w.gates, func(g v1alpha1.AdmissionGate) bool {
		wait := g.Spec.Readmission.WaitForPods
		return w.named(g.Name) && (wait == nil || *wait)
	})
}

// named tells whether a check names a gate.
func (w *world) named(gate string) bool {
	return slices.ContainsFunc(w.checks, func(check kueue.AdmissionCheck) bool {
		p := check.Spec.Parameters
		return p != nil && p.APIGroup == v1alpha1.GroupName && p.Kind == v1alpha1.AdmissionGateKind && p.Name == gate
	})
}

// lines says how all of it stands. That an API is not served has a line already.
func (w *world) lines() []Line {
	var lines []Line
	for what, err := range map[string]error{"AdmissionChecks": w.checksErr, "AdmissionGates": w.gatesErr, "ClusterQueues": w.queuesErr} {
		if err != nil && !meta.IsNoMatchError(err) {
			lines = append(lines, unknown(what, err))
		}
	}
	slices.SortFunc(lines, func(a, b Line) int { return strings.Compare(a.What, b.What) })
	if w.checksErr == nil {
		lines = append(lines, w.checkLines()...)
	}
	for i := range w.gates {
		lines = append(lines, gateLine(&w.gates[i], w.named(w.gates[i].Name)))
	}
	if w.queuesErr == nil && len(w.checks) > 0 {
		lines = append(lines, w.queueLines()...)
	}
	return lines
}

func (w *world) checkLines() []Line {
	if len(w.checks) == 0 {
		return []Line{wrong("AdmissionChecks", "make one; the chart does (admissionChecks)", "none has controllerName %s", v1alpha1.ControllerName)}
	}
	lines := make([]Line, len(w.checks))
	for i := range w.checks {
		lines[i] = checkLine(&w.checks[i])
	}
	return lines
}

func checkLine(check *kueue.AdmissionCheck) Line {
	what := "AdmissionCheck " + check.Name
	if why := wiring.WhyInactive(check); why != "" {
		return wrong(what, "do what it says; kubectl describe admissioncheck "+check.Name+" has more", "not Active: %s", why)
	}
	return ok(what, "Active")
}

// gateLine says how a gate stands. One that no check names harms nobody.
func gateLine(g *v1alpha1.AdmissionGate, named bool) Line {
	what := "AdmissionGate " + g.Name
	judge := warn
	if named {
		judge = wrong
	}
	ready := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GateReady)
	switch {
	case ready == nil || ready.ObservedGeneration < g.Generation:
		return judge(what, "see that dispatch-admission runs and leads", "no gate has looked at its present spec")
	case ready.Status != metav1.ConditionTrue:
		return judge(what, "mend the AdmissionGate", "not Ready: %s", ready.Message)
	case g.Status.Breaker == v1alpha1.BreakerOpen:
		return warn(what, "see what is wrong with the hook at "+g.Status.Endpoint, "Ready, but its hook is skipped for now: %s", g.Status.LastError)
	case g.Status.LastError != "":
		return warn(what, "see what is wrong with the hook at "+g.Status.Endpoint, "Ready, but its hook gave no verdict when it was last asked: %s", g.Status.LastError)
	case !named:
		return warn(what, "name it in spec.parameters of an AdmissionCheck, or remove it", "Ready, but no check names it")
	}
	return ok(what, "Ready")
}

// queueLines says how our checks stand in queues, and which queues have none.
func (w *world) queueLines() []Line {
	var lines []Line
	var ungated []string
	for _, s := range w.queues {
		what := "ClusterQueue " + s.Queue
		switch {
		case !s.Wired:
			ungated = append(ungated, s.Queue)
		case !s.Active:
			lines = append(lines, wrong(what, "mend what it says; dispatchctl queues status "+s.Queue+" shows it again", "has check %s and is not active: %s", s.Check, s.WhyNot))
		case s.WhyNot != "":
			lines = append(lines, wrong(what, "mend the check, or take it out: dispatchctl queues detach "+s.Queue+" --check "+s.Check, "active, but jobs that come will wait: %s", s.WhyNot))
		default:
			lines = append(lines, ok(what, "active with check %s", s.Check))
		}
	}
	const attach = "dispatchctl queues attach QUEUE"
	switch {
	case len(lines) == 0:
		lines = append(lines, warn("wiring", attach, "no ClusterQueue has a check of ours, so nothing is gated"))
	case len(ungated) > 0:
		lines = append(lines, ok("wiring", "without a check of ours, so that their jobs start ungated: %s", strings.Join(ungated, ", ")))
	}
	return lines
}

// podPolicy looks for the policy by which pods get what a hook chose.
func (c *Checker) podPolicy(ctx context.Context) Line {
	for _, o := range []client.Object{&admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyBinding{}} {
		if err := c.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.PodPolicyName}, o); err != nil {
			return judgePodPolicy(err)
		}
	}
	return judgePodPolicy(nil)
}

func judgePodPolicy(err error) Line {
	const what = "pod policy"
	const without = "hooks can choose neither service accounts nor priority classes"
	switch {
	case err == nil:
		return ok(what, "MutatingAdmissionPolicy %s and its binding are there", v1alpha1.PodPolicyName)
	case meta.IsNoMatchError(err):
		return warn(what, "upgrade to Kubernetes 1.36 or newer if hooks are to choose them", "this Kubernetes has no MutatingAdmissionPolicy v1; %s", without)
	case apierrors.IsNotFound(err):
		return warn(what, "install it with the chart (podPolicy.enabled)", "MutatingAdmissionPolicy %s or its binding is missing; %s", v1alpha1.PodPolicyName, without)
	}
	line := unknown(what, err)
	line.State = Warning // it is needed for a choice alone
	return line
}
