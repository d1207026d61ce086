package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// Named is what is to be in order. Each thing is read by its name alone, so that it
// takes few rights; only a selector lists.
type Named struct {
	Checks, Gates, Queues []string
	// Selector picks queues; nil for none.
	Selector labels.Selector
	// OnFlavors are what the checks are limited to in the queues.
	OnFlavors []string
}

// Verify looks at what is named, and no further.
func (c *Checker) Verify(ctx context.Context, n Named) []Line {
	var lines []Line
	for _, name := range n.Checks {
		var check kueue.AdmissionCheck
		lines = append(lines, c.one(ctx, "AdmissionCheck", name, &check, func() Line {
			if check.Spec.ControllerName != v1alpha1.ControllerName {
				return wrong("AdmissionCheck "+name, "name another check", "it is served by %s, not by the gate", check.Spec.ControllerName)
			}
			return checkLine(&check)
		}))
	}
	for _, name := range n.Gates {
		var g v1alpha1.AdmissionGate
		lines = append(lines, c.one(ctx, "AdmissionGate", name, &g, func() Line { return gateLine(&g, true) }))
	}
	for _, name := range n.Queues {
		var cq kueue.ClusterQueue
		lines = append(lines, c.one(ctx, "ClusterQueue", name, &cq, func() Line { return n.queueLine(&cq) }))
	}
	if n.Selector == nil {
		return lines
	}
	queues, err := c.wirer().Queues(ctx, n.Selector)
	switch {
	case err != nil:
		lines = append(lines, unknown("ClusterQueues", err))
	case len(queues) == 0:
		lines = append(lines, warn("ClusterQueues", "give a queue these labels", "none has the labels %s, so nothing is gated", n.Selector))
	}
	for i := range queues {
		lines = append(lines, n.queueLine(&queues[i]))
	}
	return lines
}

// one reads an object and judges it.
func (c *Checker) one(ctx context.Context, kind, name string, o client.Object, judge func() Line) Line {
	what := kind + " " + name
	err := c.Client.Get(ctx, client.ObjectKey{Name: name}, o)
	switch {
	case apierrors.IsNotFound(err):
		return wrong(what, "see that the name is right, or make it", "does not exist")
	case meta.IsNoMatchError(err):
		return wrong(what, "install its CustomResourceDefinition, with Kueue or with the chart", "the cluster does not know the kind")
	case err != nil:
		return unknown(what, err)
	}
	return judge()
}

// queueLine says whether a queue is active with all of the checks.
func (n *Named) queueLine(cq *kueue.ClusterQueue) Line {
	what := "ClusterQueue " + cq.Name
	for _, check := range n.Checks {
		attach := fmt.Sprintf("dispatchctl queues attach %s --check %s", cq.Name, check)
		want := &wiring.Entry{Check: check, OnFlavors: n.OnFlavors}
		switch wiring.Stands(cq, check, want, false) {
		case wiring.Missing, wiring.Lost, wiring.Unconcerned:
			return wrong(what, attach, "does not name check %s: its jobs start ungated", check)
		case wiring.Differs:
			return wrong(what, "take the other flavors out there, then attach it again", "names check %s on the flavors %q, and is to on %q, managed by %s",
				check, wiring.Flavors(cq, check), n.OnFlavors, strings.Join(wiring.Managers(cq, check), ", "))
		case wiring.Wired:
		}
	}
	status := wiring.LookAt(cq)
	stopped := cq.Spec.StopPolicy != nil && slices.Contains([]kueue.StopPolicy{kueue.Hold, kueue.HoldAndDrain}, *cq.Spec.StopPolicy)
	switch {
	case stopped:
		return wrong(what, wiring.OpenCommand(cq.Name), "it has stopPolicy %s, so no job starts", *cq.Spec.StopPolicy)
	case !status.Active:
		return wrong(what, "mend what it says", "is not active: %s", status.WhyNot)
	case len(n.Checks) == 0:
		return ok(what, "active")
	}
	return ok(what, "active with %s", strings.Join(n.Checks, ", "))
}
