package hooks

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// serve serves a handler on a socket, in the place of what is there.
func serve(t *testing.T, path string, handler http.Handler) *httptest.Server {
	t.Helper()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	// The file is the test's: a server that is closed late must not remove that
	// of its successor.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return server
}

func socket(t *testing.T) string { return filepath.Join(t.TempDir(), "s") }

func holds(reason string) http.Handler {
	return httphook.Handler(hooktest.Answer(admission.Hold(reason)))
}

// reasonOf is what the hook said, or the cause for its silence.
func reasonOf(o runner.Outcome) string {
	if o.Cause != runner.CauseNone {
		return string(o.Cause)
	}
	reason, _ := o.Decision.Held()
	return reason
}

// mutual is a server with a certificate for "hook" that asks for one, and the
// names that it sees, one per request.
func mutual(t *testing.T, a *authority) (*httptest.Server, <-chan string) {
	seen := make(chan string, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.TLS.PeerCertificates[0].Subject.CommonName
		holds("a").ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{*a.pair(t, "hook", forAnHour)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: a.Pool(),
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, seen
}

// https is a gate whose hook has a certificate of a for "hook".
func https(name, url string, a *authority, secret string) *v1alpha1.AdmissionGate {
	return gateWith(name, "", func(h *v1alpha1.Hook) {
		h.Endpoint = v1alpha1.Endpoint{URL: url, CABundle: a.PEM(), ServerName: "hook", ClientCertificateSecret: secret}
	})
}

// A hook that hangs for its whole timeout on every call delays nobody of another
// gate: all of those are answered before any of its own.
func TestIsolation(t *testing.T) {
	hung, well := socket(t), socket(t)
	called := make(chan struct{}, 10)
	serve(t, hung, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection is not noticed
		called <- struct{}{}
		<-r.Context().Done()
	}))
	serve(t, well, holds("freeze"))
	f := newFixture(t, concurrency(2))
	f.configure(gateWith("hung", hung, timeout(30*time.Second)))
	f.configure(gateWith("well", well, timeout(30*time.Second)))
	for i := range 10 {
		f.ask("hung", fmt.Sprint("hung ", i))
	}
	<-called
	<-called
	for i := range 50 {
		if o := f.askAndWait("well", fmt.Sprint("well ", i)); reasonOf(o) != "freeze" {
			t.Errorf("got %+v", o)
		}
	}
	f.wantWoken()
	for i := range 10 {
		f.without(fmt.Sprint("hung ", i), true)
	}
	if len(called) != 0 {
		t.Error("the hook that hangs was called more than twice at once")
	}
}

// A sidecar may start after the controller, stop, and come back.
func TestSocketComesAndGoes(t *testing.T) {
	path := socket(t)
	f := newFixture(t)
	f.configure(gateWith("policy", path, breaker(1000, time.Second)))
	last := func(offer, reason, text string) {
		t.Helper()
		if got := reasonOf(f.askAndWait("policy", offer)); got != reason {
			t.Errorf("%s: got %s, want %s", offer, got, reason)
		}
		if s := f.State("policy"); s.LastError != text {
			t.Errorf("%s: last error %q, want %q", offer, s.LastError, text)
		}
	}
	last("missing", "Error", "dial unix "+path+": no such file or directory")
	first := serve(t, path, holds("first"))
	last("there", "first", "")
	first.Close()
	last("left behind", "Error", "dial unix "+path+": connection refused")
	serve(t, path, holds("second"))
	last("back", "second", "")
}

// A socket may be replaced while the connections to the old one live on. The first
// call that fails is the last one that they see.
func TestSocketIsReplaced(t *testing.T) {
	tests := map[string]struct {
		dying http.HandlerFunc // what the old server does from then on
		cause string
	}{
		"Error": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusInternalServerError)
		}, "Error"},
		"Hang": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, "Timeout"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			dead := make(chan struct{})
			serve(t, path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-dead:
					tc.dying(w, r)
				default:
					holds("old").ServeHTTP(w, r)
				}
			}))
			f := newFixture(t)
			f.configure(gateWith("policy", path, timeout(100*time.Millisecond), breaker(1000, time.Second)))
			f.askAndWait("policy", "a")
			close(dead)
			serve(t, path, holds("new"))
			var got []string
			for _, offer := range []string{"b", "c", "d"} {
				got = append(got, reasonOf(f.askAndWait("policy", offer)))
			}
			if want := []string{tc.cause, "new", "new"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestClose: whatever is going on, nothing is left.
func TestClose(t *testing.T) {
	hung, well := socket(t), socket(t)
	called := make(chan struct{}, 100)
	serve(t, hung, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		called <- struct{}{}
		<-r.Context().Done()
	}))
	serve(t, well, holds("freeze"))
	before := runtime.NumGoroutine()
	f := newFixture(t)
	f.configure(gateWith("hung", hung, timeout(30*time.Second)))
	f.configure(gateWith("well", well))
	f.configure(gateWith("missing", hung+"-missing"))
	for i := range 50 {
		f.ask("hung", fmt.Sprint("hung ", i))
		f.ask("missing", fmt.Sprint("missing ", i))
		f.ask("well", fmt.Sprint("well ", i))
	}
	for range 16 {
		<-called
	}
	f.askAndWait("well", "last")
	f.Close()
	f.Close()
	woken := len(f.woken)
	f.ask("well", "after")
	f.without("after", false)
	f.without("hung 1", false)
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before })
	if n := len(f.woken); n != woken {
		t.Errorf("%d were woken after Close", n-woken)
	}
}

// waitFor waits for what has no event. The end of the goroutines of a connection
// is all that it is for.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !done() {
		if ctx.Err() != nil {
			stacks := make([]byte, 1<<16)
			t.Fatalf("still running:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(time.Millisecond)
	}
}
