// Package httphook carries the hook contract of package admission over HTTP:
// [Handler] serves a hook, and a [Client] is a hook that asks a server.
//
// # The wire, version 1
//
// The client sends POST /v1/admit, after the path of the base URL if there is
// one, with Content-Type application/json and an admission.Request as the
// body. A header, [TimeoutHeader], holds the whole milliseconds that the
// client will wait for the answer.
//
// The server answers 200 with Content-Type application/json and
//
//	{"decision":"Admit|AdmitWith|Hold|Refuse","reason":…,"until":…,"changes":{…}}
//
// Reason goes with Hold and Refuse, until (RFC 3339) with Hold, changes with
// AdmitWith only. Readers ignore fields that they do not know. The version is
// the path: what changes the meaning of a field moves to /v2.
//
// An answer is read strictly, see [admission.Decision.UnmarshalJSON]: names are
// compared exactly, and a repeated name is an error. A request is read by
// [Handler] as package encoding/json does: letter case of names is ignored, and
// of a repeated name the last value holds. The caller is the side to be trusted.
//
// Either body has at most [MaxBytes]. JSON writes a control character, such as
// U+0001, in six bytes, so the legal 256 KiB of annotations can be too large.
// What exceeds the limit gets no verdict: the client does not send such a
// request (KindRequest) nor read such an answer (KindTooLarge), and Handler
// answers 413 and 422. All of these concern one request and say nothing about
// the health of the server.
//
// Everything else is no verdict, never a Refuse: another status, another
// content type, a body that is too large or cannot be read, an unknown
// decision. The client reports it as an [*Error] whose [Kind] can be tested,
// and which wraps the error of the connection: errors.Is(err,
// syscall.ECONNREFUSED) says that nobody listens.
//
// # Transport
//
// A Unix socket, https, or plain http to this machine only. TLS is version
// 1.3. Connections are reused. Redirects are not followed, and proxies named
// by the environment are ignored unless asked for.
package httphook

import "time"

// The wire, version 1.
const (
	// Path is where a server is asked, behind the path of its base URL.
	Path = "/v1/admit"

	// TimeoutHeader says how long the client will wait, in milliseconds as a
	// decimal number from 1 to 4294967295, rounded up. It is absent when there
	// is no limit.
	TimeoutHeader = "Dispatch-Timeout-Ms"

	// MaxBytes is the limit of a request body and of a response body.
	MaxBytes = 1 << 20

	// contentType is that of both bodies.
	contentType = "application/json"
)

// DefaultTimeout is how long a [Client] waits when the context has no
// deadline.
const DefaultTimeout = 30 * time.Second
