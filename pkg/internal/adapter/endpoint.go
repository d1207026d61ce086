package adapter

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// The endpoints.
const (
	pathAdmit = httphook.Path
	pathStart = "/v1/start"
)

// maxDeadline is how long a request may take, whatever its caller says. It is
// the longest deadline of an AdmissionGate.
const maxDeadline = 30 * time.Second

// endpoint serves a hook by the wire of package httphook, and counts.
type endpoint struct {
	name    string // the label of metrics
	wire    http.Handler
	metrics *metrics
	log     *slog.Logger
}

// newEndpoint serves hook. With validate, decisions that callers will not accept
// are told here, where the author of the hook looks.
func newEndpoint(name string, hook admission.Hook, validate bool, m *metrics, log *slog.Logger) *endpoint {
	e := &endpoint{name: name, metrics: m, log: log.With("endpoint", name)}
	e.wire = httphook.Handler(e.traced(hook, validate), httphook.WithErrorLog(e.failed))
	m.duration.WithLabelValues(name)
	for _, result := range results() {
		m.requests.WithLabelValues(name, result) // an increase from nothing would not be seen as one
	}
	return e
}

// trace is what one request came to. It belongs to the goroutine of the handler,
// and to that of the hook while the handler waits for it.
type trace struct {
	result  string // the label of metrics
	attempt attempt
}

type traceKey struct{}

// traceOf never returns nil, so that nobody has to ask.
func traceOf(ctx context.Context) *trace {
	if t, ok := ctx.Value(traceKey{}).(*trace); ok {
		return t
	}
	return &trace{}
}

// ServeHTTP answers one request, whatever its path is.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	inFlight := e.metrics.inFlight.WithLabelValues(e.name)
	inFlight.Inc()
	defer inFlight.Dec()
	t := &trace{}
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), traceKey{}, t), maxDeadline)
	defer cancel()
	r = r.WithContext(ctx)
	if r.URL.Path != httphook.Path {
		r.URL = &url.URL{Path: httphook.Path} // the wire is the same, and it goes by the path
	}
	e.wire.ServeHTTP(w, r)
	e.metrics.requests.WithLabelValues(e.name, t.result).Inc()
	e.metrics.duration.WithLabelValues(e.name).Observe(time.Since(begin).Seconds())
}

// traced notes what the hook decides.
func (e *endpoint) traced(hook admission.Hook, validate bool) admission.Hook {
	return admission.HookFunc(func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
		t := traceOf(ctx)
		t.attempt = attemptOf(req) // before the hook, which may change req
		d, err := hook.Admit(ctx, req)
		if err != nil {
			return d, err
		}
		t.result = d.Kind().String()
		e.log.DebugContext(ctx, "decided", "decision", d, "attempt", t.attempt)
		if !validate {
			return d, nil
		}
		if problem := d.Validate(); problem != nil {
			t.result = resultInvalid
			e.log.WarnContext(ctx, "callers will take this decision for none", "error", problem, "attempt", t.attempt)
		}
		return d, nil
	})
}

// What came of a request that is not a decision.
const (
	resultInvalid    = "Invalid"    // changes that are not allowed; the caller decides
	resultError      = "Error"      // the hook failed
	resultTimeout    = "Timeout"    // the caller's time was over
	resultCanceled   = "Canceled"   // the caller went away
	resultBadRequest = "BadRequest" // not asked by the contract
	resultUnsendable = "Unsendable" // a decision that does not fit the wire
	resultOverload   = "Overload"   // too many requests at once; the hook was not asked
)

// results are all of them, decisions first.
func results() []string {
	return []string{
		admission.KindAdmit.String(), admission.KindAdmitWith.String(), admission.KindHold.String(), admission.KindRefuse.String(),
		resultInvalid, resultError, resultTimeout, resultCanceled, resultBadRequest, resultUnsendable, resultOverload,
	}
}

// failed notes and logs a request that was not answered with a decision. What is
// the caller's fault is no news for the log: the caller was told.
func (e *endpoint) failed(ctx context.Context, status int, err error) {
	t, level := traceOf(ctx), slog.LevelError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		t.result, level = resultCanceled, slog.LevelInfo
	case status == http.StatusGatewayTimeout:
		t.result = resultTimeout
	case status == http.StatusUnprocessableEntity:
		t.result = resultUnsendable
	case status < http.StatusInternalServerError:
		t.result, level = resultBadRequest, slog.LevelDebug
	default:
		t.result = resultError
	}
	e.log.Log(ctx, level, "no decision", "status", status, "error", err, "attempt", t.attempt)
}
