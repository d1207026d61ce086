package explain

import (
	"fmt"
	"slices"
	"strings"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// reserved explains a job that has quota and waits for its checks.
func (f Facts) reserved(e *Explanation) {
	var names []string
	held := true
	for i := range f.Workload.Status.AdmissionChecks {
		s := &f.Workload.Status.AdmissionChecks[i]
		if s.State == kueue.CheckStateReady {
			continue
		}
		names = append(names, string(s.Name))
		held = held && f.heldText(s.Message) != ""
		f.waitsFor(s, e)
	}
	slices.Sort(names)
	since, all := f.since(kueue.WorkloadQuotaReserved), "check "+strings.Join(names, ", ")
	if len(names) > 1 {
		all = "checks " + strings.Join(names, ", ")
	}
	switch {
	case len(names) == 0:
		e.is(WaitsForChecks, "It has quota and all checks are Ready; Kueue is about to start it.")
	case held:
		e.is(Held, "A hook holds it (%s). It has quota since %s.", all, since)
	default:
		e.is(WaitsForChecks, "It waits for the %s. It has quota since %s.", all, since)
	}
}

// waitsFor explains an entry that is not Ready.
func (f Facts) waitsFor(s *kueue.AdmissionCheckState, e *Explanation) {
	about := fmt.Sprintf("check %q", s.Name)
	check := f.Checks[string(s.Name)]
	switch {
	case check == nil:
		e.because(about, "the AdmissionCheck does not exist any more", "make it, or take it out of the ClusterQueue")
	case check.Spec.ControllerName != v1alpha1.ControllerName:
		e.because(about, said(s)+" It is served by "+check.Spec.ControllerName+".", "ask who runs that controller")
	case s.State == kueue.CheckStateRejected:
		e.because(about, said(s), "Kueue is about to deactivate the job")
	case s.State == kueue.CheckStateRetry:
		e.because(about, said(s), "Kueue is about to evict the job and to queue it again")
	case wiring.WhyInactive(check) != "":
		text := wiring.WhyInactive(check)
		if s.Message != "" && s.Message != text {
			text += " It said: " + s.Message
		}
		e.because(about, text, "kubectl describe admissioncheck "+check.Name)
	case s.Message == "":
		f.unanswered(about, e)
	default:
		f.pending(about, check, s.Message, e)
	}
}

func said(s *kueue.AdmissionCheckState) string {
	if s.Message == "" {
		return fmt.Sprintf("It is %s and says nothing.", s.State)
	}
	return s.Message
}

// unanswered explains a check of ours that no gate has looked at.
func (f Facts) unanswered(about string, e *Explanation) {
	if why, fix := f.Leads(); why != "" {
		e.because(about, "no gate has looked at it, because none leads: "+why, fix)
		return
	}
	e.because(about, "the gate has not looked at it yet", "try again in a moment; if it stays, the log of the gate says why")
}

// pending explains a check of ours that says why it waits.
func (f Facts) pending(about string, check *kueue.AdmissionCheck, message string, e *Explanation) {
	if text := f.heldText(message); text != "" {
		e.because(about, text, askHook)
		return
	}
	g := f.gateOf(check)
	if g == nil || !strings.HasPrefix(message, "Waiting: the hook of AdmissionGate") {
		e.because(about, message, f.remedy(message))
		return
	}
	if g.Status.LastError != "" {
		message += " The last error is: " + g.Status.LastError
	}
	e.because(about, message, "see that the hook at "+g.Status.Endpoint+" answers; kubectl describe admissiongate "+g.Name)
}

// askHook is what can be done about a hold.
const askHook = "nothing: the hook decides; if it should not hold the job, ask who runs the hook"

// heldText is all that is known of a hold; empty if the hook does not hold the job.
// The condition has since when and until when, which the check has not.
func (f Facts) heldText(message string) string {
	if !strings.HasPrefix(message, "Held by the hook") {
		return ""
	}
	if f.is(v1alpha1.WorkloadHeld) {
		return f.said(v1alpha1.WorkloadHeld)
	}
	return message
}

// remedy is what can be done about what the gate waits for.
func (f Facts) remedy(message string) string {
	switch message {
	case gate.MessageOldPods, gate.MessageNotStopped:
		return "wait a moment; if it stays, see what keeps the Jobs of the TrainJob from being suspended"
	case gate.MessageRunning:
		return f.suspend()
	case gate.MessageFault:
		return "see the log of the gate; Trainer or Kueue may be down"
	case gate.MessageTakenBack, gate.MessageUsed:
		return "nothing: it is answered anew"
	}
	switch {
	case strings.HasPrefix(message, "Waiting for the answer of the hook"):
		return "nothing: the hook is being asked"
	case strings.HasPrefix(message, "Waiting: what the hook of AdmissionGate"):
		return "ask who runs the hook; its answer does not fit this job"
	case strings.HasPrefix(message, "Waiting for the pods of an earlier start") && f.TrainJob != nil:
		return fmt.Sprintf("wait until they have ended: kubectl -n %s get pods -l jobset.sigs.k8s.io/jobset-name=%s", f.TrainJob.Namespace, f.TrainJob.Name)
	}
	return "docs/gate.md says what this means"
}

func (f Facts) suspend() string {
	if f.TrainJob == nil {
		return "set spec.suspend of the TrainJob to true"
	}
	return fmt.Sprintf(`kubectl -n %s patch trainjob %s --type=merge -p '{"spec":{"suspend":true}}'`, f.TrainJob.Namespace, f.TrainJob.Name)
}

// gateOf is the gate of a check; nil without one.
func (f Facts) gateOf(check *kueue.AdmissionCheck) *v1alpha1.AdmissionGate {
	if p := check.Spec.Parameters; p != nil && p.APIGroup == v1alpha1.GroupName && p.Kind == v1alpha1.AdmissionGateKind {
		return f.Gates[p.Name]
	}
	return nil
}
