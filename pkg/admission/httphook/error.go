package httphook

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Kind says why a server gave no verdict. It is short and from a closed set,
// so it can be the label of a metric.
type Kind string

// The kinds of an [Error].
const (
	KindTimeout         Kind = "Timeout"         // the deadline passed, or the server says so with status 504
	KindCanceled        Kind = "Canceled"        // the caller gave up
	KindConnection      Kind = "Connection"      // refused, reset, no such host, TLS
	KindStatus          Kind = "Status"          // a status other than 200 and 504
	KindContentType     Kind = "ContentType"     // not application/json
	KindTooLarge        Kind = "TooLarge"        // an answer above MaxBytes
	KindMalformed       Kind = "Malformed"       // an answer that cannot be read
	KindUnknownDecision Kind = "UnknownDecision" // a decision missing or none of the four
	KindRequest         Kind = "Request"         // the request cannot be sent: above MaxBytes, or no JSON
)

// textError is an error of a hook with its text, which was taken when a panic
// cost nothing: Error of a nil pointer in an interface panics each time.
type textError struct {
	text string
	err  error
}

func (e *textError) Error() string { return e.text }

func (e *textError) Unwrap() error { return e.err }

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

// Error is why a server gave no verdict. Every error of [Client.Admit] is one.
type Error struct {
	Kind   Kind
	Status int   // of the response; 0 when there was none
	Err    error // never nil
}

// Error returns the message of e for a log. It may quote the server.
func (e *Error) Error() string { return fmt.Sprintf("hook server: %v", e.Err) }

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Is reports that every error of KindTimeout is a context.DeadlineExceeded,
// whoever noticed it first.
func (e *Error) Is(target error) bool {
	return e.Kind == KindTimeout && target == context.DeadlineExceeded
}

// KindOf returns the kind of the [Error] in the tree of err, "" if there is
// none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

// transportError classifies an error that came instead of a response, or
// while one was read.
func transportError(ctx context.Context, status int, err error) *Error {
	kind := KindConnection
	var timeout net.Error
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		kind = KindCanceled
	case ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout():
		kind = KindTimeout
	}
	return &Error{kind, status, err}
}

func decisionError(err error) *Error {
	kind := KindMalformed
	if errors.Is(err, admission.ErrUnknownDecision) {
		kind = KindUnknownDecision
	}
	return &Error{kind, 200, fmt.Errorf("the answer: %w", err)}
}
