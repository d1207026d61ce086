package hooks

import (
	"bytes"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// The defaults and limits of the CustomResourceDefinition that package runner
// does not have.
const (
	defaultFailures = 5
	defaultCooldown = 30 * time.Second
	minCooldown     = time.Second
	maxCooldown     = time.Hour
)

// settings are the part of a spec that says how a hook is asked.
type settings struct {
	endpoint  v1alpha1.Endpoint
	timeout   time.Duration
	failures  int
	cooldown  time.Duration
	allowlist runner.Allowlist
}

// gate is what Configure was told last about a gate, and what it made of it.
type gate struct {
	uid        types.UID
	generation int64
	settings   *settings // nil without spec.hook
	err        error     // why there is no hook in spite of settings
	hook       *hook     // Hooks.mu's
}

// keeps tells whether the hook stays as it is: when to is older, or asks the same
// way. Hooks.configuring is held.
func (g *gate) keeps(to *gate) bool {
	switch {
	case g == nil:
		return false
	case g.uid == to.uid && g.generation > to.generation:
		return true
	case !reflect.DeepEqual(g.settings, to.settings):
		return false
	}
	g.uid, g.generation = to.uid, to.generation
	return true
}

// Configure makes the hook of a gate be asked as the gate says. A gate without
// spec.hook has none. The error names the field that is wrong, such as
// spec.hook.endpoint.url, and then the gate has no hook either.
//
// The endpoint, timeout, breaker and allowlist make the hook. While they stay the
// same, so do its connections, its breaker and the calls in flight; the rest of
// the spec is no business of this package. When one changes, the gate gets
// another hook, calls in flight are given up, and questions and answers are
// dropped; Question.Answered tells their owners. Fields that are not set have the
// defaults of the CustomResourceDefinition.
//
// What is older than what was configured last changes nothing: those who read a
// gate at different times may call in any order. But nobody may call it for a gate
// that was removed.
func (h *Hooks) Configure(g *v1alpha1.AdmissionGate) error {
	h.configuring.Lock()
	to := &gate{uid: g.UID, generation: g.Generation, settings: settingsOf(g.Spec.Hook)}
	if old := h.gate(g.Name); old.keeps(to) {
		h.configuring.Unlock()
		return old.err
	}
	if to.settings != nil {
		to.hook, to.err = h.build(g.Name, to.settings)
	}
	n := h.replace(g.Name, to)
	h.configuring.Unlock()
	h.tell(n)
	return to.err
}

// Remove ends the hook of a gate that is gone. Questions, answers and metrics of
// the gate are dropped.
func (h *Hooks) Remove(name string) {
	h.configuring.Lock()
	n := h.replace(name, nil)
	h.configuring.Unlock()
	h.tell(n)
}

func (h *Hooks) gate(name string) *gate {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gates[name]
}

// replace puts a gate in the place of what was there; nil removes it.
func (h *Hooks) replace(name string, to *gate) *news {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := &news{}
	if h.ctx.Err() != nil {
		return n // closed, and so is the hook of to
	}
	before := h.state(name)
	old := h.gates[name].hooked()
	old.retire()
	if to == nil {
		delete(h.gates, name)
		h.options.Metrics.Delete(name)
	} else {
		h.gates[name] = to
		h.watch(name, to.hook)
	}
	if h.state(name) != before {
		n.changed = name
	}
	if old != nil || to.hooked() != nil {
		h.dropAll(name, n)
	}
	return n
}

func (g *gate) hooked() *hook {
	if g == nil {
		return nil
	}
	return g.hook
}

// dropAll drops what a hook said or was to be asked that is not the gate's any
// more, and what waited for a hook to come. All of it is asked anew: the request
// may have been made for another spec, too.
func (h *Hooks) dropAll(gate string, n *news) {
	for _, byCheck := range h.questions {
		for _, q := range byCheck {
			if q.Gate != gate {
				continue
			}
			h.drop(q)
			if !q.answered { // else its owner was told
				n.dropped = append(n.dropped, q)
			}
		}
	}
}

// settingsOf fills in the defaults, and shares no memory with the spec. It
// returns nil for nil.
func settingsOf(spec *v1alpha1.Hook) *settings {
	if spec == nil {
		return nil
	}
	s := &settings{
		endpoint: spec.Endpoint,
		timeout:  orElse(spec.Timeout, runner.DefaultTimeout),
		failures: int(spec.Breaker.Failures),
		cooldown: orElse(spec.Breaker.Cooldown, defaultCooldown),
		allowlist: runner.Allowlist{
			PriorityClasses: slices.Clone(spec.Allowlist.PriorityClasses),
			ServiceAccounts: slices.Clone(spec.Allowlist.ServiceAccounts),
		},
	}
	s.endpoint.CABundle = bytes.Clone(spec.Endpoint.CABundle)
	if s.failures == 0 {
		s.failures = defaultFailures
	}
	return s
}

func orElse(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

// check reports what the CustomResourceDefinition would have refused and what
// neither httphook nor runner see.
func (s *settings) check() error {
	switch {
	case (s.endpoint.URL == "") == (s.endpoint.UnixSocket == ""):
		return errors.New("spec.hook.endpoint: exactly one of unixSocket and url must be set")
	case s.timeout < runner.MinTimeout || s.timeout > runner.MaxTimeout:
		return fmt.Errorf("spec.hook.timeout: %v is not between %v and %v", s.timeout, runner.MinTimeout, runner.MaxTimeout)
	case s.failures < 0:
		return fmt.Errorf("spec.hook.breaker.failures: %d is less than 1", s.failures)
	case s.cooldown < minCooldown || s.cooldown > maxCooldown:
		return fmt.Errorf("spec.hook.breaker.cooldown: %v is not between %v and %v", s.cooldown, minCooldown, maxCooldown)
	}
	return nil
}

// build makes a hook. It does not connect.
func (h *Hooks) build(name string, s *settings) (*hook, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(h.ctx)
	hk := &hook{
		gate: name, settings: s, ctx: ctx, cancel: cancel, queue: list.New(),
		state: State{Endpoint: s.text(), Breaker: v1alpha1.BreakerClosed},
	}
	err := h.open(hk)
	if err != nil {
		cancel()
		return nil, err
	}
	return hk, nil
}

func (h *Hooks) open(hk *hook) error {
	s := hk.settings
	config := httphook.Config{
		URL:        s.endpoint.URL,
		UnixSocket: s.endpoint.UnixSocket,
		CABundle:   s.endpoint.CABundle,
		ServerName: s.endpoint.ServerName,
	}
	if s.endpoint.ClientCertificateSecret != "" {
		if h.options.Certificate == nil {
			return errors.New("spec.hook.endpoint.clientCertificateSecret: Secrets are not read here")
		}
		config.ClientCertificate = h.clientCertificate(hk)
	}
	var err error
	hk.client, err = h.connect(config)
	if err != nil {
		return fmt.Errorf("spec.hook.endpoint.%s", strings.Replace(err.Error(), "clientCertificate:", "clientCertificateSecret:", 1))
	}
	hk.runner, err = runner.New(hk.client, runner.Config{
		Timeout:   s.timeout,
		Breaker:   runner.BreakerConfig{Failures: s.failures, Cooldown: s.cooldown},
		Allowlist: s.allowlist,
	})
	if err != nil {
		return fmt.Errorf("spec.hook.%w", err)
	}
	return nil
}

// clientCertificate returns what gets the client certificate of hk.
func (h *Hooks) clientCertificate(hk *hook) func() (*tls.Certificate, error) {
	secret := hk.settings.endpoint.ClientCertificateSecret
	c := newCertificates(h.options.Log.With("gate", hk.gate, "secret", secret),
		func(ctx context.Context) (*tls.Certificate, error) { return h.options.Certificate(ctx, secret) })
	return func() (*tls.Certificate, error) { return c.get(hk.ctx) }
}

// text is the endpoint for people to read.
func (s *settings) text() string {
	if s.endpoint.UnixSocket != "" {
		return "unix:" + s.endpoint.UnixSocket
	}
	return s.endpoint.URL
}
