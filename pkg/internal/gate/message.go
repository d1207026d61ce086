package gate

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// Messages of our checks. People whose jobs wait read them in the Workload and,
// because Kueue copies the messages of pending checks into events, on the job.
// They carry no counters and no times, so that an unchanged world gives the
// same status.
const (
	MessageRaised    = "The admission count was raised for this start."
	MessageNotGated  = "Not gated: the owner is not a TrainJob of dispatch."
	MessageLate      = "The Workload was already admitted when this check appeared; it is gated from its next start on."
	MessageTakenBack = "The quota was lost after this check had been answered; the check is answered anew at the next reservation."
	MessageOldPods   = "Waiting until Trainer and JobSet report that the earlier start has stopped; only then the admission count can be raised."
	MessageUsed      = "The TrainJob ran before Kueue started it; the admission count is raised again before its next start."
	MessageFault     = "The admission count cannot be written for now because of a fault in the cluster; the log of the gate has the details. It is tried again."
	MessageUngated   = "Kueue started this job although its admission count was not raised for this start; it is evicted, to start again gated."
	MessageReleased  = "The job is not held any more."
	MessageQuota     = "The quota was given back, because others wait for it; Kueue offers the job again when the hook is to be asked next."

	MessageRequeue = "The check that kept the Workload out of the queue was set back."

	MessagePodsUnknown = "Waiting until the pods of earlier starts are known; this takes a moment after the gate has started. If it stays, the log of the gate says what it may not watch."
	MessageNotStopped  = "Waiting until JobSet and its Jobs report that the earlier start has stopped; until then more of its pods can appear."

	MessageRunning = "The TrainJob is not suspended although its Workload waits, so the admission count cannot be raised; set spec.suspend of the TrainJob to true."
)

// MessageLimit is the most bytes of a message. Kueue puts messages into events,
// which the API server cuts at 1024.
const MessageLimit = 900

// Message makes any text fit for a check: valid UTF-8, one line, within the
// limit, and without the percent sign, because Kueue up to v0.17 uses the text
// as a format.
func Message(text string) string {
	text = strings.ToValidUTF8(text, "?")
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "%", " percent ")), " ")
	if len(text) <= MessageLimit {
		return text
	}
	const ellipsis = "..."
	cut := MessageLimit - len(ellipsis)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}

// Reasons of our conditions.
const (
	reasonHeld     = "HookHold"
	reasonReleased = "Released"
	reasonRefused  = "HookRefused"
)

func messageHeld(p *Policy, reason string) string {
	return Message(fmt.Sprintf("Held by the hook of AdmissionGate %q: %s", p.Name, reason))
}

func messageAsking(p *Policy) string {
	return fmt.Sprintf("Waiting for the answer of the hook of AdmissionGate %q.", p.Name)
}

func messageNoVerdict(p *Policy, problem string) string {
	if problem != "" {
		return Message(fmt.Sprintf("Waiting: what the hook of AdmissionGate %q answered cannot be done: %s; it is asked again.", p.Name, problem))
	}
	return Message(fmt.Sprintf("Waiting: the hook of AdmissionGate %q gave no verdict; it is asked again. The log of the gate has the details.", p.Name))
}

func messageFailedOpen(p *Policy, problem string) string {
	if problem != "" {
		return Message(fmt.Sprintf("Admitted without a verdict (failurePolicy Admit): what the hook of AdmissionGate %q answered cannot be done: %s", p.Name, problem))
	}
	return Message(fmt.Sprintf("Admitted without a verdict (failurePolicy Admit): the hook of AdmissionGate %q gave none.", p.Name))
}

func messageAdmitted(p *Policy) string {
	return fmt.Sprintf("Admitted by the hook of AdmissionGate %q.", p.Name)
}

func messageAdmittedWith(p *Policy) string {
	return fmt.Sprintf("Admitted with changes by the hook of AdmissionGate %q.", p.Name)
}

func messageReleased(p *Policy) string {
	return fmt.Sprintf("The hook of AdmissionGate %q holds the job no more.", p.Name)
}

func messageHookRefused(p *Policy, reason string) string {
	return Message(fmt.Sprintf("Refused by the hook of AdmissionGate %q: %s", p.Name, reason))
}

func messageSpent(p *Policy, reason string) string {
	return Message(fmt.Sprintf("Refused, because the hook of AdmissionGate %q has held the job for its whole window of %s: %s",
		p.Name, p.Hook.Terms.Window, reason))
}

// messageAudited says what an audited hook would have decided, and the name of
// that decision.
func messageAudited(p *Policy, a Answer) (message, decision string) {
	if !a.Verdict {
		return fmt.Sprintf("Admitted (mode Audit): the hook of AdmissionGate %q gave no verdict.", p.Name), "NoVerdict"
	}
	decision = a.Decision.Kind().String()
	reason, held := a.Decision.Held()
	if !held {
		reason, _ = a.Decision.Refused()
	}
	if reason != "" {
		reason = ": " + reason
	}
	return Message(fmt.Sprintf("Admitted (mode Audit): the hook of AdmissionGate %q answered %s%s", p.Name, decision, reason)), decision
}

// describe says all that people need to know of a hold. The times in it are fixed
// for as long as the hook answers the same.
func describe(e hold.Entry, p *Policy) string {
	text := strings.TrimSuffix(e.Message, ".") + ". Held since " + e.Since.Format(time.RFC3339) + "."
	if !e.Until.IsZero() {
		text += " The hook is asked again at " + e.Until.Format(time.RFC3339) + "."
	}
	if p == nil || p.Hook == nil {
		return text
	}
	if end, ok := e.End(p.Hook.Terms); ok {
		text += " The job is refused if it is still held at " + end.Format(time.RFC3339) + "."
	}
	return text
}

func messageBadRecord(err error) string {
	return Message("The admission count cannot be raised: " + err.Error() + ".")
}

func messageRefused(reason string) string {
	return Message("Waiting for the TrainJob to accept a new admission count. The API server answered: " + Refusal(reason))
}

// invalidValue is how the API machinery quotes what it refuses. Trainer quotes
// all runtime patches, with the time of the try, and the point comes after.
var invalidValue = regexp.MustCompile(`(?s)Invalid value: .*: `)

// Refusal is the answer of the API server to a refused write without the value
// that was refused, so that equal refusals give equal texts.
func Refusal(answer string) string {
	return invalidValue.ReplaceAllString(answer, "Invalid value: ")
}
