package httphook

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// pipe is a listener whose connections stay in memory, so that a whole
// exchange runs on the clock of a synctest bubble.
type pipe struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once

	mu             sync.Mutex
	sent, received bytes.Buffer // as the client sees them
}

func newPipe() *pipe {
	return &pipe{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipe) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.conns <- server
	return &recorded{client, p}, nil
}

type recorded struct {
	net.Conn
	p *pipe
}

func (r *recorded) Write(b []byte) (int, error) {
	r.p.mu.Lock()
	r.p.sent.Write(b)
	r.p.mu.Unlock()
	return r.Conn.Write(b)
}

func (r *recorded) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.p.mu.Lock()
	r.p.received.Write(b[:n])
	r.p.mu.Unlock()
	return n, err
}

// inBubble runs f in a synctest bubble with a client whose server is handler.
func inBubble(t *testing.T, handler http.Handler, f func(t *testing.T, c *Client, p *pipe)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		server := &http.Server{Handler: handler}
		go func() { _ = server.Serve(p) }()
		c, err := NewClient(Config{UnixSocket: "/pipe"})
		if err != nil {
			t.Fatal(err)
		}
		c.transport.DialContext = p.dial
		f(t, c, p)
		c.Close()
		_ = server.Close()
		synctest.Wait()
	})
}

// hookOf is a hook that always gives d and err.
func hookOf(d admission.Decision, err error) admission.Hook {
	return admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		return d, err
	})
}

// raw answers every request with the given parts.
func raw(status int, contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}
