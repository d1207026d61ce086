package gate

import (
	"regexp"
	"strings"
	"unicode/utf8"
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
	MessageRunning   = "The TrainJob is not suspended although its Workload waits, so the admission count cannot be raised; set spec.suspend of the TrainJob to true."
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
