package adapter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// quick makes tests of reloads fast; everything else is as in production.
var quick = timing{poll: time.Hour, settle: time.Millisecond, notice: time.Millisecond}

// logs is a log to look into.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logs) count(text string) int { return strings.Count(l.String(), text) }

// running is an adapter that serves.
type running struct {
	*adapter
	logs   *logs
	cancel context.CancelFunc
	ended  chan error
}

// start runs an adapter until the end of the test.
func start(tb testing.TB, o Options) *running {
	tb.Helper()
	r := &running{logs: &logs{}, ended: make(chan error, 1)}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if o.MetricsAddress == "" {
		o.MetricsAddress = "127.0.0.1:0"
	}
	if o.timing == (timing{}) {
		o.timing = quick
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	if r.adapter, err = open(ctx, o); err != nil {
		r.cancel()
		tb.Fatal(err)
	}
	go func() { r.ended <- r.run(ctx) }()
	tb.Cleanup(func() {
		r.cancel()
		if err := r.wait(tb); err != nil {
			tb.Errorf("ended with %v", err)
		}
	})
	return r
}

// wait returns what the adapter ended with, as often as it is asked.
func (r *running) wait(tb testing.TB) error {
	tb.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(time.Minute):
		tb.Fatal("the adapter does not end")
		return nil
	}
}

// address returns host:port of the probes or of a listener.
func (r *running) address(name string) string {
	for _, s := range r.all() {
		if s.name == name {
			return s.listener.Addr().String()
		}
	}
	return ""
}

// get returns the status and the body of a path on the address of the probes.
func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	return fetch(t, http.DefaultClient, "http://"+r.address("metrics")+path)
}

func fetch(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// until waits for something that happens in the background.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// folder holds a configuration with a socket and a policy that refuses.
type folder struct{ dir string }

func newFolder(tb testing.TB) folder {
	tb.Helper()
	f := folder{tb.TempDir()}
	f.refuse(tb, "first")
	return f
}

func (f folder) path(name string) string { return filepath.Join(f.dir, name) }
func (f folder) config() string          { return f.path("config.yaml") }
func (f folder) socket() string          { return f.path("s") }

// write replaces a file at once, the way of everybody who knows of readers.
func (f folder) write(tb testing.TB, name, text string) {
	tb.Helper()
	if err := os.WriteFile(f.path("new"), []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(f.path("new"), f.path(name)); err != nil {
		tb.Fatal(err)
	}
}

// refuse writes a configuration by which everything is refused.
func (f folder) refuse(tb testing.TB, reason string) {
	tb.Helper()
	f.write(tb, "config.yaml", f.listen()+refusing(reason))
}

// listen is the beginning of a configuration.
func (f folder) listen() string { return "listen: {unixSocket: " + f.socket() + "}\n" }

func refusing(reason string) string { return "policy: {" + ruleOf(reason) + "}\n" }

// ruleOf is a policy as it stands in a file of its own.
func ruleOf(reason string) string { return fmt.Sprintf("rules: [{name: one, refuse: %q}]", reason) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// client asks at the socket.
func (f folder) client(tb testing.TB) *httphook.Client {
	tb.Helper()
	c, err := httphook.NewClient(httphook.Config{UnixSocket: f.socket()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// plain is an HTTP client for the socket.
func (f folder) plain(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", f.socket())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// decide asks and wants a decision.
func decide(t *testing.T, hook admission.Hook) admission.Decision {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	d, err := hook.Admit(ctx, &admission.Request{TenantID: "a", DagID: "b", TryNumber: 1})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// refuses tells whether the hook refuses with the reason.
func refuses(t *testing.T, hook admission.Hook, want string) bool {
	t.Helper()
	reason, _ := decide(t, hook).Refused()
	return reason == want
}

func hookOf(d admission.Decision) admission.Hook {
	return admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) { return d, nil })
}

// metric returns the value of a series, "" if it is not there.
func (r *running) metric(t *testing.T, series string) string {
	t.Helper()
	_, text := r.get(t, "/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (r *running) wantMetric(t *testing.T, series, want string) {
	t.Helper()
	if got := r.metric(t, series); got != want {
		t.Errorf("%s is %q, want %s", series, got, want)
	}
}
