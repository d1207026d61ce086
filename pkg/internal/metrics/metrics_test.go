package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestExposition: names, labels and help are what operators build on.
func TestExposition(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Raises.Add(3)
	m.Answers.WithLabelValues("Ready").Inc()
	m.Conflicts.WithLabelValues("Workload").Inc()
	m.Ungated.Inc()
	m.Leading.Set(1)
	m.Wiring.Set("training", "policy", true)
	m.Wiring.Set("training", "policy", false)
	m.Wiring.Lost("training", "policy")
	for _, gone := range []string{"batch", "old"} {
		m.Wiring.Set(gone, "policy", true)
	}
	m.Wiring.Delete("batch", "")
	m.Wiring.Delete("old", "policy")
	want := `# HELP dispatch_admission_check_writes_total Number of admission check entries written, by the state written.
# TYPE dispatch_admission_check_writes_total counter
dispatch_admission_check_writes_total{state="Ready"} 1
# HELP dispatch_admission_cluster_queue_losses_total Number of times somebody took an admission check out of a ClusterQueue, other than by dispatchctl.
# TYPE dispatch_admission_cluster_queue_losses_total counter
dispatch_admission_cluster_queue_losses_total{check="policy",cluster_queue="training"} 1
# HELP dispatch_admission_cluster_queue_mends_total Number of times the controller put an admission check into a ClusterQueue.
# TYPE dispatch_admission_cluster_queue_mends_total counter
dispatch_admission_cluster_queue_mends_total{check="policy",cluster_queue="training"} 0
# HELP dispatch_admission_cluster_queue_wired 1 while the ClusterQueue names the admission check as wanted, 0 if it should and does not, or did and no longer does: its jobs start ungated.
# TYPE dispatch_admission_cluster_queue_wired gauge
dispatch_admission_cluster_queue_wired{check="policy",cluster_queue="training"} 0
# HELP dispatch_admission_conflicts_total Number of writes refused because the object had changed meanwhile, by kind.
# TYPE dispatch_admission_conflicts_total counter
dispatch_admission_conflicts_total{kind="Workload"} 1
# HELP dispatch_admission_count_raises_total Number of times an admission count was raised.
# TYPE dispatch_admission_count_raises_total counter
dispatch_admission_count_raises_total 3
# HELP dispatch_admission_count_refusals_total Number of admission counts that the API server or a webhook did not accept.
# TYPE dispatch_admission_count_refusals_total counter
dispatch_admission_count_refusals_total 0
# HELP dispatch_admission_leading 1 while this replica holds the leader election Lease and serves admission checks, else 0.
# TYPE dispatch_admission_leading gauge
dispatch_admission_leading 1
# HELP dispatch_admission_pod_timeouts_total Number of times the gate opened although a pod of an earlier start was left.
# TYPE dispatch_admission_pod_timeouts_total counter
dispatch_admission_pod_timeouts_total 0
# HELP dispatch_admission_ungated_admissions_total Number of starts for which the admission count was not raised. Any increase deserves a look.
# TYPE dispatch_admission_ungated_admissions_total counter
dispatch_admission_ungated_admissions_total 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
