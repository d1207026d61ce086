package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Options are what an adapter is made from. Config, MetricsAddress and Log must
// be set.
type Options struct {
	// Config is the path of the configuration file.
	Config string

	// MetricsAddress is host:port for metrics and probes, "0" for none.
	MetricsAddress string

	// Hook decides in place of the policy of the configuration, which must
	// then have none. Nil means the policy.
	Hook admission.Hook

	// Start makes the start gate. It is called if the configuration has kueue,
	// which is an error without it.
	Start Start

	Log *slog.Logger

	timing timing // of tests; what is zero is the default
}

// Start makes a start gate that looks at the cluster as k says, and then asks
// policy.
type Start func(k Kueue, policy admission.Hook) (StartGate, error)

// StartGate is the hook that is asked before work is created.
type StartGate interface {
	admission.Hook

	// Run watches the cluster until ctx ends, and returns nil then.
	Run(ctx context.Context) error

	// Ready returns nil once the gate has seen the cluster, else what it waits
	// for.
	Ready() error
}

// timing is how long things take, and how many there may be.
type timing struct {
	poll   time.Duration // between looks at the files without a reason
	settle time.Duration // between two readings that must be the same

	header, read, write, idle time.Duration // of a connection

	requests    int // of a listener at once
	connections int // of a listener

	notice time.Duration // between not being ready and the end of listening
	drain  time.Duration // for requests to be answered after that
}

func (t timing) orDefault() timing {
	d := func(v *time.Duration, is time.Duration) {
		if *v == 0 {
			*v = is
		}
	}
	d(&t.poll, 10*time.Second)
	d(&t.settle, 100*time.Millisecond)
	d(&t.header, 5*time.Second)
	d(&t.read, 10*time.Second)
	d(&t.write, maxDeadline+20*time.Second) // the body, the hook, and the answer
	d(&t.idle, 2*time.Minute)               // the client closes first, after 90s
	d(&t.notice, 3*time.Second)
	d(&t.drain, maxDeadline)
	if t.requests == 0 {
		t.requests = 512
	}
	if t.connections == 0 {
		t.connections = 4096
	}
	return t
}

// maxHeader is what the header of a request may have. Those of the contract have
// a few hundred bytes.
const maxHeader = 64 << 10

// Check reports what is wrong with everything that Run would read: the
// configuration, the policy and the certificates. It opens nothing.
func Check(o Options) error {
	_, err := newKeeper(o, newMetrics())
	return err
}

// server is an http.Server and where it listens.
type server struct {
	*http.Server
	listener
}

// adapter is everything that runs.
type adapter struct {
	*keeper
	health  *health
	servers []server
	probes  *server // nil when they are off

	// keepAgain is when connections are kept again that dismiss ended.
	keepAgain *time.Timer
}

// Run serves until ctx ends, and then until the requests are answered that are
// under way. It returns nil when ctx ended it.
func Run(ctx context.Context, o Options) error {
	a, err := open(ctx, o)
	switch {
	case err == nil:
		return a.run(ctx)
	case ctx.Err() == nil:
		return err
	}
	return nil // asked to stop before it had begun
}

// open loads everything, and listens.
func open(ctx context.Context, o Options) (*adapter, error) {
	keeper, err := newKeeper(o, newMetrics())
	if err != nil {
		return nil, err
	}
	a := &adapter{keeper: keeper, health: &health{keeper: keeper}}
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// run serves and waits for everything that it started.
func (a *adapter) run(ctx context.Context) error {
	// What runs ends when the last request has been answered, later than ctx.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel() // before the wait
	background.Go(func() { a.watch(running) })

	failed := make(chan error, len(a.servers)+2)
	if gate := a.health.startGate; gate != nil {
		background.Go(func() { failed <- gate.Run(running) })
	}
	for _, s := range a.all() {
		s.BaseContext = func(net.Listener) context.Context { return running }
		background.Go(func() { failed <- s.serve() })
	}
	a.log.Info("serving", "listeners", a.health.listeners, "digest", a.config.Load().digest, "ownHook", a.options.Hook != nil)
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		a.log.Error("a part ended by itself", "error", err)
	}
	a.end(running)
	return err
}

// serve returns why it ended, which is an error unless end did it.
func (s *server) serve() error {
	if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s: %w", s.address, err)
	}
	return nil
}

// all are the servers and that of the probes.
func (a *adapter) all() []*server {
	var all []*server
	for i := range a.servers {
		all = append(all, &a.servers[i])
	}
	if a.probes != nil {
		all = append(all, a.probes)
	}
	return all
}

// open makes the start gate and the servers, and listens.
func (a *adapter) open(ctx context.Context) error {
	if k := a.started.Kueue; k != nil {
		gate, err := a.options.Start(*k, a.keeper)
		if err != nil {
			return err
		}
		a.health.startGate = gate
	}
	listeners, err := a.listen(ctx)
	probes, probesErr := a.openProbes(ctx)
	if err := errors.Join(err, probesErr); err != nil {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
		if probes != nil {
			err = errors.Join(err, probes.Close(), probes.listener.Close())
		}
		return err
	}
	a.probes = probes
	admit := newEndpoint("admit", a.keeper, true, a.metrics, a.log)
	var start *endpoint
	if a.health.startGate != nil {
		// Its changes carry a key that hooks of operators must not set.
		start = newEndpoint("start", a.health.startGate, false, a.metrics, a.log)
	}
	for _, l := range listeners {
		a.health.listeners = append(a.health.listeners, l.address)
		s := server{a.newServer(&routes{admit: admit, start: start, health: a.health, slots: make(chan struct{}, a.timing.requests)}), l}
		if l.name == listenerHTTPS {
			a.onClientCA = func() { a.dismiss(s.Server) }
		}
		a.servers = append(a.servers, s)
	}
	return nil
}

// openProbes listens for probes and scrapes.
func (a *adapter) openProbes(ctx context.Context) (*server, error) {
	address := a.options.MetricsAddress
	if address == "0" {
		return nil, nil //nolint:nilnil // none is wanted
	}
	l, err := listenTCP(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("-metrics-bind-address: %w", err)
	}
	scrapes := promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelError)})
	mux := http.NewServeMux()
	mux.Handle(pathHealthz, a.health)
	mux.Handle(pathReadyz, a.health)
	mux.Handle("/metrics", scrapes)
	return &server{a.newServer(mux), listener{l, "metrics", l.Addr().String()}}, nil
}

func (a *adapter) newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: a.timing.header,
		ReadTimeout:       a.timing.read,
		WriteTimeout:      a.timing.write,
		IdleTimeout:       a.timing.idle,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(complaints{a.log.Handler()}, slog.LevelWarn),

		DisableGeneralOptionsHandler: true, // only POST is answered with 200
	}
}
