package gate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
)

// waiting is a gate without a hook that waits for pods, as the schema's defaults
// make it.
func waiting(p *Policy) { p.Hook, p.WaitForPods, p.PodTimeout = nil, true, 10*time.Minute }

// startedOnce gives the TrainJob one earlier start.
func startedOnce(s *Snapshot) {
	s.TrainJob = trainJob(raised("1", fence.Attempt{Workload: "wl-1", Reserved: at(1).Unix()}))
}

func remains(r Remains) func(*Snapshot) { return func(s *Snapshot) { s.Remains = r } }

// TestWaitForPods: a start waits for the pods of the one before.
func TestWaitForPods(t *testing.T) {
	for name, tc := range map[string]struct {
		s      Snapshot
		second int
		opens  bool
		text   string
		told   []Topic
	}{
		"first start, nothing known yet": {s: hooked(policy(waiting)), second: 20, opens: true, text: MessageRaised},
		"first start, but strange pods":  {s: hooked(policy(waiting), remains(Remains{Known: true, Stopped: true, Pods: map[int64]int{0: 2}})), second: 20, text: "2 pods without an admission count"},
		"nothing known yet":              {s: hooked(policy(waiting), startedOnce), second: 20, text: MessagePodsUnknown},
		"pods are left": {s: hooked(policy(waiting), startedOnce, remains(Remains{Known: true, Stopped: true, Pods: map[int64]int{1: 1}})), second: 20,
			text: "Waiting for the pods of an earlier start to end: 1 pod of the start with admission count 1."},
		"pods of several starts": {s: hooked(policy(waiting), startedOnce, remains(Remains{Known: true, Stopped: true, Pods: map[int64]int{3: 1, 1: 2}})), second: 20,
			text: "2 pods of the start with admission count 1, 1 pod of the start with admission count 3"},
		"none is left, but more can appear": {s: hooked(policy(waiting), startedOnce, remains(Remains{Known: true})), second: 20, text: MessageNotStopped},
		"all gone":                          {s: hooked(policy(waiting), startedOnce, remains(Remains{Known: true, Stopped: true})), second: 20, opens: true, text: MessageRaised},
		"not waited for":                    {s: hooked(policy(waiting, func(p *Policy) { p.WaitForPods = false }), startedOnce), second: 20, opens: true, text: MessageRaised},
		"run by another cluster": {s: hooked(policy(waiting), func(s *Snapshot) {
			s.TrainJob = trainJob(raised("1", fence.Attempt{}), elsewhereRun)
		}), second: 20, opens: true, text: MessageRaised},
		"not dispatch's": {s: hooked(policy(waiting), func(s *Snapshot) { s.TrainJob = trainJob(foreign) }), second: 20, opens: true, text: MessageNotGated},
		"the last second": {s: hooked(policy(waiting), startedOnce, remains(Remains{Known: true, Pods: map[int64]int{1: 1}})), second: 609,
			text: "1 pod of the start"},
		"for too long": {s: hooked(policy(waiting), startedOnce, remains(Remains{Known: true, Pods: map[int64]int{1: 1}})), second: 610,
			opens: true, text: MessageRaised, told: []Topic{ToldPodTimeout}},
		"for too long, nothing known": {s: hooked(policy(waiting), startedOnce), second: 610, opens: true, text: MessageRaised, told: []Topic{ToldPodTimeout}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Decide(tc.s, at(tc.second).Time)
			if len(plan.Checks) == 0 || (plan.Checks[0].State == ready) != tc.opens || !strings.Contains(plan.Checks[0].Message, tc.text) {
				t.Fatalf("%+v", plan)
			}
			if got := topics(plan); !slices.Equal(got, tc.told) {
				t.Errorf("tells %v, want %v", got, tc.told)
			}
			if !tc.opens && !plan.Wake.Equal(at(610).Time) {
				t.Errorf("wakes at %s, not when podTimeout has passed", plan.Wake)
			}
			if !tc.opens && plan.Raise != nil {
				t.Error("raises A while the gate is closed")
			}
		})
	}
}

// TestHookComesAfterPods: a hook is asked when the start could follow at once, so
// that its answer is not old by then.
func TestHookComesAfterPods(t *testing.T) {
	p := policy(func(p *Policy) { p.WaitForPods, p.PodTimeout = true, time.Minute })
	if plan := Decide(hooked(p, startedOnce, remains(Remains{Known: true, Stopped: true, Pods: map[int64]int{1: 1}})), at(20).Time); len(plan.Ask) > 0 {
		t.Errorf("asked while pods are left: %+v", plan)
	}
	plan := Decide(hooked(p, startedOnce, remains(Remains{Known: true, Stopped: true, Pods: map[int64]int{1: 1}})), at(71).Time)
	if len(plan.Ask) != 1 || len(plan.Tell) > 0 {
		t.Errorf("the timeout is told when the gate opens, not before: %+v", plan)
	}
}

// TestUngatedIsEvicted: a gate may say that a start it missed is to be evicted.
func TestUngatedIsEvicted(t *testing.T) {
	s := hooked(policy(func(p *Policy) { p.EvictUngated = true }), startedOnce)
	cond("Admitted", true, 12)(s.Workload)
	check("ours", ready, MessageRaised, 11)(s.Workload)
	plan := Decide(s, at(20).Time)
	if plan.Case != CaseUngated || plan.Checks == nil || plan.Checks[0].State != "Retry" || *plan.Checks[0].RequeueAfterSeconds != 0 {
		t.Errorf("%+v", plan)
	}
	s.Checks["ours"] = Check{Policy: policy()}
	if plan := Decide(s, at(20).Time); plan.Case != CaseUngated || plan.Checks != nil {
		t.Errorf("reported only: %+v", plan)
	}
}
