package metrics

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// durations are the buckets of a call, from a sidecar that answers from memory
// to the longest deadline there is.
var durations = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Hooks are the metrics of the hooks of all gates, each by the name of its gate.
// Their names and labels are part of what operators build on.
type Hooks struct {
	// Calls counts answers by what came: a decision, or the cause why there is
	// none. Calls that were skipped count too.
	Calls *prometheus.CounterVec
	// Duration is how long calls took that were made and not given up.
	Duration *prometheus.HistogramVec
	// FailedOpen counts Workloads that were admitted without a verdict.
	FailedOpen *prometheus.CounterVec
	// Audited counts answers that were recorded and not carried out, by decision.
	Audited *prometheus.CounterVec
	// Holds counts Workloads that a hook began to hold.
	Holds *prometheus.CounterVec
	// QuotaReturns counts held Workloads whose quota was given to others.
	QuotaReturns *prometheus.CounterVec
	// PodTimeouts counts gates opened although pods of an earlier start were left.
	PodTimeouts prometheus.Counter

	gauges *hookGauges
}

// Hook is what is read of the hook of one gate at each scrape.
type Hook interface {
	// Late counts calls that run on although nobody waits for them any more. A
	// hook that never returns leaks goroutines; here is where it shows.
	Late() int
	// Queued counts questions that wait for their call.
	Queued() int
	// Skipped tells whether the breaker is open.
	Skipped() bool
}

// NewHooks makes the metrics and registers them.
func NewHooks(reg prometheus.Registerer) *Hooks {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"gate"}, labels...))
	}
	h := &Hooks{
		Calls: counter("dispatch_admission_hook_calls_total",
			"Number of answers about offers, by what came of asking: a decision of the hook, or why there is none.", "result"),
		Duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "dispatch_admission_hook_duration_seconds",
			Help:    "Duration of hook calls, those left out that were skipped or given up by the caller.",
			Buckets: durations,
		}, []string{"gate"}),
		FailedOpen: counter("dispatch_admission_hook_failed_open_total",
			"Number of workloads admitted without a verdict of the hook, because the gate fails open. Any increase deserves a look."),
		Audited: counter("dispatch_admission_hook_audited_total",
			"Number of answers recorded and not carried out, because the gate only audits, by decision.", "decision"),
		Holds: counter("dispatch_admission_holds_total",
			"Number of times a hook began to hold a workload."),
		QuotaReturns: counter("dispatch_admission_quota_returns_total",
			"Number of times a held workload gave its quota to others."),
		PodTimeouts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dispatch_admission_pod_timeouts_total",
			Help: "Number of times the gate opened although a pod of an earlier start was left.",
		}),
		gauges: newHookGauges(),
	}
	reg.MustRegister(h.Calls, h.Duration, h.FailedOpen, h.Audited, h.Holds, h.QuotaReturns, h.PodTimeouts, h.gauges)
	return h
}

// Watch has hook read for gate at each scrape from now on, in place of what was
// read before; nil ends it. The counters of a gate that is watched begin at 0, so
// that their first increase is seen as one.
func (h *Hooks) Watch(gate string, hook Hook) {
	h.gauges.set(gate, hook)
	if hook == nil {
		return
	}
	h.Duration.WithLabelValues(gate)
	for _, vec := range []*prometheus.CounterVec{h.FailedOpen, h.Holds, h.QuotaReturns} {
		vec.WithLabelValues(gate)
	}
}

// Delete deletes every series of a gate that is gone. A gate of the same name
// begins anew.
func (h *Hooks) Delete(gate string) {
	h.gauges.set(gate, nil)
	of := prometheus.Labels{"gate": gate}
	h.Duration.DeletePartialMatch(of)
	for _, vec := range []*prometheus.CounterVec{h.Calls, h.FailedOpen, h.Audited, h.Holds, h.QuotaReturns} {
		vec.DeletePartialMatch(of)
	}
}

// hookGauges reads the hooks when it is scraped, so that nobody has to keep
// gauges right.
type hookGauges struct {
	late, queued, open *prometheus.Desc

	mu    sync.Mutex
	hooks map[string]Hook
}

func newHookGauges() *hookGauges {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"gate"}, nil)
	}
	return &hookGauges{
		late: desc("dispatch_admission_hook_late_calls",
			"Number of hook calls that have not returned although their deadline has passed."),
		queued: desc("dispatch_admission_hook_queued",
			"Number of questions that wait for a call of the hook to end."),
		open: desc("dispatch_admission_hook_breaker_open",
			"1 while the hook is skipped after too many failures in a row, else 0."),
		hooks: map[string]Hook{},
	}
}

func (g *hookGauges) set(gate string, hook Hook) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if hook == nil {
		delete(g.hooks, gate)
		return
	}
	g.hooks[gate] = hook
}

// Describe sends the descriptions of the gauges.
func (g *hookGauges) Describe(out chan<- *prometheus.Desc) {
	out <- g.late
	out <- g.queued
	out <- g.open
}

// Collect reads every hook. It holds no lock meanwhile: a hook may need one whose
// holder is about to call set.
func (g *hookGauges) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	hooks := maps.Clone(g.hooks)
	g.mu.Unlock()
	for gate, hook := range hooks {
		open := 0
		if hook.Skipped() {
			open = 1
		}
		for desc, value := range map[*prometheus.Desc]int{g.late: hook.Late(), g.queued: hook.Queued(), g.open: open} {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), gate)
		}
	}
}
