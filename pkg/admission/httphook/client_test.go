package httphook

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

const admitJSON = `{"decision":"Admit"}`

func newClient(t *testing.T, c Config) *Client {
	t.Helper()
	client, err := NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestNoVerdict(t *testing.T) {
	big := strings.Repeat(" ", MaxBytes)
	tests := map[string]struct {
		reason  string
		handler http.Handler
		kind    Kind // empty means a verdict
		status  int
	}{
		"Verdict":       {"the plain answer is one", raw(200, "application/json", admitJSON), "", 0},
		"Charset":       {"the charset that JSON has may be said", raw(200, "Application/JSON; charset=UTF-8", admitJSON), "", 0},
		"LargestAnswer": {"the limit itself fits", raw(200, "application/json", admitJSON+big[len(admitJSON):]), "", 0},
		"Created":       {"only 200 is an answer", raw(201, "application/json", admitJSON), KindStatus, 201},
		"Forbidden":     {"403 is not a refusal", raw(403, "application/json", `{"decision":"Refuse"}`), KindStatus, 403},
		"Unavailable":   {"a server in trouble", raw(503, "text/plain", "later"), KindStatus, 503},
		"Timeout":       {"the server noticed first", raw(504, "text/plain", ""), KindTimeout, 504},
		"Redirect":      {"redirects are not followed", http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect), KindStatus, 307},
		"NoContent":     {"nothing is not an answer", raw(204, "application/json", ""), KindStatus, 204},
		"HTML":          {"a login page is not an answer", raw(200, "text/html", admitJSON), KindContentType, 200},
		"NoContentType": {"a server must say what it sends", raw(200, "", admitJSON), KindContentType, 200},
		"Latin1":        {"JSON is UTF-8", raw(200, "application/json; charset=latin1", admitJSON), KindContentType, 200},
		"TooLarge":      {"a byte above the limit", raw(200, "application/json", admitJSON+big), KindTooLarge, 200},
		"Empty":         {"an empty body is cut off", raw(200, "application/json", ""), KindMalformed, 200},
		"Garbage":       {"no JSON", raw(200, "application/json", "Admit"), KindMalformed, 200},
		"Unknown":       {"a decision of a later version", raw(200, "application/json", `{"decision":"Wait"}`), KindUnknownDecision, 200},
		"None":          {"no decision at all", raw(200, "application/json", `{}`), KindUnknownDecision, 200},
		"Chunked":       {"a length that nobody gave is limited too", chunked(10 << 20), KindTooLarge, 200},
		"Cut":           {"an answer that breaks off", cutOff(), KindConnection, 200},
		"Dropped":       {"a connection that breaks off", dropped(), KindConnection, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.handler)
			defer server.Close()
			d, err := newClient(t, Config{URL: server.URL}).Admit(t.Context(), &admission.Request{})
			if KindOf(err) != tc.kind || (err == nil) != (tc.kind == "") {
				t.Fatalf("%s: got %v, %v", tc.reason, d, err)
			}
			var e *Error
			if errors.As(err, &e) && e.Status != tc.status {
				t.Errorf("status %d, want %d", e.Status, tc.status)
			}
			if !d.Equal(admission.Admit()) {
				t.Errorf("an error came with %v", d)
			}
		})
	}
}

func chunked(size int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		block := []byte(strings.Repeat(" ", 64<<10))
		for range size / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
}

func cutOff() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte(admitJSON))
	})
}

func dropped() http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

func TestQuotesTheServer(t *testing.T) {
	server := httptest.NewServer(raw(503, "text/plain", strings.Repeat("later\n", 1000)))
	defer server.Close()
	_, err := newClient(t, Config{URL: server.URL}).Admit(t.Context(), &admission.Request{})
	if text := err.Error(); !strings.Contains(text, `later\nlater`) || len(text) > 2*maxQuoted {
		t.Errorf("got %s", text)
	}
}

func TestRefusedConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	_, err = newClient(t, Config{URL: "http://" + address}).Admit(t.Context(), &admission.Request{})
	if KindOf(err) != KindConnection || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	_, err = newClient(t, Config{UnixSocket: filepath.Join(t.TempDir(), "none")}).Admit(t.Context(), &admission.Request{})
	if KindOf(err) != KindConnection || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("got %v", err)
	}
}

// flood is an endless body that counts what is read of it.
type flood struct{ read int }

func (f *flood) Read(p []byte) (int, error) {
	if f.read > 8*MaxBytes {
		return 0, io.EOF // for the reader without a limit
	}
	f.read += len(p)
	return len(p), nil
}

func (*flood) Close() error { return nil }

func TestReadsNoMoreThanItMust(t *testing.T) {
	for status, most := range map[int]int{200: MaxBytes + 1, 503: maxQuoted} {
		body := &flood{}
		_, e := readAnswer(t.Context(), &http.Response{
			StatusCode: status, Header: http.Header{"Content-Type": {contentType}}, Body: body, ContentLength: -1,
		})
		if e == nil || body.read > most {
			t.Errorf("status %d: read %d bytes, %v", status, body.read, e)
		}
	}
}

func TestTimeoutHeader(t *testing.T) {
	tests := map[string]struct {
		left time.Duration
		want int64
	}{
		"Exact":  {2 * time.Second, 2000},
		"Up":     {2*time.Second + 1, 2001},
		"Least":  {1, 1},
		"Passed": {-time.Hour, 1},
		"Most":   {maxTimeout, 1<<32 - 1},
		"Above":  {maxTimeout + 1, 1<<32 - 1},
		"Ever":   {1<<63 - 1, 1<<32 - 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := milliseconds(tc.left); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

// The handler refuses no time that a client sends.
func TestFarDeadline(t *testing.T) {
	server := httptest.NewServer(Handler(hookOf(admission.Hold("a"), nil)))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*365*24*time.Hour)
	defer cancel()
	if d, err := newClient(t, Config{URL: server.URL}).Admit(ctx, &admission.Request{}); err != nil {
		t.Errorf("got %v, %v", d, err)
	}
}

// 200 KiB of text that json.Marshal would escape to 1.2 MiB.
func TestLargestText(t *testing.T) {
	server := httptest.NewServer(Handler(admission.HookFunc(func(_ context.Context, r *admission.Request) (admission.Decision, error) {
		return admission.AdmitWith(admission.Changes{Annotations: r.Execution.Annotations}), nil
	})))
	defer server.Close()
	client := newClient(t, Config{URL: server.URL})
	annotations := map[string]string{"a": strings.Repeat("<", 200<<10)}
	d, err := client.Admit(t.Context(), &admission.Request{Execution: admission.Execution{Annotations: annotations}})
	if err != nil || !d.Equal(admission.AdmitWith(admission.Changes{Annotations: annotations})) {
		t.Errorf("got %.100s, %v", d, err)
	}
	annotations["a"] = strings.Repeat("\x01", 200<<10) // has no shorter form
	_, err = client.Admit(t.Context(), &admission.Request{Execution: admission.Execution{Annotations: annotations}})
	if KindOf(err) != KindRequest {
		t.Errorf("got %v", err)
	}
}

func TestRequestTooLarge(t *testing.T) {
	client := newClient(t, Config{UnixSocket: "/never-dialled"})
	_, err := client.Admit(t.Context(), &admission.Request{Image: strings.Repeat("x", MaxBytes)})
	if KindOf(err) != KindRequest {
		t.Errorf("got %v", err)
	}
	_, err = client.Admit(t.Context(), &admission.Request{CreationTime: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)})
	if KindOf(err) != KindRequest {
		t.Errorf("got %v", err)
	}
}

func TestDeadlines(t *testing.T) {
	tests := map[string]struct {
		reason string
		limit  time.Duration // of the client's context, 0 for none
		cancel time.Duration // when the client gives up, 0 for never
		kind   Kind
		took   time.Duration
		told   time.Duration // what the hook saw
	}{
		"Deadline": {"the deadline of the context travels", 2 * time.Second, 0, KindTimeout, 2 * time.Second, 2 * time.Second},
		"None":     {"without one there is a default", 0, 0, KindTimeout, DefaultTimeout, DefaultTimeout},
		"Rounded":  {"less than a millisecond is told as one", time.Microsecond, 0, KindTimeout, time.Microsecond, time.Millisecond},
		"Canceled": {"giving up is not a timeout", 2 * time.Second, time.Second, KindCanceled, time.Second, 2 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var told time.Duration
			ended := make(chan struct{}, 1)
			hook := admission.HookFunc(func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
				deadline, _ := ctx.Deadline()
				told = time.Until(deadline)
				<-ctx.Done()
				ended <- struct{}{}
				return admission.Admit(), ctx.Err()
			})
			inBubble(t, Handler(hook), func(t *testing.T, c *Client, _ *pipe) {
				ended = make(chan struct{}, 1)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if tc.limit > 0 {
					ctx, stop = context.WithTimeout(ctx, tc.limit)
					defer stop()
				}
				if tc.cancel > 0 {
					time.AfterFunc(tc.cancel, stop)
				}
				start := time.Now()
				_, err := c.Admit(ctx, &admission.Request{})
				if took := time.Since(start); KindOf(err) != tc.kind || took != tc.took {
					t.Errorf("%s: %v after %v", tc.reason, err, took)
				}
				if late := errors.Is(err, context.DeadlineExceeded); late != (tc.kind == KindTimeout) {
					t.Errorf("%s: %v is a passed deadline: %t", tc.reason, err, late)
				}
				<-ended // the hook's context ended with the client's
				if told != tc.told {
					t.Errorf("%s: the hook had %v", tc.reason, told)
				}
			})
		})
	}
}

