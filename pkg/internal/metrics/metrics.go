// Package metrics has the controller's own metrics.
package metrics

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the counters of one controller. Their names and labels are part
// of what operators build on; the controller runtime adds its own.
type Metrics struct {
	// Raises counts raises of the admission count.
	Raises prometheus.Counter
	// Answers counts writes of our check entries by the state written.
	Answers *prometheus.CounterVec
	// Conflicts counts writes that the API server refused because the object
	// had changed, by the kind of object.
	Conflicts *prometheus.CounterVec
	// Refusals counts admission counts that the API server did not accept.
	Refusals prometheus.Counter
	// Ungated counts starts for which the admission count was not raised.
	Ungated prometheus.Counter
	// Leading is 1 while this replica leads.
	Leading prometheus.Gauge
	// Hooks are about the hooks of AdmissionGates.
	Hooks *Hooks
	// Wiring is about our checks in ClusterQueues.
	Wiring *Wiring
}

// New makes the metrics and registers them.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Raises: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dispatch_admission_count_raises_total",
			Help: "Number of times an admission count was raised.",
		}),
		Answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dispatch_admission_check_writes_total",
			Help: "Number of admission check entries written, by the state written.",
		}, []string{"state"}),
		Conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dispatch_admission_conflicts_total",
			Help: "Number of writes refused because the object had changed meanwhile, by kind.",
		}, []string{"kind"}),
		Refusals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dispatch_admission_count_refusals_total",
			Help: "Number of admission counts that the API server or a webhook did not accept.",
		}),
		Ungated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dispatch_admission_ungated_admissions_total",
			Help: "Number of starts for which the admission count was not raised. Any increase deserves a look.",
		}),
		Leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dispatch_admission_leading",
			Help: "1 while this replica holds the leader election Lease and serves admission checks, else 0.",
		}),
	}
	reg.MustRegister(m.Raises, m.Answers, m.Conflicts, m.Refusals, m.Ungated, m.Leading)
	m.Hooks, m.Wiring = NewHooks(reg), NewWiring(reg)
	return m
}
