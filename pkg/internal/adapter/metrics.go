package adapter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// What is reloaded by itself.
const (
	partConfig       = "config"
	partCertificates = "certificates"
)

// durations are the buckets of a request, from a policy that answers from memory
// to the longest deadline there is.
var durations = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// metrics are in a registry of their own. Their names and labels are part of
// what operators build on.
type metrics struct {
	registry *prometheus.Registry

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	rules    *prometheus.CounterVec
	reloads  *prometheus.CounterVec
	lastGood *prometheus.GaugeVec
	restart  prometheus.Gauge
	expiry   *prometheus.GaugeVec
	refused  *prometheus.CounterVec
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: counter("dispatch_hook_requests_total",
			"Number of requests, by what came of them: a decision, or why there is none.", "endpoint", "result"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dispatch_hook_request_duration_seconds", Buckets: durations,
			Help: "Duration of requests, from their header to their answer.",
		}, []string{"endpoint"}),
		inFlight: gauge("dispatch_hook_requests_in_flight",
			"Number of requests that are being answered.", "endpoint"),
		rules: counter("dispatch_hook_rule_results_total",
			"Number of times a rule of the policy applied or failed, by what it said.", "rule", "mode", "result"),
		reloads: counter("dispatch_hook_config_reload_total",
			"Number of times that changed files were read, by part: config or certificates.", "part", "result"),
		lastGood: gauge("dispatch_hook_config_last_reload_successful",
			"1 if the last reading of the files was good, 0 while an earlier one is in force.", "part"),
		restart: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dispatch_hook_config_restart_needed",
			Help: "1 while the configuration file has changes that need a restart, else 0.",
		}),
		expiry: gauge("dispatch_hook_certificate_expiration_timestamp_seconds",
			"When the certificate ends that is in force, in seconds since 1970; of the authorities of clients, the first.", "certificate"),
		refused: counter("dispatch_hook_connections_refused_total",
			"Number of connections closed at once because there were too many.", "listener"),
	}
	m.registry.MustRegister(m.requests, m.duration, m.inFlight, m.rules, m.reloads, m.lastGood, m.restart, m.expiry, m.refused,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.begin(partConfig)
	return m
}

// begin has a part told from the start: 1, because nothing is served before it
// was read.
func (m *metrics) begin(part string) {
	m.lastGood.WithLabelValues(part).Set(1)
	for _, good := range []bool{true, false} {
		m.reloads.WithLabelValues(part, outcome(good))
	}
}

// reloaded counts a reading of what had changed.
func (m *metrics) reloaded(part string, good bool) {
	m.reloads.WithLabelValues(part, outcome(good)).Inc()
	m.lastGood.WithLabelValues(part).Set(number(good))
}

func outcome(good bool) string {
	if good {
		return "success"
	}
	return "failure"
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) restartNeeded(is bool) { m.restart.Set(number(is)) }

// certificates tells when those of id end.
func (m *metrics) certificates(id *identity) {
	m.expiry.WithLabelValues("server").Set(seconds(id.expiry))
	if !id.caExpiry.IsZero() {
		m.expiry.WithLabelValues("client-ca").Set(seconds(id.caExpiry))
	}
}

func seconds(t time.Time) float64 { return float64(t.Unix()) }
