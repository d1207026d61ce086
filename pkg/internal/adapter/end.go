package adapter

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// end lets the requests that are under way be answered and stops. Who asks
// whether to send more is told first, and has a moment to go elsewhere; a socket
// has nobody to go to.
func (a *adapter) end(running context.Context) {
	a.health.draining.Store(true)
	a.log.Info("stopping")
	for _, s := range a.servers {
		s.SetKeepAlivesEnabled(false)
	}
	if slices.ContainsFunc(a.servers, func(s server) bool { return s.name == listenerHTTPS }) {
		time.Sleep(a.timing.notice)
	}
	ctx, cancel := context.WithTimeout(running, a.timing.drain)
	defer cancel()
	var group sync.WaitGroup
	for _, s := range a.servers {
		group.Go(func() { a.shutdown(ctx, s) })
	}
	group.Wait()
	if a.probes != nil {
		_ = a.probes.Close() // scrapes are repeated
	}
	a.log.Info("stopped")
}

// shutdown waits for the requests, but not for hooks that have outlived their
// deadline.
func (a *adapter) shutdown(ctx context.Context, s server) {
	if err := s.Shutdown(ctx); err != nil {
		a.log.Error("requests were not answered in time", "listener", s.address, "error", err)
		_ = s.Close() // what is left ends with it
	}
}

// dismiss ends connections whose clients were let in by authorities that may be
// gone: idle ones at once, the others after the answer that they wait for.
func (a *adapter) dismiss(s *http.Server) {
	s.SetKeepAlivesEnabled(false)
	if a.keepAgain != nil {
		a.keepAgain.Stop()
	}
	// By then every request has ended that was under way.
	a.keepAgain = time.AfterFunc(a.timing.write, func() {
		if !a.health.draining.Load() {
			s.SetKeepAlivesEnabled(true)
		}
	})
	a.log.Info("the authorities of clients have changed; their connections begin anew")
}

// complaints sorts what net/http says. A handshake that fails is the client's
// affair, and so is a probe of the port: neither may fill the log.
type complaints struct{ slog.Handler }

// Enabled lets all pass, for Handle to sort.
func (c complaints) Enabled(context.Context, slog.Level) bool { return true }

// Handle passes the record on with the level that it deserves.
func (c complaints) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case strings.HasPrefix(r.Message, "http: TLS handshake error"):
		r.Level = slog.LevelDebug
	case strings.HasPrefix(r.Message, "http: panic"):
		r.Level = slog.LevelError
	}
	if !c.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}
