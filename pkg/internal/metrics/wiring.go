package metrics

import "github.com/prometheus/client_golang/prometheus"

// Wiring are the metrics of our checks in ClusterQueues. Their names and labels are
// part of what operators build on.
type Wiring struct {
	wired         *prometheus.GaugeVec
	losses, mends *prometheus.CounterVec
}

// NewWiring makes the metrics and registers them.
func NewWiring(reg prometheus.Registerer) *Wiring {
	labels := []string{"cluster_queue", "check"}
	w := &Wiring{
		wired: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dispatch_admission_cluster_queue_wired",
			Help: "1 while the ClusterQueue names the admission check as wanted, 0 if it should and does not, or did and no longer does: its jobs start ungated.",
		}, labels),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dispatch_admission_cluster_queue_losses_total",
			Help: "Number of times somebody took an admission check out of a ClusterQueue, other than by dispatchctl.",
		}, labels),
		mends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dispatch_admission_cluster_queue_mends_total",
			Help: "Number of times the controller put an admission check into a ClusterQueue.",
		}, labels),
	}
	reg.MustRegister(w.wired, w.losses, w.mends)
	return w
}

// Set sets whether a queue is wired to a check. The counters of the two begin at 0
// with it, so that their first increase is seen as one.
func (w *Wiring) Set(queue, check string, wired bool) {
	value := 0.0
	if wired {
		value = 1
	}
	w.wired.WithLabelValues(queue, check).Set(value)
	w.losses.WithLabelValues(queue, check)
	w.mends.WithLabelValues(queue, check)
}

// Lost counts a loss.
func (w *Wiring) Lost(queue, check string) { w.losses.WithLabelValues(queue, check).Inc() }

// Mended counts an entry that was put into a queue.
func (w *Wiring) Mended(queue, check string) { w.mends.WithLabelValues(queue, check).Inc() }

// Delete deletes the series of a check in a queue, or of all of the queue if check is
// empty.
func (w *Wiring) Delete(queue, check string) {
	of := prometheus.Labels{"cluster_queue": queue}
	if check != "" {
		of["check"] = check
	}
	w.wired.DeletePartialMatch(of)
	w.losses.DeletePartialMatch(of)
	w.mends.DeletePartialMatch(of)
}
