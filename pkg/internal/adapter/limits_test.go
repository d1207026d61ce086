package adapter

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

const header = "POST /v1/admit HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"

func (f folder) dial(t *testing.T) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// answer returns the status of the answer, 0 if the connection ends without one.
func answer(t *testing.T, conn net.Conn) int {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestSlow: who sends slowly, or reads slowly, loses his connection. The limits
// are shorter than those of production by the same factor.
func TestSlow(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	brief := quick
	brief.header, brief.read, brief.write, brief.idle = 500*time.Millisecond, time.Second, 10*time.Second, time.Second
	start(t, Options{Config: f.config(), timing: brief})
	trickle := func(conn net.Conn, text string) {
		for i := range text {
			if _, err := io.WriteString(conn, text[i:i+1]); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	for name, tc := range map[string]struct {
		begin, rest string
		answered    bool // with a decision; the end may overtake a status that says why
	}{
		"Header":  {"", header, false},
		"Body":    {header + "Content-Length: 100\r\n\r\n{", strings.Repeat(" ", 100), false},
		"Chunks":  {header + "Transfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\n \r\n", 50), false},
		"Nothing": {"", "", false},
		"Idle":    {header + "Content-Length: 2\r\n\r\n{}", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := f.dial(t)
			say(t, conn, tc.begin)
			go trickle(conn, tc.rest)
			if status := answer(t, conn); (status == 200) != tc.answered {
				t.Errorf("status %d", status)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("the connection stays: %v", err)
			}
		})
	}
}

// TestSlowHandshake: where strangers can connect, one who does not even begin to
// speak TLS loses his connection as well, and is in nobody's way until then.
func TestSlowHandshake(t *testing.T) {
	t.Parallel()
	f, a := newFolder(t), newAuthority(t)
	f.secure(t, a, a, refusing("first"))
	brief := quick
	brief.header = 500 * time.Millisecond
	r := start(t, Options{Config: f.config(), timing: brief})
	var conns []net.Conn
	for range 1000 {
		conn, err := net.Dial("tcp", r.address(listenerHTTPS))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	if err := r.ask(a.client(t, a)); err != nil {
		t.Errorf("beside them: %v", err)
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatalf("the connection stays: %v", err)
		}
	}
}

func TestOversized(t *testing.T) {
	f := newFolder(t)
	start(t, Options{Config: f.config()})
	c := f.client(t)
	for name, tc := range map[string]struct {
		text   string
		status int
	}{
		"Header":   {header + "X: " + strings.Repeat("x", maxHeader+8192) + "\r\n\r\n", 431},
		"Headers":  {header + strings.Repeat("X: x\r\n", maxHeader/4) + "\r\n", 431},
		"Line":     {"POST /" + strings.Repeat("x", maxHeader+8192) + " HTTP/1.1\r\nHost: a\r\n\r\n", 431},
		"Length":   {header + "Content-Length: 1048577\r\n\r\n" + strings.Repeat(" ", 1<<20+1), 413},
		"Claim":    {header + "Content-Length: 999999999999\r\n\r\n" + strings.Repeat(" ", 1<<20+1), 413},
		"Chunks":   {header + "Transfer-Encoding: chunked\r\n\r\n100001\r\n" + strings.Repeat(" ", 1<<20+1) + "\r\n0\r\n\r\n", 413},
		"Both":     {header + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200}, // the chunks count
		"Garbage":  {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
		"HTTP2":    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404},
		"Options":  {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 404},
		"Connect":  {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 404},
		"Deep":     {body(strings.Repeat("[", 200_000)), 400},
		"Pipeline": {body("{}") + body("{}"), 200},
	} {
		t.Run(name, func(t *testing.T) {
			conn := f.dial(t)
			go func() { _, _ = io.WriteString(conn, tc.text) }() // the server may stop reading
			if status := answer(t, conn); status != tc.status {
				t.Errorf("status %d, want %d", status, tc.status)
			}
			if !refuses(t, c, "first") {
				t.Error("not served any more")
			}
		})
	}
}

func body(text string) string {
	return header + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(text), text)
}

// TestHalfClosed: who has said all and only listens gets his answer.
func TestHalfClosed(t *testing.T) {
	f := newFolder(t)
	start(t, Options{Config: f.config()})
	conn := f.dial(t)
	say(t, conn, body("{}"))
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if status := answer(t, conn); status != 200 {
		t.Errorf("status %d", status)
	}
	cut := f.dial(t)
	say(t, cut, header+"Content-Length: 100\r\n\r\n{")
	if err := cut.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if status := answer(t, cut); status != 400 {
		t.Errorf("half a request: status %d", status)
	}
}

