package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// hook is a Hook whose numbers are all different.
type hook struct {
	late, queued int
	skipped      bool
}

func (h hook) Late() int     { return h.late }
func (h hook) Queued() int   { return h.queued }
func (h hook) Skipped() bool { return h.skipped }

func TestHookExposition(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewHooks(reg)
	m.Watch("policy", hook{2, 7, true})
	m.Calls.WithLabelValues("policy", "Admit").Add(3)
	m.Calls.WithLabelValues("policy", "Timeout").Inc()
	m.Duration.WithLabelValues("policy").Observe(.0021)
	m.Duration.WithLabelValues("policy").Observe(29.5)
	m.FailedOpen.WithLabelValues("policy").Inc()
	m.Audited.WithLabelValues("policy", "Refuse").Inc()
	m.Holds.WithLabelValues("policy").Add(5)
	m.PodTimeouts.Inc()
	want := `# HELP dispatch_admission_holds_total Number of times a hook began to hold a workload.
# TYPE dispatch_admission_holds_total counter
dispatch_admission_holds_total{gate="policy"} 5
# HELP dispatch_admission_hook_audited_total Number of answers recorded and not carried out, because the gate only audits, by decision.
# TYPE dispatch_admission_hook_audited_total counter
dispatch_admission_hook_audited_total{decision="Refuse",gate="policy"} 1
# HELP dispatch_admission_hook_breaker_open 1 while the hook is skipped after too many failures in a row, else 0.
# TYPE dispatch_admission_hook_breaker_open gauge
dispatch_admission_hook_breaker_open{gate="policy"} 1
# HELP dispatch_admission_hook_calls_total Number of answers about offers, by what came of asking: a decision of the hook, or why there is none.
# TYPE dispatch_admission_hook_calls_total counter
dispatch_admission_hook_calls_total{gate="policy",result="Admit"} 3
dispatch_admission_hook_calls_total{gate="policy",result="Timeout"} 1
# HELP dispatch_admission_hook_duration_seconds Duration of hook calls, those left out that were skipped or given up by the caller.
# TYPE dispatch_admission_hook_duration_seconds histogram
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.001"} 0
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.0025"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.005"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.01"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.025"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.05"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.1"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.25"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="0.5"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="1"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="2.5"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="5"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="10"} 1
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="30"} 2
dispatch_admission_hook_duration_seconds_bucket{gate="policy",le="+Inf"} 2
dispatch_admission_hook_duration_seconds_sum{gate="policy"} 29.5021
dispatch_admission_hook_duration_seconds_count{gate="policy"} 2
# HELP dispatch_admission_hook_failed_open_total Number of workloads admitted without a verdict of the hook, because the gate fails open. Any increase deserves a look.
# TYPE dispatch_admission_hook_failed_open_total counter
dispatch_admission_hook_failed_open_total{gate="policy"} 1
# HELP dispatch_admission_hook_late_calls Number of hook calls that have not returned although their deadline has passed.
# TYPE dispatch_admission_hook_late_calls gauge
dispatch_admission_hook_late_calls{gate="policy"} 2
# HELP dispatch_admission_hook_queued Number of questions that wait for a call of the hook to end.
# TYPE dispatch_admission_hook_queued gauge
dispatch_admission_hook_queued{gate="policy"} 7
# HELP dispatch_admission_pod_timeouts_total Number of times the gate opened although a pod of an earlier start was left.
# TYPE dispatch_admission_pod_timeouts_total counter
dispatch_admission_pod_timeouts_total 1
# HELP dispatch_admission_quota_returns_total Number of times a held workload gave its quota to others.
# TYPE dispatch_admission_quota_returns_total counter
dispatch_admission_quota_returns_total{gate="policy"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// TestHookSeriesGo: a gate may lose its hook, get another one, or be deleted and
// made again. The pedantic registry refuses a series that is there twice.
func TestHookSeriesGo(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewHooks(reg)
	count := func(step string, want int) {
		t.Helper()
		n, err := testutil.GatherAndCount(reg)
		if n--; err != nil || n != want { // PodTimeouts belongs to no gate
			t.Errorf("%s: %d series, want %d, %v", step, n, want, err)
		}
	}
	fill := func(gate string) {
		for _, vec := range []*prometheus.CounterVec{m.Calls, m.Audited} {
			vec.WithLabelValues(gate, "Admit").Inc()
			vec.WithLabelValues(gate, "Hold").Inc()
		}
	}
	count("nothing", 0)
	m.Watch("policy", hook{late: 1})
	m.Watch("other", hook{late: 2})
	count("watched", 14)
	fill("policy")
	fill("other")
	count("used", 22)
	m.Watch("policy", hook{late: 3})
	count("another hook", 22)
	m.Watch("policy", nil)
	count("without a hook its counters stay", 19)
	m.Delete("policy")
	m.Delete("policy")
	count("deleted", 11)
	m.Watch("policy", hook{late: 4})
	count("made again", 18)
	want := `# HELP dispatch_admission_hook_late_calls Number of hook calls that have not returned although their deadline has passed.
# TYPE dispatch_admission_hook_late_calls gauge
dispatch_admission_hook_late_calls{gate="other"} 2
dispatch_admission_hook_late_calls{gate="policy"} 4
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "dispatch_admission_hook_late_calls"); err != nil {
		t.Error(err)
	}
}
