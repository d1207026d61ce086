package controller

import (
	"fmt"
	"strings"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// finding is what to say about a check in a queue that was not as it should be.
func finding(cq *kueue.ClusterQueue, x wire, r remedy) (reason, text string) {
	check := fmt.Sprintf("AdmissionCheck %q", x.check)
	switch {
	case r.withdrawn:
		return reasonWithdrawn, gate.Message(fmt.Sprintf("%s was put into the queue and taken out again, because the queue was inactive with it: %s", check, r.why))
	case r.done && x.stands != wiring.Lost:
		return reasonAttached, check + " was put into the queue, which is to have it."
	case x.stands == wiring.Lost:
		reason, text = reasonLost, fmt.Sprintf("%s was taken out of the queue by %s", check, x.by)
	case x.stands == wiring.Differs:
		reason, text = reasonDiffers, fmt.Sprintf("%s is in the queue %s, and is to be %s", check, on(wiring.Flavors(cq, x.check)), on(x.want.OnFlavors))
	default:
		reason, text = reasonMissing, check+" is to be in the queue and is not"
	}
	if x.stands != wiring.Differs && !r.done {
		text += ", so its jobs start ungated"
	}
	return reason, gate.Message(text + "; " + wayOut(cq, x, r))
}

// wayOut is what becomes of it, or what to do.
func wayOut(cq *kueue.ClusterQueue, x wire, r remedy) string {
	command := fmt.Sprintf("dispatchctl queues attach %s --check %s", cq.Name, x.check)
	if x.want != nil && len(x.want.OnFlavors) > 0 {
		command += " --on-flavors " + strings.Join(x.want.OnFlavors, ",")
	}
	switch {
	case r.done:
		return "it was put back."
	case x.kept:
		return fmt.Sprintf("people keep it out by the annotation %s of the check, which %q takes back.", v1alpha1.KeepDetachedAnnotation, command)
	case r.why != "" && r.after > 0:
		return fmt.Sprintf("the next try is in %s: %s.", r.after, r.why)
	case r.why != "":
		return fmt.Sprintf("it is not put there: %s.", strings.TrimSuffix(r.why, "."))
	}
	return fmt.Sprintf("%q puts it there.", command)
}

// on says what an entry is limited to.
func on(flavors []string) string {
	if len(flavors) == 0 {
		return "for all jobs"
	}
	return "for jobs on " + strings.Join(flavors, ", ")
}
