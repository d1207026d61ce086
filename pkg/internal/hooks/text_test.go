package hooks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// writes is a server that answers this.
func writes(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// The text for the status is the same each time, whatever the server and the
// network put into their errors. Each case is asked twice, of real servers.
func TestLastErrorOverHTTP(t *testing.T) {
	n := 0
	json := "application/json"
	tests := map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"Status": {func(w http.ResponseWriter, r *http.Request) {
			n++
			http.Error(w, fmt.Sprintf("request %d at %v", n, time.Now()), http.StatusInternalServerError)
		}, "status 500"},
		"Gateway":     {writes(504, json, ""), "status 504"},
		"TooLarge":    {writes(413, json, ""), "status 413"},
		"ContentType": {writes(200, "text/html", "<html>"), "the answer has a content type other than application/json"},
		"Malformed":   {writes(200, json, `{"decision":`), "the answer cannot be read"},
		"Unknown":     {writes(200, json, `{"decision":"Maybe"}`), "the answer has no known decision"},
		"Huge":        {writes(200, json, strings.Repeat(" ", 1<<20+1)), "the answer has more than 1048576 bytes"},
		"Invalid":     {writes(200, json, `{"decision":"AdmitWith","changes":{"labels":{"-":""}}}`), `changes.labels["-"]: the key is not a name: 1 to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends`},
		"Hangs":       {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() }, "no answer within 100ms"},
		"Reset": {func(w http.ResponseWriter, r *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}, "read tcp ADDRESS: connection reset by peer"},
		"Closed": {func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, "the connection broke"},
		"NoHTTP": {func(w http.ResponseWriter, r *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprintf(conn, "hello from %s\r\n\r\n", conn.RemoteAddr())
			_ = conn.Close()
		}, "the connection broke"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(tc.handler)
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.Start()
			defer server.Close()
			limit := 30 * time.Second
			if name == "Hangs" {
				limit = 100 * time.Millisecond
			}
			f := newFixture(t)
			f.configure(gateWith("policy", "", timeout(limit), breaker(1000, time.Second), func(h *v1alpha1.Hook) {
				h.Endpoint.URL = server.URL
			}))
			want := strings.ReplaceAll(tc.want, "ADDRESS", server.Listener.Addr().String())
			for _, offer := range []string{"a", "b"} {
				o := f.askAndWait("policy", offer)
				if s := f.State("policy"); s.LastError != want || o.Err == nil {
					t.Errorf("last error %q, want %q, from %v", s.LastError, want, o.Err)
				}
			}
			if len(f.changed) != 2 { // configured, and then failed
				t.Errorf("changed to %+v", f.changed)
			}
		})
	}
}

func TestLastErrorOverTLS(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	tests := map[string]struct {
		server *tls.Certificate // nil for plain http
		client *tls.Certificate
		reads  error // of the Secret
		want   string
	}{
		"OtherAuthority": {other.pair(t, "hook", forAnHour), nil, nil, "the server's certificate is signed by an unknown authority"},
		"OtherName":      {a.pair(t, "else", forAnHour), nil, nil, "the server's certificate is not for hook"},
		"Expired": {a.pair(t, "hook", [2]time.Duration{-2 * time.Hour, -time.Hour}), nil, nil,
			"the server's certificate has expired or is not yet valid"},
		"Plain":        {nil, nil, nil, "the server speaks http, not https"},
		"NotKnown":     {a.pair(t, "hook", forAnHour), other.pair(t, "controller", forAnHour), nil, "remote error: tls: unknown certificate authority"},
		"NoSecret":     {a.pair(t, "hook", forAnHour), nil, errors.New(`secrets "x" not found`), `the client certificate: secrets "x" not found`},
		"SecretBroken": {a.pair(t, "hook", forAnHour), nil, errors.New("read tcp 10.0.0.1:4711->10.0.0.2:443: reset"), "the client certificate: read tcp 10.0.0.2:443: reset"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(holds("a"))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			if tc.server == nil {
				server.Start()
			} else {
				server.TLS = &tls.Config{Certificates: []tls.Certificate{*tc.server}, ClientCAs: a.Pool()}
				if tc.client != nil || tc.reads != nil {
					server.TLS.ClientAuth = tls.RequireAndVerifyClientCert
				}
				server.StartTLS()
			}
			defer server.Close()
			f := newFixture(t, func(o *Options) {
				o.Certificate = func(context.Context, string) (*tls.Certificate, error) { return tc.client, tc.reads }
			})
			f.configure(https("policy", strings.Replace(server.URL, "http:", "https:", 1), a, "x"))
			for _, offer := range []string{"a", "b"} {
				o := f.askAndWait("policy", offer)
				if s := f.State("policy"); s.LastError != tc.want || o.Cause != runner.CauseError {
					t.Errorf("last error %q, want %q, from %v", s.LastError, tc.want, o.Err)
				}
			}
		})
	}
}

