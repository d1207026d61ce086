package httphook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

func TestHandler(t *testing.T) {
	echo := admission.HookFunc(func(_ context.Context, req *admission.Request) (admission.Decision, error) {
		return admission.Refuse("task " + req.TaskID), nil
	})
	panics := admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		panic("boom\nat home")
	})
	exits := admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		runtime.Goexit()
		return admission.Admit(), nil
	})
	panicking := admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		panic(selfish{})
	})
	latin1 := hookOf(admission.AdmitWith(admission.Changes{Annotations: map[string]string{"a": "\xe4"}}), nil)
	html := hookOf(admission.AdmitWith(admission.Changes{Annotations: map[string]string{"a": strings.Repeat("<", 200<<10)}}), nil)
	tooLong := hookOf(admission.AdmitWith(admission.Changes{Annotations: map[string]string{"a": strings.Repeat("x", MaxBytes)}}), nil)
	tests := map[string]struct {
		reason  string
		hook    admission.Hook
		method  string // POST when empty
		path    string // Path when empty
		kind    string // content type, JSON when empty
		timeout string
		body    string
		status  int
		want    string // part of the body
	}{
		"Answer":        {reason: "the hook sees the request", hook: echo, body: `{"taskID":"a","later":1}`, status: 200, want: `"reason":"task a"`},
		"Charset":       {reason: "a charset may be said", hook: echo, kind: "application/json;charset=utf-8", body: `{}`, status: 200, want: "Refuse"},
		"Timeout":       {reason: "a time may be given", hook: echo, timeout: "2000", body: `{}`, status: 200, want: "Refuse"},
		"Path":          {reason: "another version is another path", path: "/v2/admit", status: 404, want: "path"},
		"Root":          {reason: "no other path answers", path: "/", status: 404, want: "path"},
		"Method":        {reason: "only POST asks", method: "GET", status: 405, want: "method"},
		"ContentType":   {reason: "only JSON is read", kind: "text/plain", body: `{}`, status: 415, want: "content type"},
		"TooLarge":      {reason: "a request has a limit", body: `{"image":"` + strings.Repeat("x", MaxBytes) + `"}`, status: 413, want: "body: more than"},
		"Empty":         {reason: "an empty body is no request", status: 400, want: "body"},
		"Null":          {reason: "null is no request", body: "null", status: 400, want: "body"},
		"Array":         {reason: "a list is no request", body: "[]", status: 400, want: "body"},
		"Cut":           {reason: "half a request is none", body: `{"taskID":`, status: 400, want: "body"},
		"Trailing":      {reason: "one body is one request", body: `{}{}`, status: 400, want: "body"},
		"FieldType":     {reason: "the error names the field", body: `{"tryNumber":"1"}`, status: 400, want: "tryNumber"},
		"TimeoutZero":   {reason: "no time is no time", timeout: "0", body: `{}`, status: 400, want: TimeoutHeader},
		"TimeoutText":   {reason: "times are numbers", timeout: "2s", body: `{}`, status: 400, want: TimeoutHeader},
		"Broken":        {reason: "an error is not a decision", hook: hookOf(admission.Refuse("no"), errors.New("no database")), body: `{}`, status: 500, want: "no database"},
		"Panic":         {reason: "a panic costs one answer and shows no stack", hook: panics, body: `{}`, status: 500, want: `{"error":"the hook panicked: boom"}`},
		"NilHook":       {reason: "a nil function is a panic", hook: admission.HookFunc(nil), body: `{}`, status: 500, want: "panicked"},
		"Goexit":        {reason: "the end of the goroutine costs one answer", hook: exits, body: `{}`, status: 500, want: "Goexit"},
		"TypedNil":      {reason: "an error may panic when asked for its text", hook: hookOf(admission.Admit(), (*brokenError)(nil)), body: `{}`, status: 500, want: "nil"},
		"SelfishError":  {reason: "also in the text of that panic", hook: hookOf(admission.Admit(), selfish{}), body: `{}`, status: 500, want: "httphook.selfish that cannot be printed"},
		"SelfishPanic":  {reason: "the same for what a hook panics with", hook: panicking, body: `{}`, status: 500, want: "httphook.selfish that cannot be printed"},
		"GoexitError":   {reason: "the text may end the goroutine", hook: hookOf(admission.Admit(), leaving{}), body: `{}`, status: 500, want: "Goexit"},
		"AnswerTooLong": {reason: "an answer has a limit", hook: tooLong, body: `{}`, status: 422, want: "more than"},
		"AnswerUTF8":    {reason: "JSON would change it", hook: latin1, body: `{}`, status: 422, want: "UTF-8"},
		"AnswerHTML":    {reason: "no character takes six bytes without need", hook: html, body: `{}`, status: 200, want: strings.Repeat("<", 200<<10)},
		"Lax":           {reason: "a request is read as encoding/json does", hook: echo, body: `{"taskID":"a","TASKID":"b"}`, status: 200, want: "task b"},
		"LongestTime":   {reason: "what a client may send is read", hook: echo, timeout: "4294967295", body: `{}`, status: 200, want: "Refuse"},
		"TimeoutAbove":  {reason: "nothing above it", timeout: "4294967296", body: `{}`, status: 400, want: TimeoutHeader},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var logged []int
			handler := Handler(tc.hook, WithErrorLog(func(_ context.Context, status int, err error) {
				logged = append(logged, status)
				_ = err.Error() // is safe
				if name == "Panic" && !strings.Contains(err.Error(), "handler_test.go") {
					t.Errorf("no stack in the log: %v", err)
				}
			}))
			w := serve(handler, orElse(tc.method, "POST"), orElse(tc.path, Path), orElse(tc.kind, "application/json"), tc.timeout, tc.body)
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) {
				t.Errorf("%s: got %d %s", tc.reason, w.Code, w.Body)
			}
			if w.Header().Get("Content-Type") != "application/json" || !json.Valid(w.Body.Bytes()) {
				t.Errorf("not JSON: %s %s", w.Header(), w.Body)
			}
			if failed := tc.status != 200; failed != (len(logged) == 1) || failed && logged[0] != tc.status {
				t.Errorf("logged %v", logged)
			}
		})
	}
}

