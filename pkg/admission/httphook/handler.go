package httphook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// HandlerOption changes a [Handler].
type HandlerOption func(*handler)

// WithErrorLog makes the handler report every request that it did not answer
// with a decision. F gets the status that was sent and the reason, with the
// stack when the hook panicked. It may be called by many goroutines. A nil f
// reports nothing, as without the option.
func WithErrorLog(f func(ctx context.Context, status int, err error)) HandlerOption {
	if f == nil {
		f = func(context.Context, int, error) {}
	}
	return func(h *handler) { h.log = f }
}

// Handler serves hook at POST [Path]. Anything but a decision is answered with
// a status of 400 or above and a JSON object whose member "error" says why:
// 500 when the hook returns an error, panics or ends its goroutine, 504 when
// that happens after its time, 422 when its decision cannot be sent: above
// [MaxBytes], or with an annotation that is not valid UTF-8.
//
// The context of the hook ends when the time that the client gave is over, or
// when the client has gone. The handler waits for the hook to return, since
// the client does not: it has its own clock.
func Handler(hook admission.Hook, options ...HandlerOption) http.Handler {
	h := &handler{hook: hook}
	for _, option := range append([]HandlerOption{WithErrorLog(nil)}, options...) {
		option(h)
	}
	return h
}

type handler struct {
	hook admission.Hook
	log  func(ctx context.Context, status int, err error)
}

// failure is a status and the reason for it.
type failure struct {
	status int
	err    error
}

// body leaves stacks to the log.
func (f *failure) body() []byte {
	line, _, _ := strings.Cut(f.err.Error(), "\n")
	return fmt.Appendf(nil, `{"error":%s}`, quoted(line[:min(len(line), maxQuoted)]))
}

// quoted returns s as JSON. Text always has a form in JSON.
func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`)
	}
	return b
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, fail := h.answer(w, r)
	status := http.StatusOK
	if fail != nil {
		status = fail.status
		body = fail.body()
		h.log(r.Context(), status, fail.err)
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone, or it is not
}

func (h *handler) answer(w http.ResponseWriter, r *http.Request) ([]byte, *failure) {
	req, fail := readRequest(w, r)
	if fail != nil {
		return nil, fail
	}
	ctx, cancel, err := withTimeout(r.Context(), r.Header.Get(TimeoutHeader))
	if err != nil {
		return nil, &failure{http.StatusBadRequest, err}
	}
	defer cancel()
	d, err := ask(ctx, h.hook, req)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, &failure{http.StatusGatewayTimeout, err}
	case err != nil:
		return nil, &failure{http.StatusInternalServerError, err}
	}
	return encode(d)
}

func readRequest(w http.ResponseWriter, r *http.Request) (*admission.Request, *failure) {
	switch {
	case r.URL.Path != Path:
		return nil, &failure{http.StatusNotFound, fmt.Errorf("path: %q is not %s", r.URL.Path, Path)}
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return nil, &failure{http.StatusMethodNotAllowed, fmt.Errorf("method: %s is not POST", r.Method)}
	}
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return nil, &failure{http.StatusUnsupportedMediaType, err}
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, MaxBytes), r.ContentLength)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &failure{http.StatusRequestEntityTooLarge, fmt.Errorf("body: more than %d bytes", MaxBytes)}
	case err != nil:
		return nil, &failure{http.StatusBadRequest, fmt.Errorf("body: %w", err)}
	}
	return decode(body)
}

func decode(body []byte) (*admission.Request, *failure) {
	req := new(admission.Request)
	if !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		return nil, &failure{http.StatusBadRequest, errors.New("body: not a JSON object")}
	}
	if err := json.Unmarshal(body, req); err != nil {
		return nil, &failure{http.StatusBadRequest, fmt.Errorf("body: %w", err)}
	}
	return req, nil
}

// withTimeout gives the context the time that the client will wait.
func withTimeout(ctx context.Context, header string) (context.Context, context.CancelFunc, error) {
	if header == "" {
		ctx, cancel := context.WithCancel(ctx)
		return ctx, cancel, nil
	}
	ms, err := strconv.ParseUint(header, 10, 32)
	if err != nil || ms == 0 {
		return nil, nil, fmt.Errorf("header %s: %q is not a number of milliseconds", TimeoutHeader, header)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
	return ctx, cancel, nil
}

var errGoexit = errors.New("the hook called runtime.Goexit")

// ask calls the hook in a goroutine that the hook may end, so that one bad
// request costs one answer.
func ask(ctx context.Context, hook admission.Hook, req *admission.Request) (admission.Decision, error) {
	type answer struct {
		d   admission.Decision
		err error
	}
	answered := make(chan answer)
	go func() {
		a := answer{err: errGoexit}
		defer func() { answered <- a }()
		a.d, a.err = guarded(ctx, hook, req)
	}()
	a := <-answered
	return a.d, a.err
}

// guarded turns a panic into an error.
func guarded(ctx context.Context, hook admission.Hook, req *admission.Request) (d admission.Decision, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the hook panicked: %s\n%s", textOf(v), debug.Stack())
		}
	}()
	d, err = hook.Admit(ctx, req)
	if err != nil {
		err = &textError{textOf(err), err}
	}
	return d, err
}

// encode does without json.Marshal, which would make six bytes of each <.
func encode(d admission.Decision) ([]byte, *failure) {
	body, err := d.MarshalJSON()
	if err == nil && len(body) > MaxBytes {
		err = fmt.Errorf("%d bytes, more than %d", len(body), MaxBytes)
	}
	if err != nil {
		return nil, &failure{http.StatusUnprocessableEntity, fmt.Errorf("the decision: %w", err)}
	}
	return body, nil
}
