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
	if _, err := RegisterHook(reg, "policy", late(2)); err != nil {
		t.Fatal(err)
	}
	want := `# HELP dispatch_admission_check_writes_total Number of admission check entries written, by the state written.
# TYPE dispatch_admission_check_writes_total counter
dispatch_admission_check_writes_total{state="Ready"} 1
# HELP dispatch_admission_conflicts_total Number of writes refused because the object had changed meanwhile, by kind.
# TYPE dispatch_admission_conflicts_total counter
dispatch_admission_conflicts_total{kind="Workload"} 1
# HELP dispatch_admission_count_raises_total Number of times an admission count was raised.
# TYPE dispatch_admission_count_raises_total counter
dispatch_admission_count_raises_total 3
# HELP dispatch_admission_count_refusals_total Number of admission counts that the API server or a webhook did not accept.
# TYPE dispatch_admission_count_refusals_total counter
dispatch_admission_count_refusals_total 0
# HELP dispatch_admission_hook_late_calls Number of hook calls that have not returned although their deadline has passed.
# TYPE dispatch_admission_hook_late_calls gauge
dispatch_admission_hook_late_calls{gate="policy"} 2
# HELP dispatch_admission_leading 1 while this replica holds the leader election Lease and serves admission checks, else 0.
# TYPE dispatch_admission_leading gauge
dispatch_admission_leading 1
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

// TestHookComesBack: a gate may be deleted and made again, with another hook.
func TestHookComesBack(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	unregister, err := RegisterHook(reg, "policy", late(1))
	if err != nil {
		t.Fatal(err)
	}
	refused, err := RegisterHook(reg, "policy", late(2))
	if err == nil {
		t.Error("registered twice")
	}
	refused() // must not touch the first
	if _, err := RegisterHook(reg, "other", late(3)); err != nil {
		t.Error(err)
	}
	unregister()
	if _, err := RegisterHook(reg, "policy", late(4)); err != nil {
		t.Error(err)
	}
	unregister() // must not touch the second
	want := `# HELP dispatch_admission_hook_late_calls Number of hook calls that have not returned although their deadline has passed.
# TYPE dispatch_admission_hook_late_calls gauge
dispatch_admission_hook_late_calls{gate="other"} 3
dispatch_admission_hook_late_calls{gate="policy"} 4
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

type late int

func (l late) Late() int { return int(l) }