// What does not come up with servers of a test.
func TestWhy(t *testing.T) {
	s := &settings{endpoint: v1alpha1.Endpoint{URL: "https://hook.example:8443/x"}, timeout: 1500 * time.Millisecond}
	about := func(kind httphook.Kind, err error) error { return &httphook.Error{Kind: kind, Err: err} }
	connection := func(err error) error { return about(httphook.KindConnection, err) }
	long := &admission.FieldError{Field: "changes.labels", Problem: strings.Repeat("€", 400)}
	tests := map[string]struct {
		o    runner.Outcome
		want string
	}{
		"Verdict":   {runner.Outcome{}, ""},
		"Skipped":   {runner.Outcome{Cause: runner.CauseBreakerOpen, Err: errSkipped}, ""},
		"Canceled":  {runner.Outcome{Cause: runner.CauseCanceled, Err: errBroken}, ""},
		"Panic":     {runner.Outcome{Cause: runner.CausePanic, Err: errBroken}, "the call panicked"},
		"Busy":      {runner.Outcome{Cause: runner.CauseBusy, Err: errBroken}, "not asked: too many calls have not returned"},
		"Timeout":   {runner.Outcome{Cause: runner.CauseTimeout, Err: connection(context.DeadlineExceeded)}, "no answer within 1.5s"},
		"Request":   {runner.Outcome{Cause: runner.CauseRequest, Err: about(httphook.KindRequest, errBroken)}, "the request cannot be sent in 1048576 bytes"},
		"Other":     {runner.Outcome{Cause: runner.CauseError, Err: errBroken}, "the call failed"},
		"NotValid":  {runner.Outcome{Cause: runner.CauseInvalid, Err: errBroken}, "the decision is not valid"},
		"Long":      {runner.Outcome{Cause: runner.CauseInvalid, Err: long}, "changes.labels: " + strings.Repeat("€", 165)},
		"NoHost":    {runner.Outcome{Cause: runner.CauseError, Err: connection(&net.DNSError{Name: "hook.example", Server: "10.0.0.1:53", Err: "no such host", IsNotFound: true})}, "lookup hook.example: no such host"},
		"NoAnswer":  {runner.Outcome{Cause: runner.CauseError, Err: connection(&net.DNSError{Name: "hook.example", Err: "read udp 10.0.0.1:4711->10.0.0.2:53: i/o timeout", IsTimeout: true})}, "lookup hook.example: failed"},
		"NoErrno":   {runner.Outcome{Cause: runner.CauseError, Err: connection(&net.OpError{Op: "dial", Net: "tcp", Err: errBroken})}, "dial tcp hook.example:8443: failed"},
		"TLSRecord": {runner.Outcome{Cause: runner.CauseError, Err: connection(tls.RecordHeaderError{Msg: "tls: first record does not look like a TLS handshake"})}, "tls: first record does not look like a TLS handshake"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := s.why(tc.o); got != tc.want || !utf8.ValidString(got) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
