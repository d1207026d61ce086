package gate

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

func TestWaitingAndRelevant(t *testing.T) {
	theirs := check("theirs", ready, "", 5)
	cases := map[string]struct {
		wl       *kueue.Workload
		waiting  []string
		relevant bool
	}{
		"reserved":                 {workload(theirs), []string{"ours", "theirs"}, true},
		"queued, nothing stale":    {workload(cond(kueue.WorkloadQuotaReserved, false, 11)), nil, false},
		"queued, stale":            {workload(cond(kueue.WorkloadQuotaReserved, false, 11), theirs), []string{"theirs"}, true},
		"admitted, check late":     {workload(cond(kueue.WorkloadAdmitted, true, 12), theirs), []string{"ours"}, true},
		"admitted":                 {workload(cond(kueue.WorkloadAdmitted, true, 12), check("ours", ready, "", 11)), nil, true},
		"admitted, not TrainJob's": {workload(cond(kueue.WorkloadAdmitted, true, 12), check("ours", ready, "", 11), owner("batch/v1", "Job", "")), nil, false},
		"evicted":                  {workload(cond(kueue.WorkloadEvicted, true, 12)), nil, false},
		"finished":                 {workload(cond(kueue.WorkloadFinished, true, 12)), nil, false},
		"no checks":                {workload(func(wl *kueue.Workload) { wl.Status.AdmissionChecks = nil }), nil, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Waiting(tc.wl); !slices.Equal(got, tc.waiting) {
				t.Errorf("waiting for %q, want %q", got, tc.waiting)
			}
			if got := Relevant(tc.wl); got != tc.relevant {
				t.Errorf("relevant %v, want %v", got, tc.relevant)
			}
		})
	}
}

// TestRelevantMissesNothing: whatever Decide would do something about, a watch
// event must reach it.
func TestRelevantMissesNothing(t *testing.T) {
	conditions := []string{kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted, kueue.WorkloadEvicted, kueue.WorkloadFinished}
	states := []kueue.CheckState{pending, ready, kueue.CheckStateRetry, kueue.CheckStateRejected}
	for mask := range 1 << len(conditions) {
		for _, state := range states {
			wl := workload(check("ours", state, MessageRaised, 11))
			for i, c := range conditions {
				cond(c, mask&(1<<i) != 0, 12)(wl)
			}
			plan := Decide(Snapshot{Workload: wl, TrainJob: trainJob(), Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}}}, epoch)
			if plan.Case != CaseNone && !Relevant(wl) {
				t.Errorf("conditions %04b, state %s: %s is never looked at", mask, state, plan.Case)
			}
			if plan.Checks != nil && !slices.Contains(Waiting(wl), "ours") {
				t.Errorf("conditions %04b, state %s: a full pass misses %s", mask, state, plan.Case)
			}
		}
	}
}

// TestRelevantWithoutCheck: a job whose check went is told that it is not held any
// more, whatever other checks it has.
func TestRelevantWithoutCheck(t *testing.T) {
	for name, checks := range map[string][]kueue.AdmissionCheckState{"none": nil, "another's": {{Name: "theirs", State: pending}}} {
		for _, conditions := range [][]string{{}, {kueue.WorkloadEvicted}, {kueue.WorkloadQuotaReserved}, {kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted}} {
			wl := workload(cond(v1alpha1.WorkloadHeld, true, 11))
			wl.Status.AdmissionChecks = checks
			for _, c := range conditions {
				cond(c, true, 12)(wl)
			}
			if plan := Decide(Snapshot{Workload: wl}, epoch); plan.Case != CaseReleased || !Relevant(wl) {
				t.Errorf("checks %s, conditions %v: %s, looked at: %v", name, conditions, plan.Case, Relevant(wl))
			}
		}
	}
}

func TestLossBetween(t *testing.T) {
	held := workload(check("ours", ready, "", 11))
	lost := workload(check("ours", ready, "", 11), cond(kueue.WorkloadQuotaReserved, false, 11))
	for name, tc := range map[string]struct {
		before, after *kueue.Workload
		want          Loss
	}{
		"lost":             {held, lost, Loss{"ours": at(11).Unix()}},
		"kept":             {held, held, nil},
		"regained":         {lost, held, nil},
		"lost, unanswered": {workload(), lost, nil},
		"never had":        {lost, lost, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, LossBetween(tc.before, tc.after)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMessage(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"percent":     {"50%d of 100%", "50 percent d of 100 percent"},
		"lines":       {" a\n\tb  c ", "a b c"},
		"bad UTF-8":   {"a\xffb", "a?b"},
		"long":        {strings.Repeat("x", 1000), strings.Repeat("x", 897) + "..."},
		"just fits":   {strings.Repeat("x", 900), strings.Repeat("x", 900)},
		"runes whole": {strings.Repeat("é", 500), strings.Repeat("é", 448) + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			got := Message(tc.in)
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if len(got) > MessageLimit || !utf8.ValidString(got) || strings.Contains(got, "%") {
				t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
			}
		})
	}
}

// TestRefusal: Trainer quotes all runtime patches, with the time of the try.
func TestRefusal(t *testing.T) {
	const before, after = `admission webhook "validator" denied the request: spec.runtimePatches: `, `must not have targetJob that doesn't exist in the runtime job template`
	answer := func(time string) string {
		return before + `Invalid value: [{"manager":"dispatch.phpboyscout.uk/admission","time":"` + time + `","trainingRuntimeSpec":{"template":{}}}]: ` + after
	}
	first, second := Refusal(answer("2026-03-01T12:00:00Z")), Refusal(answer("2026-03-01T12:00:01Z"))
	if first != second || first != before+"Invalid value: "+after {
		t.Errorf("%q and %q, want equal texts with the point", first, second)
	}
	if same := "spec.runtimePatches: Forbidden: still active"; Refusal(same) != same {
		t.Errorf("%q", Refusal(same))
	}
}

func TestFixedMessagesAreFit(t *testing.T) {
	for _, m := range []string{MessageRaised, MessageNotGated, MessageLate, MessageTakenBack, MessageOldPods, MessageRunning, MessageUsed, MessageFault} {
		if Message(m) != m {
			t.Errorf("%q is not fit for a check", m)
		}
	}
}