func TestConnectionReuse(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(Handler(hookOf(admission.Hold("freeze"), nil)))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	client := newClient(t, Config{URL: server.URL})
	for range 20 {
		if _, err := client.Admit(t.Context(), &admission.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for 20 requests", n)
	}
}

// A server may close an idle connection at the very moment it is used again.
func TestRetryOnClosedIdleConnection(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	var conns atomic.Int32
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serveTwo(conn, conns.Add(1) == 1)
		}
	}()
	defer listener.Close()
	client := newClient(t, Config{UnixSocket: listener.Addr().String()})
	for i := range 2 {
		if _, err := client.Admit(t.Context(), &admission.Request{}); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections, want a second one for the repeated request", n)
	}
}

// All idle connections break: one Admit asks twice and not once for each.
func TestRepeatsOnce(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const idle = 5
	var conns, requests atomic.Int32
	together := make(chan struct{}) // closed when all connections have a request
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serveOne(conn, &requests, func() {
					if conns.Add(1) == idle {
						close(together)
					}
					<-together
				})
				if n, _ := conn.Read(make([]byte, 64<<10)); n > 0 {
					requests.Add(1)
				}
			}()
		}
	}()
	client := newClient(t, Config{UnixSocket: listener.Addr().String()})
	var group sync.WaitGroup
	for range idle {
		group.Go(func() {
			if _, err := client.Admit(t.Context(), &admission.Request{}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	requests.Store(0)
	_, err = client.Admit(t.Context(), &admission.Request{})
	if n := requests.Load(); KindOf(err) != KindConnection || !errors.Is(err, errBrokeTwice) || n != 2 {
		t.Errorf("%d requests, %v", n, err)
	}
}

// serveOne reads a request, waits, and admits.
func serveOne(conn net.Conn, requests *atomic.Int32, wait func()) {
	if _, err := conn.Read(make([]byte, 64<<10)); err != nil {
		return
	}
	requests.Add(1)
	wait()
	_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n" + admitJSON))
}

// serveTwo answers one request; it reads a second one and hangs up on the
// first connection, and answers it on others.
func serveTwo(conn net.Conn, hangUp bool) {
	defer conn.Close()
	buf := make([]byte, 64<<10)
	for i := range 2 {
		if _, err := conn.Read(buf); err != nil || i == 1 && hangUp {
			return
		}
		answer := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n" + admitJSON
		if _, err := conn.Write([]byte(answer)); err != nil {
			return
		}
	}
}
