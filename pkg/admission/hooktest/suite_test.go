package hooktest_test

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// varied gives every decision, depending on the request.
var varied = admission.HookFunc(func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	switch {
	case ctx.Err() != nil:
		return admission.Decision{}, ctx.Err()
	case len(req.PodSets) > 1:
		return admission.Refuse("too many pod sets"), nil
	case !req.HeldSince.IsZero():
		return admission.HoldUntil(req.HeldSince.AddDate(0, 0, 1), "one day"), nil
	case req.Namespace == "":
		return admission.Hold("not queued"), nil
	case req.TenantID == "team-a":
		return admission.AdmitWith(admission.Changes{
			Labels:      map[string]string{"example.com/team": "a"},
			Tolerations: []admission.Toleration{{Key: "a", Effect: "NoExecute", TolerationSeconds: new(int64(0))}},
		}), nil
	}
	return admission.Admit(), nil
})

// patient is for hooks that are good, on a machine that may be busy.
var patient = hooktest.Options{Timeout: time.Minute, Grace: time.Minute}

func TestGoodHook(t *testing.T) { hooktest.Run(t, varied, patient) }

func TestGoodServerTCP(t *testing.T) {
	server := httptest.NewServer(httphook.Handler(varied))
	t.Cleanup(server.Close)
	hooktest.RunServer(t, httphook.Config{URL: server.URL}, patient)
}

func TestGoodServerTLS(t *testing.T) {
	server := httptest.NewTLSServer(httphook.Handler(varied))
	t.Cleanup(server.Close)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	hooktest.RunServer(t, httphook.Config{URL: server.URL, CABundle: bundle, ServerName: "example.com"}, patient)
}

func TestGoodServerUnixSocket(t *testing.T) {
	hooktest.RunServer(t, httphook.Config{UnixSocket: onSocket(t, httphook.Handler(varied))}, patient)
}

func onSocket(t *testing.T, handler http.Handler) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return path
}

// failed names the checks that failed.
func failed(results []hooktest.Result) []string {
	var names []string
	for _, r := range results {
		if r.Err != nil {
			names = append(names, r.Check)
		}
	}
	return names
}

func TestBadHooks(t *testing.T) {
	var calls atomic.Int32
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	tests := map[string]struct {
		reason string
		hook   admission.HookFunc
		check  string // must fail
		others bool   // may fail
	}{
		"Error":   {"an error is no answer", hooktest.Fail(errors.New("broken")), "answers every request", true},
		"Panic":   {"a panic is no answer", hooktest.Panic("boom"), "returns when its context is done before", true},
		"Hang":    {"a hook must watch its context", hooktest.Hang(hang), "returns when its context is done before", true},
		"Slow":    {"an answer has a deadline", hooktest.After(time.Minute, hooktest.Wait()), "answers every request", true},
		"Invalid": {"changes must be valid", hooktest.Answer(admission.AdmitWith(admission.Changes{Labels: map[string]string{"kubernetes.io/os": "a"}})), "answers every request", true},
		"Once": {"the second call must not fail", func(_ context.Context, r *admission.Request) (admission.Decision, error) {
			if n := calls.Add(1); n == 9 { // the second call of the second check
				return admission.Decision{}, errors.New("booked already")
			}
			return admission.Admit(), nil
		}, "may be asked twice", false},
		"Goexit": {"the end of the goroutine is no answer", func(context.Context, *admission.Request) (admission.Decision, error) {
			runtime.Goexit()
			return admission.Admit(), nil
		}, "returns when its context is done before", true},
		"Alone":   {"others may ask at the same time", alone(), "may be asked by many at once", false},
		"Keeps":   {"a request that was answered may change", keeps(), "keeps no request", false},
		"TooLong": {"a decision may be valid and not fit the wire", hooktest.Answer(admission.AdmitWith(admission.Changes{Annotations: map[string]string{"a": strings.Repeat("\x01", 200<<10)}})), "its answers survive the wire", false},
		"Ignores": {"a hook that is called must look at its context", func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) < 20*time.Millisecond {
				<-hang
			}
			return admission.Admit(), nil
		}, "returns when its context is done meanwhile", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			options := hooktest.Options{Timeout: 50 * time.Millisecond, Grace: 50 * time.Millisecond}
			if !tc.others {
				options = patient
			}
			got := failed(hooktest.Check(t.Context(), tc.hook, options))
			if len(got) == 0 || !tc.others && len(got) > 1 || !strings.Contains(strings.Join(got, "\n"), tc.check) {
				t.Errorf("%s: failed checks %q, want %q", tc.reason, got, tc.check)
			}
		})
	}
}

// alone is a hook that fails when it is asked by two at once.
func alone() admission.HookFunc {
	var inside atomic.Int32
	return func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
		defer inside.Add(-1)
		if inside.Add(1) > 1 {
			return admission.Decision{}, errors.New("busy")
		}
		time.Sleep(2 * time.Millisecond)
		return varied(ctx, req)
	}
}

// keeps is a hook that looks at its last request once more.
func keeps() admission.HookFunc {
	var last atomic.Pointer[admission.Request]
	return func(_ context.Context, req *admission.Request) (admission.Decision, error) {
		if before := last.Swap(req); before != nil && before.TaskID == "scribble" {
			return admission.Decision{}, errors.New("a task that nobody asked about")
		}
		return admission.Admit(), nil
	}
}

