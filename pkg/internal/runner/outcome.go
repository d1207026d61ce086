package runner

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Cause says why there is no verdict. It is short and from a closed set, so it
// can be the label of a metric.
type Cause string

// The causes of an [Outcome]. Only Timeout, Error and Panic are failures that
// count toward skipping the hook.
const (
	CauseNone        Cause = ""            // there is a verdict
	CauseTimeout     Cause = "Timeout"     // the deadline of the call passed, or one that the hook has set
	CauseError       Cause = "Error"       // the hook returned an error
	CauseRequest     Cause = "Request"     // this request, or the answer to it, cannot be sent: too large
	CausePanic       Cause = "Panic"       // the hook panicked or ended its goroutine
	CauseInvalid     Cause = "Invalid"     // the changes are not valid or not on the allowlist
	CauseCanceled    Cause = "Canceled"    // the caller gave up, or its own deadline passed
	CauseBreakerOpen Cause = "BreakerOpen" // skipped after too many failures
	CauseBusy        Cause = "Busy"        // skipped: too many calls never returned
)

// Outcome is what came of asking a hook: a decision, or no verdict and why.
type Outcome struct {
	// Decision is the hook's. It is the zero Decision unless Cause is
	// CauseNone, and must not be used then: the zero Decision admits.
	Decision admission.Decision

	// Cause is CauseNone exactly when there is a verdict.
	Cause Cause

	// Err has the details for the log, not for the owner of the job; nil
	// exactly when there is a verdict. It is a [*PanicError] for CausePanic
	// and wraps a [*admission.FieldError] for CauseInvalid.
	Err error

	// Took is how long the caller waited.
	Took time.Duration
}

// Verdict returns the decision of the hook and whether there is one.
func (o Outcome) Verdict() (admission.Decision, bool) {
	return o.Decision, o.Cause == CauseNone
}

// PanicError is what a hook panicked with.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine of the hook

	text string // of Value, taken in that goroutine
}

func newPanicError(value any, stack []byte) *PanicError {
	return &PanicError{Value: value, Stack: stack, text: textOf(value)}
}

// Error returns the value without the stack.
func (e *PanicError) Error() string {
	if e.text == "" {
		return "the hook panicked: " + textOf(e.Value)
	}
	return "the hook panicked: " + e.text
}

// LogValue adds the stack, for package log/slog.
func (e *PanicError) LogValue() slog.Value {
	return slog.GroupValue(slog.String("error", e.Error()), slog.String("stack", string(e.Stack)))
}

// Unwrap returns the value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// hookError is an error of a hook with its text, which was taken when a panic
// cost nothing: Error of a nil pointer in an interface panics each time.
type hookError struct {
	text string
	err  error
}

func (e *hookError) Error() string { return e.text }

func (e *hookError) Unwrap() error { return e.err }

// textOf is the text of an error or of what a hook panicked with, whatever its
// own methods do. Package fmt catches their panics, but not the panics in
// those.
func textOf(v any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T that cannot be printed", v)
		}
	}()
	return fmt.Sprint(v)
}

// FailurePolicy says what holds when there is no verdict.
type FailurePolicy string

// The failure policies.
const (
	FailHold  FailurePolicy = "Hold"  // fail closed, the default
	FailAdmit FailurePolicy = "Admit" // fail open
)

// noVerdict is what the owner of the job is told. It is the same for every
// cause, because details of a hook are not for the owner, and because a
// message that changes from one attempt to the next wakes watchers.
const noVerdict = "the admission hook gave no verdict; it will be asked again"

// Resolve returns the decision that holds for o under p, and whether it was
// made by failing open. A verdict holds as it is, so Hold and Refuse never
// fail open. Without one the decision is Admit under FailAdmit, else Hold with
// a general reason. A caller that gave up is held, whatever p: nobody is
// waiting for the answer. An unknown p is FailHold.
func Resolve(o Outcome, p FailurePolicy) (d admission.Decision, failedOpen bool) {
	if d, ok := o.Verdict(); ok {
		return d, false
	}
	if p == FailAdmit && o.Cause != CauseCanceled {
		return admission.Admit(), true
	}
	return admission.Hold(noVerdict), false
}