// TestManyIdle: a thousand callers who keep their connections are in nobody's
// way, and each of them is still served.
func TestManyIdle(t *testing.T) {
	f := newFolder(t)
	start(t, Options{Config: f.config()})
	var conns []*net.UnixConn
	for range 1000 {
		conn := f.dial(t)
		say(t, conn, body("{}"))
		if status := answer(t, conn); status != 200 {
			t.Fatalf("status %d", status)
		}
		conns = append(conns, conn)
	}
	if !refuses(t, f.client(t), "first") {
		t.Error("not served")
	}
	for _, conn := range conns {
		say(t, conn, body("{}"))
		if status := answer(t, conn); status != 200 {
			t.Fatalf("later: status %d", status)
		}
	}
}

// TestManyConnections: beyond the limit a connection ends at once, and there is
// room again when others end.
func TestManyConnections(t *testing.T) {
	f := newFolder(t)
	few := quick
	few.connections = 3
	r := start(t, Options{Config: f.config(), timing: few})
	var conns []*net.UnixConn
	for range 3 {
		conn := f.dial(t)
		say(t, conn, body("{}"))
		if status := answer(t, conn); status != 200 {
			t.Fatalf("status %d", status)
		}
		conns = append(conns, conn)
	}
	conn := f.dial(t)
	if status := answer(t, conn); status != 0 {
		t.Errorf("one too many: status %d", status)
	}
	r.wantMetric(t, `dispatch_hook_connections_refused_total{listener="unixSocket"}`, "1")
	_ = conns[0].Close()
	until(t, "there is room again", func() bool {
		conn := f.dial(t)
		defer conn.Close()
		_, _ = io.WriteString(conn, body("{}"))
		return answer(t, conn) == 200
	})
}

// TestManyRequests: beyond the limit a request is answered at once, without the
// hook; probes always are. That is what is left when a hook hangs.
func TestManyRequests(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen())
	few := quick
	few.requests = 2
	var inside atomic.Int64
	release := make(chan struct{})
	r := start(t, Options{Config: f.config(), timing: few, Hook: admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		inside.Add(1)
		<-release
		return admission.Refuse("late"), nil
	})})
	var waiting []*net.UnixConn
	for range 2 {
		conn := f.dial(t)
		say(t, conn, body("{}"))
		waiting = append(waiting, conn)
	}
	until(t, "the hook is busy", func() bool { return inside.Load() == 2 })
	c := f.plain(t)
	if status, text := post(t, c, "/v1/admit", "{}"); status != 503 || !strings.Contains(text, "2 requests are being answered") {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := fetch(t, c, "http://localhost/readyz"); status != 200 {
		t.Errorf("/readyz: %d", status)
	}
	r.wantMetric(t, `dispatch_hook_requests_total{endpoint="admit",result="Overload"}`, "1")
	r.wantMetric(t, `dispatch_hook_requests_in_flight{endpoint="admit"}`, "2")
	close(release)
	for _, conn := range waiting {
		if status := answer(t, conn); status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if !refuses(t, f.client(t), "late") {
		t.Error("there is no room again")
	}
}

// TestDeadline: the time of the hook is that of its caller.
func TestDeadline(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen())
	left := make(chan time.Duration, 1)
	start(t, Options{Config: f.config(), Hook: admission.HookFunc(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return admission.Admit(), nil
	})})
	c := f.plain(t)
	for given, most := range map[string]time.Duration{"200": 200 * time.Millisecond, "60000": maxDeadline, "": maxDeadline} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/v1/admit", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if given != "" {
			req.Header.Set(httphook.TimeoutHeader, given)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := <-left; got > most || got < most-5*time.Second {
			t.Errorf("%q: %s are left, want at most %s", given, got, most)
		}
	}
}

// TestPanics: a hook that panics, or ends its goroutine, costs one answer.
func TestPanics(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen())
	fake := hooktest.NewFake(hooktest.Panic("broken"), hooktest.Answer(admission.Refuse("fine")))
	r := start(t, Options{Config: f.config(), Hook: fake})
	if status, text := post(t, f.plain(t), "/v1/admit", "{}"); status != 500 || !strings.Contains(text, "the hook panicked: broken") || strings.Contains(text, "goroutine") {
		t.Errorf("%d %s", status, text)
	}
	if !refuses(t, f.client(t), "fine") {
		t.Error("not served any more")
	}
	if r.logs.count("limits_test.go") == 0 && r.logs.count("fake.go") == 0 {
		t.Errorf("the log has no stack:\n%s", r.logs)
	}
}