// answering answers every request with a body.
func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func TestBadServers(t *testing.T) {
	good := httphook.Handler(varied)
	unless := func(bad func(*http.Request) bool, answer http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if bad(r) {
				answer.ServeHTTP(w, r)
				return
			}
			good.ServeHTTP(w, r)
		})
	}
	admits := answering(200, `{"decision":"Admit"}`)
	tests := map[string]struct {
		reason  string
		handler http.Handler
		check   string
	}{
		"Always":   {"who admits whatever comes reads nothing", admits, "answers what is no request with an error"},
		"Paths":    {"another version is not this one", unless(func(r *http.Request) bool { return r.URL.Path != httphook.Path }, admits), "answers other paths with an error"},
		"Methods":  {"a GET is not a question", unless(func(r *http.Request) bool { return r.Method != http.MethodPost }, admits), "answers POST only"},
		"TooLarge": {"a request has a limit", unless(func(r *http.Request) bool { return r.ContentLength > httphook.MaxBytes }, admits), "answers more than 1 MiB with an error"},
		"Charset":  {"a charset is legal", unless(func(r *http.Request) bool { return strings.Contains(r.Header.Get("Content-Type"), ";") }, answering(415, "")), "reads a content type with a charset"},
		"Header":   {"the timeout header is not needed", unless(func(r *http.Request) bool { return r.Header.Get(httphook.TimeoutHeader) == "" }, answering(400, "")), "ignores fields of a later version"},
		"Misspelt": {"nothing else finds a misspelt field", answering(200, `{"decision":"AdmitWith","changes":{"nodeSelectors":{"a":"b"}}}`), "answers in known fields only"},
		"Case":     {"a name in another case is misspelt", answering(200, `{"decision":"AdmitWith","changes":{"nodeselector":{"a":"b"}}}`), "answers in known fields only"},
		"CaseToo":  {"also beside the proper one", answering(200, `{"decision":"AdmitWith","changes":{"ServiceAccount":"a","serviceAccount":"a"}}`), "answers in known fields only"},
		"CaseTop":  {"also at the top", answering(200, `{"decision":"Hold","reason":"a","Until":"2026-01-01T00:00:00Z"}`), "answers in known fields only"},
		"CaseDeep": {"also in a toleration", answering(200, `{"decision":"AdmitWith","changes":{"tolerations":[{"key":"a"},{"key":"a","tolerationseconds":1}]}}`), "answers in known fields only"},
		"Alone":    {"others may ask at the same time", httphook.Handler(alone()), "may be asked by many at once"},
		"Breaks":   {"one bad request costs one answer", breaks(good), "still answers after that"},
		"Broken":   {"a server that is broken", answering(503, ""), "answers every request"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			results, err := hooktest.CheckServer(t.Context(), httphook.Config{UnixSocket: onSocket(t, tc.handler)}, hooktest.Options{})
			if got := failed(results); err != nil || !strings.Contains(strings.Join(got, "\n"), tc.check) {
				t.Errorf("%s: failed checks %q, want %q, %v", tc.reason, got, tc.check, err)
			}
		})
	}
}

// breaks is a server that a request above the limit puts out of order.
func breaks(good http.Handler) http.Handler {
	var broken atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			answering(503, "").ServeHTTP(w, r)
			return
		}
		broken.Store(r.ContentLength > httphook.MaxBytes)
		good.ServeHTTP(w, r)
	})
}

// A server must say something about a request above the limit: an error, or
// that it hangs up.
func TestTooLarge(t *testing.T) {
	unless := func(large http.HandlerFunc) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > httphook.MaxBytes {
				large(w, r)
				return
			}
			httphook.Handler(varied).ServeHTTP(w, r)
		})
	}
	ends := make(chan struct{})
	tests := map[string]struct {
		large   http.HandlerFunc
		timeout time.Duration
		passes  bool
	}{
		"HangsUp": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, time.Minute, true},
		"Silent":  {func(http.ResponseWriter, *http.Request) { <-ends }, time.Second, false},
	}
	t.Cleanup(func() { close(ends) })
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config := httphook.Config{UnixSocket: onSocket(t, unless(tc.large))}
			results, err := hooktest.CheckServer(t.Context(), config, hooktest.Options{Timeout: tc.timeout})
			got := failed(results)
			if passes := !slices.Contains(got, "answers more than 1 MiB with an error"); err != nil || passes != tc.passes {
				t.Errorf("failed checks %q, %v", got, err)
			}
		})
	}
}

// What a client does by itself is no merit of a server.
func TestServerChecks(t *testing.T) {
	results, err := hooktest.CheckServer(t.Context(), httphook.Config{UnixSocket: onSocket(t, httphook.Handler(varied))}, patient)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if strings.Contains(r.Check, "context") || strings.Contains(r.Check, "keeps") || strings.Contains(r.Check, "survive") {
			t.Errorf("checks whether a server %s", r.Check)
		}
	}
}

func TestSamplesAreCopies(t *testing.T) {
	for i, sample := range hooktest.Samples() {
		sample.Request.TaskID = "changed"
		if hooktest.Samples()[i].Request.TaskID == "changed" {
			t.Errorf("sample %q is shared", sample.Name)
		}
	}
}
