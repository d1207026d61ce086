package hooks

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// fixture is Hooks with everything that they tell.
type fixture struct {
	*Hooks
	tb       testing.TB
	registry *prometheus.Registry

	mu      sync.Mutex
	woken   []string // offers, in the order of Answered
	changed []State  // of any gate
}

// newFixture makes Hooks that ask over the network.
func newFixture(tb testing.TB, set ...func(*Options)) *fixture {
	tb.Helper()
	f := &fixture{tb: tb, registry: prometheus.NewPedanticRegistry()}
	o := Options{
		Log:     slog.New(slog.DiscardHandler),
		Metrics: metrics.NewHooks(f.registry),
		Changed: func(gate string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.changed = append(f.changed, f.State(gate))
		},
	}
	for _, change := range set {
		change(&o)
	}
	f.Hooks = New(tb.Context(), o)
	tb.Cleanup(f.Close)
	return f
}

// inProcess asks hook instead, for every gate.
func (f *fixture) inProcess(hook admission.Hook) *fixture {
	f.connect = func(httphook.Config) (client, error) { return &local{Hook: hook}, nil }
	return f
}

type local struct {
	admission.Hook
	closed atomic.Int32
}

func (l *local) Close() { l.closed.Add(1) }

func concurrency(n int) func(*Options) { return func(o *Options) { o.Concurrency = n } }

func logTo(w io.Writer, level slog.Level) func(*Options) {
	return func(o *Options) { o.Log = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})) }
}

// gateWith is a gate with a hook on a socket, read without defaults.
func gateWith(name, socket string, set ...func(*v1alpha1.Hook)) *v1alpha1.AdmissionGate {
	g := &v1alpha1.AdmissionGate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.Hook = &v1alpha1.Hook{Endpoint: v1alpha1.Endpoint{UnixSocket: socket}}
	for _, change := range set {
		change(g.Spec.Hook)
	}
	return g
}

func timeout(d time.Duration) func(*v1alpha1.Hook) {
	return func(h *v1alpha1.Hook) { h.Timeout = &metav1.Duration{Duration: d} }
}

func breaker(failures int32, cooldown time.Duration) func(*v1alpha1.Hook) {
	return func(h *v1alpha1.Hook) {
		h.Breaker = v1alpha1.Breaker{Failures: failures, Cooldown: &metav1.Duration{Duration: cooldown}}
	}
}

func (f *fixture) configure(g *v1alpha1.AdmissionGate) {
	f.tb.Helper()
	if err := f.Configure(g); err != nil {
		f.tb.Fatal(err)
	}
}

// ask asks about an offer of the Workload of the same name.
func (f *fixture) ask(gate, offer string) { f.tb.Helper(); f.askOf(gate, types.UID(offer), offer) }

func (f *fixture) askOf(gate string, workload types.UID, offer string) {
	f.Ask(Question{
		Gate: gate, Workload: workload, Check: "check", Offer: offer, Namespace: "team-a",
		Request: &admission.Request{TaskID: offer, Workload: admission.Object{Name: "workload-" + offer}},
		Answered: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.woken = append(f.woken, offer)
		},
	})
}

// askAndWait asks and returns the answer once it is there, for hooks that answer
// by themselves.
func (f *fixture) askAndWait(gate, offer string) runner.Outcome {
	f.tb.Helper()
	answered := make(chan struct{})
	f.Ask(Question{
		Gate: gate, Workload: types.UID(offer), Check: "check", Offer: offer,
		Request: &admission.Request{TaskID: offer}, Answered: func() { close(answered) },
	})
	<-answered
	return f.answer(offer)
}

// answer is the answer about an offer, which must be there.
func (f *fixture) answer(offer string) runner.Outcome {
	f.tb.Helper()
	o, ok := f.Answer(types.UID(offer), "check", offer)
	if !ok {
		f.tb.Errorf("no answer about %s", offer)
	}
	return o
}

// without checks that there is no answer about an offer, and whether it is asked.
func (f *fixture) without(offer string, asking bool) {
	f.tb.Helper()
	if o, ok := f.Answer(types.UID(offer), "check", offer); ok {
		f.tb.Errorf("%s: answered %+v", offer, o)
	}
	if _, ok := f.Asking(types.UID(offer), "check", offer); ok != asking {
		f.tb.Errorf("%s: asking %t, want %t", offer, ok, asking)
	}
}

func (f *fixture) wantWoken(offers ...string) {
	f.tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.woken, offers) {
		f.tb.Errorf("Answered about %q, want %q", f.woken, offers)
	}
}

// desk is a hook that the test answers for.
type desk struct {
	calls chan *call
	open  atomic.Int32
	most  atomic.Int32 // that was ever open
}

type call struct {
	ctx   context.Context
	offer string
	reply chan func() (admission.Decision, error)
}

func newDesk() *desk { return &desk{calls: make(chan *call, 100)} }

func (d *desk) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	n := d.open.Add(1)
	defer d.open.Add(-1)
	for most := d.most.Load(); n > most && !d.most.CompareAndSwap(most, n); most = d.most.Load() {
	}
	c := &call{ctx, req.TaskID, make(chan func() (admission.Decision, error))}
	d.calls <- c
	select {
	case answer := <-c.reply:
		return answer()
	case <-ctx.Done():
		return admission.Decision{}, ctx.Err()
	}
}

func (c *call) admit() {
	c.reply <- func() (admission.Decision, error) { return admission.Admit(), nil }
}

func (c *call) fail(err error) {
	c.reply <- func() (admission.Decision, error) { return admission.Decision{}, err }
}

// next is the next call, which must be about offer.
func (d *desk) next(t *testing.T, offer string) *call {
	t.Helper()
	c := <-d.calls
	if c.offer != offer {
		t.Errorf("asked about %s, want %s", c.offer, offer)
	}
	return c
}

// idle checks that no call is waiting to be answered.
func (d *desk) idle(t *testing.T) {
	t.Helper()
	if n := d.open.Load(); n != 0 {
		t.Errorf("%d calls are open", n)
	}
}
