package adapter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
)

// The labels of listeners.
const (
	listenerUnix  = "unixSocket"
	listenerHTTPS = "https"
)

// bounded accepts a number of connections at once and closes those beyond, whose
// callers then know at once, instead of waiting for their time to pass.
type bounded struct {
	net.Listener
	slots   chan struct{}
	refused prometheus.Counter
}

// Accept returns the next connection that there is room for.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.slots <- struct{}{}:
			return &slotted{Conn: conn, free: sync.OnceFunc(func() { <-b.slots })}, nil
		default:
			b.refused.Inc()
			_ = conn.Close() // nothing was said
		}
	}
}

// slotted is a connection that gives its place back.
type slotted struct {
	net.Conn
	free func()
}

// Close closes the connection.
func (s *slotted) Close() error {
	s.free()
	return s.Conn.Close()
}

// listener is where a server listens.
type listener struct {
	net.Listener
	name    string // the label of metrics
	address string // for people
}

// listen opens what the configuration names. The error names everything that
// cannot be opened.
func (k *keeper) listen(ctx context.Context) ([]listener, error) {
	var listeners []listener
	var problems []error
	c := k.started
	if path := c.UnixSocket; path != "" {
		s, err := listenUnix(ctx, path)
		if err != nil {
			problems = append(problems, k.problem(fieldSocket, err))
		} else {
			listeners = append(listeners, listener{k.bound(s, listenerUnix), listenerUnix, "unix:" + path})
		}
	}
	if h := c.HTTPS; h != nil {
		tcp, err := listenTCP(ctx, h.Address)
		if err != nil {
			problems = append(problems, k.problem(fieldAddress, err))
		} else {
			secure := tls.NewListener(k.bound(tcp, listenerHTTPS), k.tls())
			listeners = append(listeners, listener{secure, listenerHTTPS, "https://" + tcp.Addr().String()})
		}
	}
	if len(problems) == 0 {
		return listeners, nil
	}
	for _, l := range listeners {
		problems = append(problems, l.Close())
	}
	return nil, errors.Join(problems...)
}

// problem names the field that err is about.
func (k *keeper) problem(field string, err error) error {
	d := &document{file: k.options.Config}
	d.problem(k.started.lines[field], field, "%v", err)
	return d.err()
}

func (k *keeper) bound(l net.Listener, name string) net.Listener {
	refused := k.metrics.refused.WithLabelValues(name)
	return &bounded{Listener: l, slots: make(chan struct{}, k.timing.connections), refused: refused}
}

// tls takes the certificates that are in force when a connection begins.
func (k *keeper) tls() *tls.Config {
	config := baseTLS()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.identity.Load().config, nil }
	return config
}

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%q is in use; stop the other process, or choose another port", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%q needs a privilege; choose a port above 1023", address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%q is no address of this machine; leave the host out to listen on all", address)
	case err != nil:
		return nil, fmt.Errorf("%q: %s", address, strings.TrimPrefix(err.Error(), "listen tcp: "))
	}
	return l, nil
}