// brokenError is used through a nil pointer.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

// selfish panics with itself, so that package fmt does not help.
type selfish struct{}

func (e selfish) Error() string { panic(e) }

// leaving ends the goroutine that asks for its text.
type leaving struct{}

func (leaving) Error() string {
	runtime.Goexit()
	return ""
}

func TestHookErrorIsKept(t *testing.T) {
	_, err := ask(t.Context(), hookOf(admission.Admit(), io.ErrUnexpectedEOF), &admission.Request{})
	if !errors.Is(err, io.ErrUnexpectedEOF) || err.Error() != io.ErrUnexpectedEOF.Error() {
		t.Errorf("got %v", err)
	}
}

func TestNoErrorLog(t *testing.T) {
	if w := serve(Handler(nil, WithErrorLog(nil)), "GET", Path, "", "", ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("got %d", w.Code)
	}
}

// The context of the hook ends with the request, also when no time is given.
func TestHookEndsWithItsClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	waits := admission.HookFunc(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		cancel()
		select {
		case <-ctx.Done():
			return admission.Decision{}, ctx.Err()
		case <-t.Context().Done():
			return admission.Admit(), nil
		}
	})
	r := httptest.NewRequestWithContext(ctx, "POST", Path, strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		Handler(waits).ServeHTTP(w, r)
	}()
	select {
	case <-answered:
		if w.Code != http.StatusGatewayTimeout {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	case <-time.After(30 * time.Second):
		t.Error("the hook runs on although its client has gone")
	}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func serve(h http.Handler, method, path, kind, timeout, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	if timeout != "" {
		r.Header.Set(TimeoutHeader, timeout)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestOverrunIsGatewayTimeout(t *testing.T) {
	waits := admission.HookFunc(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		<-ctx.Done()
		return admission.Decision{}, ctx.Err()
	})
	if w := serve(Handler(waits), "POST", Path, "application/json", "1", "{}"); w.Code != http.StatusGatewayTimeout {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestHandlerUnderAPrefix(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/team/", http.StripPrefix("/team", Handler(hookOf(admission.Hold("a"), nil))))
	server := httptest.NewServer(mux)
	defer server.Close()
	d, err := newClient(t, Config{URL: server.URL + "/team"}).Admit(t.Context(), &admission.Request{})
	if err != nil || !d.Equal(admission.Hold("a")) {
		t.Errorf("got %v, %v", d, err)
	}
}

// FuzzHandler sends requests. Whatever comes, the answer is JSON, and it is a
// decision exactly when the status is 200.
func FuzzHandler(f *testing.F) {
	f.Add("application/json", "2000", []byte(`{"taskID":"a"}`))
	f.Add("application/json; charset=utf-8", "", []byte(`{"podSets":[{"count":1e3}]}`))
	f.Add("text/plain", "-1", []byte(`null`))
	handler := Handler(hookOf(admission.Hold("a"), nil))
	f.Fuzz(func(t *testing.T, kind, timeout string, body []byte) {
		w := serve(handler, "POST", Path, kind, timeout, string(body))
		var d admission.Decision
		isDecision := json.Unmarshal(w.Body.Bytes(), &d) == nil
		if !json.Valid(w.Body.Bytes()) || isDecision != (w.Code == 200) || w.Code >= 500 {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
	})
}

// FuzzClient reads responses. Whatever comes is a decision or an Error with a
// kind, and never both.
func FuzzClient(f *testing.F) {
	f.Add(200, "application/json", []byte(admitJSON))
	f.Add(200, "application/json", []byte(`{"decision":"AdmitWith","changes":{"labels":{"a":"b"}}}`))
	f.Add(403, "text/html", []byte(`<html>`))
	f.Fuzz(func(t *testing.T, status int, kind string, body []byte) {
		resp := &http.Response{
			StatusCode:    status,
			Header:        http.Header{"Content-Type": {kind}},
			Body:          io.NopCloser(bytes.NewReader(body)),
			ContentLength: -1,
		}
		answer, e := readAnswer(t.Context(), resp)
		if e != nil {
			if e.Kind == "" || e.Err == nil || status == 200 && e.Kind == KindStatus {
				t.Fatalf("got %+v", e)
			}
			return
		}
		var d admission.Decision
		if err := d.UnmarshalJSON(answer); err != nil {
			if kind := decisionError(err).Kind; kind != KindMalformed && kind != KindUnknownDecision {
				t.Fatalf("got %v", err)
			}
		}
	})
}
