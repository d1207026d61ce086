package adapter

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// keeper has the configuration and the certificates in force. Readers take both
// with one load of a pointer and keep what they took until they are done, so
// that no request sees two of a kind.
type keeper struct {
	options Options
	timing  timing
	log     *slog.Logger
	metrics *metrics
	now     func() time.Time

	// started is the configuration by which the listeners are.
	started *Config

	config   atomic.Pointer[generation]
	identity atomic.Pointer[identity] // nil without HTTPS

	// onClientCA is called after the authorities of clients have changed.
	onClientCA func()

	// last is the last reading of the configuration, good or bad, and
	// lastCertificates the digest of that of the certificates. Only check uses
	// them.
	last             reading
	lastCertificates string

	mu sync.Mutex
	keeperState
}

// keeperState is what is told of a keeper.
type keeperState struct {
	configErrors      []string // of the last reading, none if it was good
	certificateErrors []string
	restart           []string // fields that wait for a restart
}

// newKeeper loads everything for the first time. Whatever is wrong is an error.
func newKeeper(o Options, m *metrics) (*keeper, error) {
	k := &keeper{options: o, timing: o.timing.orDefault(), log: o.Log, metrics: m, now: time.Now, onClientCA: func() {}}
	r := read(o.Config, reading{})
	g, err := r.load(o)
	if err != nil {
		return nil, err
	}
	k.started, k.last = g.config, r
	if certs := g.config.HTTPS.read(); g.config.HTTPS != nil {
		id, err := certs.load(g.config, o.Config)
		if err != nil {
			return nil, err
		}
		k.lastCertificates = certs.digest
		m.begin(partCertificates)
		k.adopt(id)
	}
	k.enforce(g)
	return k, nil
}

// enforce puts a configuration in force.
func (k *keeper) enforce(g *generation) {
	g.number, g.loaded = 1, k.now()
	if last := k.config.Load(); last != nil {
		g.number = last.number + 1
	}
	if g.hook = k.options.Hook; g.hook == nil {
		g.hook = &ruleHook{policy: g.policy, now: k.now, metrics: k.metrics, log: k.log}
	}
	k.config.Store(g)
}

// adopt puts certificates in force.
func (k *keeper) adopt(id *identity) {
	last := k.identity.Swap(id)
	k.metrics.certificates(id)
	if problem := id.validity(k.now()); problem != "" {
		k.log.Warn("clients will not accept this server", "problem", problem, "file", k.started.HTTPS.CertFile)
	}
	if last != nil && last.clientCA != id.clientCA {
		k.onClientCA()
	}
}

// Admit asks the hook that is in force when the request comes.
func (k *keeper) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	return k.config.Load().hook.Admit(ctx, req)
}

// state returns what is to be told.
func (k *keeper) state() keeperState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keeperState // its slices are replaced, never changed
}

// check reads the files and takes over what has changed. Files that are being
// written may be read by halves, and half a policy can be a policy, so what is
// new counts once two readings in a row are the same. It returns whether there
// was anything new.
func (k *keeper) check(ctx context.Context) bool {
	config, certs := k.read()
	if config.digest == k.last.digest && certs.digest == k.lastCertificates {
		return false
	}
	for settled := false; !settled; {
		before, beforeCerts := config.digest, certs.digest
		select {
		case <-ctx.Done():
			return false
		case <-time.After(k.timing.settle):
		}
		config, certs = k.read()
		settled = config.digest == before && certs.digest == beforeCerts
	}
	if config.digest != k.last.digest {
		k.last = config
		k.reloadConfig(config)
	}
	if certs.digest != k.lastCertificates {
		k.lastCertificates = certs.digest
		k.reloadCertificates(certs)
	}
	return true
}

// read reads the certificates from where they were at the start: their paths
// belong to the listener.
func (k *keeper) read() (reading, certificates) {
	return read(k.options.Config, k.last), k.started.HTTPS.read()
}

func (k *keeper) reloadConfig(r reading) {
	g, err := r.loadSafely(k.options)
	k.metrics.reloaded(partConfig, err == nil)
	if err != nil {
		k.tell(&k.configErrors, err, "the configuration is broken; the last good one stays in force")
		return
	}
	k.tell(&k.configErrors, nil, "")
	restart := k.changed(g.config)
	k.mu.Lock()
	news := !slices.Equal(restart, k.restart)
	k.restart = restart
	k.mu.Unlock()
	k.metrics.restartNeeded(len(restart) > 0)
	if news && len(restart) > 0 {
		k.log.Warn("these fields hold from start to end; restart to have what they say now", "fields", restart)
	}
	if r.digest == k.config.Load().digest {
		k.log.Info("the configuration in force is back")
		return
	}
	k.enforce(g)
	k.log.Info("configuration loaded", "generation", g.number, "digest", g.digest)
}

// changed returns the fields in which c differs from what the listeners are
// made from, with both values.
func (k *keeper) changed(c *Config) []string {
	var fields []string
	was, is := k.started.settings(), c.settings()
	for i := range was {
		if was[i] != is[i] {
			fields = append(fields, was[i][0]+": "+orNone(was[i][1])+" is in force, "+orNone(is[i][1])+" needs a restart")
		}
	}
	return fields
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (k *keeper) reloadCertificates(c certificates) {
	id, err := c.load(k.started, k.options.Config)
	k.metrics.reloaded(partCertificates, err == nil)
	if err != nil {
		k.tell(&k.certificateErrors, err, "the certificates are broken; the last good ones stay in force")
		return
	}
	k.tell(&k.certificateErrors, nil, "")
	k.adopt(id)
	k.log.Info("certificates loaded", "expiry", id.expiry.UTC())
}

// tell records what is wrong, a line for each, and logs it when that is news.
func (k *keeper) tell(are *[]string, err error, consequence string) {
	var problems []string
	if err != nil {
		problems = strings.Split(err.Error(), "\n")
	}
	k.mu.Lock()
	news := !slices.Equal(*are, problems)
	*are = problems
	k.mu.Unlock()
	if news && err != nil {
		k.log.Error("not reloaded", "consequence", consequence, "errors", problems)
	}
}
