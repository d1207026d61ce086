package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// LateCalls counts calls of a hook that run on although nobody waits for them
// any more.
type LateCalls interface{ Late() int }

// RegisterHook registers the metrics of one hook, which is known by the name of
// its gate. A hook that never returns leaks goroutines; here is where it shows.
//
// A gate that is registered already is an error. Unregister makes room for the
// gate to come back, perhaps with another hook; calling it again does nothing.
func RegisterHook(reg prometheus.Registerer, gate string, calls LateCalls) (unregister func(), err error) {
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "dispatch_admission_hook_late_calls",
		Help:        "Number of hook calls that have not returned although their deadline has passed.",
		ConstLabels: prometheus.Labels{"gate": gate},
	}, func() float64 { return float64(calls.Late()) })
	if err := reg.Register(gauge); err != nil {
		return func() {}, err
	}
	return sync.OnceFunc(func() { reg.Unregister(gauge) }), nil
}
