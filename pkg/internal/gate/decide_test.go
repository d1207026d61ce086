package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
)

const (
	pending = kueue.CheckStatePending
	ready   = kueue.CheckStateReady
	jobName = "dj-01j9zzzzzzzzzzzzzzzzzzzzzz-s1"
)

// epoch is when everything in these tests began.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) metav1.Time {
	return metav1.NewTime(epoch.Add(time.Duration(seconds) * time.Second))
}

// workload builds a Workload of dispatch's TrainJob, reserved at second 10, with
// our check Pending since second 5.
func workload(changes ...func(*kueue.Workload)) *kueue.Workload {
	controller := true
	wl := &kueue.Workload{}
	wl.Name, wl.Namespace, wl.UID, wl.ResourceVersion = "wl", "team", "wl-1", "1"
	wl.OwnerReferences = []metav1.OwnerReference{{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: jobName, UID: "tj-1", Controller: &controller}}
	wl.Spec.PodSets = []kueue.PodSet{{Name: "node"}}
	cond(kueue.WorkloadQuotaReserved, true, 10)(wl)
	check("ours", pending, "", 5)(wl)
	for _, change := range changes {
		change(wl)
	}
	return wl
}

func cond(kind string, on bool, second int) func(*kueue.Workload) {
	return func(wl *kueue.Workload) {
		status := metav1.ConditionFalse
		if on {
			status = metav1.ConditionTrue
		}
		for i, c := range wl.Status.Conditions {
			if c.Type == kind {
				wl.Status.Conditions[i].Status, wl.Status.Conditions[i].LastTransitionTime = status, at(second)
				return
			}
		}
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kind, Status: status, LastTransitionTime: at(second)})
	}
}

func check(name string, state kueue.CheckState, message string, second int) func(*kueue.Workload) {
	return func(wl *kueue.Workload) {
		entry := kueue.AdmissionCheckState{Name: kueue.AdmissionCheckReference(name), State: state, Message: message, LastTransitionTime: at(second)}
		for i, c := range wl.Status.AdmissionChecks {
			if c.Name == entry.Name {
				wl.Status.AdmissionChecks[i] = entry
				return
			}
		}
		wl.Status.AdmissionChecks = append(wl.Status.AdmissionChecks, entry)
	}
}

func evictions(n int32) func(*kueue.Workload) {
	return func(wl *kueue.Workload) {
		wl.Status.SchedulingStats = &kueue.SchedulingStats{Evictions: []kueue.WorkloadSchedulingStatsEviction{{Reason: "Preempted", Count: n}}}
	}
}

func owner(apiVersion, kind, uid string) func(*kueue.Workload) {
	return func(wl *kueue.Workload) {
		o := &wl.OwnerReferences[0]
		o.APIVersion, o.Kind, o.UID = apiVersion, kind, "tj-1"
		if uid != "" {
			o.UID = "tj-2"
		}
	}
}

// trainJob builds dispatch's TrainJob, suspended and never started.
func trainJob(changes ...func(*trainer.TrainJob)) *trainer.TrainJob {
	suspended, one := true, int32(1)
	job := &trainer.TrainJob{}
	job.Name, job.Namespace, job.UID, job.ResourceVersion = jobName, "team", "tj-1", "1"
	job.Spec.Suspend = &suspended
	job.Status.Conditions = []metav1.Condition{{Type: trainer.TrainJobSuspended, Status: metav1.ConditionTrue}}
	job.Status.JobsStatus = []trainer.JobStatus{{Name: "node", Suspended: &one}}
	for _, change := range changes {
		change(job)
	}
	return job
}

func running(job *trainer.TrainJob) { *job.Spec.Suspend = false }

// justResumed is a TrainJob whose Jobs were resumed and have no pod counted yet.
func justResumed(job *trainer.TrainJob) {
	job.Status.JobsStatus = []trainer.JobStatus{{Name: "node"}}
}

// unnoted is a TrainJob whose suspension Trainer has yet to notice.
func unnoted(job *trainer.TrainJob) { job.Status.Conditions[0].Status = metav1.ConditionFalse }

// elsewhereRun is a TrainJob that MultiKueue runs in another cluster.
func elsewhereRun(job *trainer.TrainJob) {
	manager := "kueue.x-k8s.io/multikueue"
	job.Spec.ManagedBy = &manager
}

func foreign(job *trainer.TrainJob) { job.Name = "somebody-elses" }

func activePods(job *trainer.TrainJob) {
	n := int32(1)
	job.Status.JobsStatus = []trainer.JobStatus{{Name: "node", Active: &n}}
}

// raised gives the TrainJob the count n, raised for an attempt.
func raised(count string, a fence.Attempt) func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) {
		job.Spec.RuntimePatches = []trainer.RuntimePatch{{Manager: v1alpha1.AdmissionManager, TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{
			Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{ReplicatedJobs: []trainer.ReplicatedJobPatch{{
				Name: "node", Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{Template: &trainer.PodTemplatePatch{
					Metadata: &metav1.ObjectMeta{Annotations: map[string]string{
						v1alpha1.AdmissionCountAnnotation: count, v1alpha1.AdmissionAttemptAnnotation: a.String(),
					}}}}}}}}}}}}
	}
}

// attempt is the one that workload() is at.
func attempt(changes ...func(*fence.Attempt)) fence.Attempt {
	a := fence.Attempt{Workload: "wl-1", Reserved: at(10).Unix(), PendingSince: at(5).Unix()}
	for _, change := range changes {
		change(&a)
	}
	return a
}

// wrote is what a plan writes for one check; state "" means nothing.
type wrote struct {
	state   kueue.CheckState
	message string
}

func TestDecide(t *testing.T) {
	late := func(a *fence.Attempt) { a.Reserved++ }
	admitted := cond(kueue.WorkloadAdmitted, true, 12)
	queued := cond(kueue.WorkloadQuotaReserved, false, 11)
	answered := check("ours", ready, MessageRaised, 11)
	cases := map[string]struct {
		wl        *kueue.Workload
		job       *trainer.TrainJob
		loss      Loss
		broken    string
		wantCase  Case
		wantRaise int64
		want      wrote
		wantRetry bool
		reason    string
	}{
		"first start":            {wl: workload(), job: trainJob(), wantCase: CaseRaise, wantRaise: 1, want: wrote{ready, MessageRaised}},
		"second start":           {wl: workload(evictions(1)), job: trainJob(raised("1", attempt())), wantCase: CaseRaise, wantRaise: 2, want: wrote{ready, MessageRaised}},
		"recreated":              {wl: workload(), job: trainJob(raised("4", attempt(func(a *fence.Attempt) { a.Workload = "wl-0" }))), wantCase: CaseRaise, wantRaise: 5, want: wrote{ready, MessageRaised}, reason: "a new UID is a new attempt"},
		"same second, evicted":   {wl: workload(evictions(2)), job: trainJob(raised("2", attempt(func(a *fence.Attempt) { a.Evictions = 1 }))), wantCase: CaseRaise, wantRaise: 3, want: wrote{ready, MessageRaised}, reason: "times are the same, the evictions are not"},
		"same second, taken":     {wl: workload(check("ours", pending, MessageTakenBack, 11)), job: trainJob(raised("2", attempt())), wantCase: CaseRaise, wantRaise: 3, want: wrote{ready, MessageRaised}, reason: "only the time since which the check is pending differs"},
		"crash between writes":   {wl: workload(), job: trainJob(raised("1", attempt())), wantCase: CaseRaised, want: wrote{ready, MessageRaised}, reason: "A was raised for this attempt already"},
		"not a trainjob":         {wl: workload(owner("batch/v1", "Job", "")), wantCase: CaseNotGated, want: wrote{ready, MessageNotGated}},
		"same kind, other group": {wl: workload(owner("example.com/v1", "TrainJob", "")), wantCase: CaseNotGated, want: wrote{ready, MessageNotGated}},
		"no owner":               {wl: workload(func(wl *kueue.Workload) { wl.OwnerReferences = nil }), wantCase: CaseNotGated, want: wrote{ready, MessageNotGated}},
		"not a controller":       {wl: workload(func(wl *kueue.Workload) { wl.OwnerReferences[0].Controller = nil }), wantCase: CaseNotGated, want: wrote{ready, MessageNotGated}},
		"not dispatch's":         {wl: workload(), job: trainJob(foreign), wantCase: CaseNotGated, want: wrote{ready, MessageNotGated}},
		"owner missing":          {wl: workload(), wantCase: CaseOwnerGone},
		"owner replaced":         {wl: workload(owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "2")), job: trainJob(), wantCase: CaseOwnerGone},
		"newer trainer API":      {wl: workload(owner("trainer.kubeflow.org/v1", "TrainJob", "")), job: trainJob(), wantCase: CaseRaise, wantRaise: 1, want: wrote{ready, MessageRaised}, reason: "the group makes the kind, not the version"},
		"running":                {wl: workload(), job: trainJob(running), wantCase: CaseRunning, want: wrote{pending, MessageRunning}},
		"suspend unset":          {wl: workload(), job: trainJob(func(j *trainer.TrainJob) { j.Spec.Suspend = nil }), wantCase: CaseRunning, want: wrote{pending, MessageRunning}},
		"old pods":               {wl: workload(evictions(1)), job: trainJob(raised("1", attempt()), activePods), wantCase: CaseOldPods, want: wrote{pending, MessageOldPods}, wantRetry: true},
		"old pods, told":         {wl: workload(evictions(1), check("ours", pending, MessageOldPods, 5)), job: trainJob(raised("1", attempt()), activePods), wantCase: CaseOldPods, wantRetry: true, reason: "an unchanged world is not written again"},
		"resumed a moment ago":   {wl: workload(evictions(1)), job: trainJob(raised("1", attempt()), justResumed), wantCase: CaseOldPods, want: wrote{pending, MessageOldPods}, wantRetry: true, reason: "no pod is counted yet, so none proves nothing"},
		"suspension unnoted":     {wl: workload(evictions(1)), job: trainJob(raised("1", attempt()), unnoted), wantCase: CaseOldPods, want: wrote{pending, MessageOldPods}, wantRetry: true, reason: "the next start could come before Trainer notices, and the old Jobs would go on"},
		"run elsewhere":          {wl: workload(evictions(1)), job: trainJob(raised("1", attempt()), unnoted, justResumed, elsewhereRun), wantCase: CaseRaise, wantRaise: 2, want: wrote{ready, MessageRaised}, reason: "no Trainer here reports on it"},
		"first start, no status": {wl: workload(), job: trainJob(unnoted, justResumed), wantCase: CaseRaise, wantRaise: 1, want: wrote{ready, MessageRaised}, reason: "there was no earlier start"},
		"ran while pending":      {wl: workload(), job: trainJob(raised("1", attempt()), running), wantCase: CaseUsed, want: wrote{pending, MessageUsed}, reason: "its pods carry the A that this start was to have"},
		"ran, being stopped":     {wl: workload(), job: trainJob(raised("1", attempt()), activePods), wantCase: CaseUsed, want: wrote{pending, MessageUsed}},
		"ran while answered":     {wl: workload(answered), job: trainJob(raised("1", attempt()), running), wantCase: CaseUsed, want: wrote{pending, MessageUsed}},
		"ran, voided":            {wl: workload(check("ours", pending, MessageUsed, 21)), job: trainJob(raised("1", attempt())), wantCase: CaseRaise, wantRaise: 2, want: wrote{ready, MessageRaised}},
		"unreadable count":       {wl: workload(), job: trainJob(raised("x", attempt())), wantCase: CaseBadRecord, want: wrote{pending, "The admission count cannot be raised: "}},
		"largest count":          {wl: workload(evictions(1)), job: trainJob(raised("9223372036854775807", attempt())), wantCase: CaseBadRecord, want: wrote{pending, "The admission count cannot be raised: "}},
		"broken check":           {wl: workload(), job: trainJob(), broken: "spec.parameters is wrong", wantCase: CaseNone, want: wrote{pending, "spec.parameters is wrong"}, reason: "nothing starts through a check that cannot serve, and A stays"},
		"stale, queued":          {wl: workload(answered, queued), job: trainJob(raised("1", attempt())), wantCase: CaseStale, want: wrote{pending, MessageTakenBack}},
		"stale, regained":        {wl: workload(answered), job: trainJob(raised("1", attempt(late))), wantCase: CaseStale, want: wrote{pending, MessageTakenBack}, reason: "the answer is of another reservation"},
		"stale, same second":     {wl: workload(answered), job: trainJob(raised("1", attempt())), loss: Loss{"ours": at(11).Unix()}, wantCase: CaseStale, want: wrote{pending, MessageTakenBack}, reason: "only the watch saw the loss"},
		"loss of long ago":       {wl: workload(answered), job: trainJob(raised("1", attempt())), loss: Loss{"ours": at(9).Unix()}, wantCase: CaseNone, reason: "the answer that stands is a later one"},
		"answered, others wait":  {wl: workload(answered), job: trainJob(raised("1", attempt())), wantCase: CaseNone},
		"foreign, queued":        {wl: workload(check("ours", ready, MessageNotGated, 11), queued), job: trainJob(foreign), wantCase: CaseStale, want: wrote{pending, MessageTakenBack}},
		"foreign, answered":      {wl: workload(check("ours", ready, MessageNotGated, 11)), job: trainJob(foreign), wantCase: CaseNone},
		"queued":                 {wl: workload(queued), job: trainJob(), wantCase: CaseNone},
		"evicted":                {wl: workload(cond(kueue.WorkloadEvicted, true, 12)), job: trainJob(), wantCase: CaseNone, reason: "a write here wedges the Workload"},
		"evicted, queued, ready": {wl: workload(answered, queued, cond(kueue.WorkloadEvicted, true, 12)), job: trainJob(), wantCase: CaseNone},
		"finished":               {wl: workload(cond(kueue.WorkloadFinished, true, 12)), job: trainJob(), wantCase: CaseNone},
		"inactive":               {wl: workload(func(wl *kueue.Workload) { off := false; wl.Spec.Active = &off }), job: trainJob(), wantCase: CaseNone},
		"deleted":                {wl: workload(func(wl *kueue.Workload) { now := at(12); wl.DeletionTimestamp = &now }), job: trainJob(), wantCase: CaseNone},
		"no check of ours":       {wl: workload(func(wl *kueue.Workload) { wl.Status.AdmissionChecks[0].Name = "theirs" }), job: trainJob(), wantCase: CaseNone},
		"retry of ours":          {wl: workload(check("ours", kueue.CheckStateRetry, "", 5)), job: trainJob(), wantCase: CaseNone, reason: "Kueue resets it to Pending"},
		"check came late":        {wl: workload(admitted), job: trainJob(running), wantCase: CaseLate, want: wrote{ready, MessageLate}},
		"late, told":             {wl: workload(admitted, check("ours", ready, MessageLate, 13)), job: trainJob(running), wantCase: CaseNone, reason: "its start was never ours to gate"},
		"started":                {wl: workload(admitted, answered), job: trainJob(raised("1", attempt()), running), wantCase: CaseNone},
		"started ungated":        {wl: workload(admitted, answered), job: trainJob(raised("1", attempt(late)), running), wantCase: CaseUngated},
		"ungated, same second":   {wl: workload(admitted, answered), job: trainJob(raised("1", attempt()), running), loss: Loss{"ours": at(11).Unix()}, wantCase: CaseUngated},
		"started, no record":     {wl: workload(admitted, answered), job: trainJob(running), wantCase: CaseUngated},
		"started, foreign":       {wl: workload(admitted, check("ours", ready, MessageNotGated, 11)), job: trainJob(foreign, running), wantCase: CaseNone},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := tc.wl.DeepCopy()
			snap := Snapshot{Workload: tc.wl, TrainJob: tc.job, Loss: tc.loss, Checks: map[kueue.AdmissionCheckReference]Check{"ours": {Broken: tc.broken}}}
			got := Decide(snap, epoch.Add(20*time.Second))
			if got.Case != tc.wantCase || got.Retry != tc.wantRetry {
				t.Errorf("case %s, retry %v, want %s, %v: %s", got.Case, got.Retry, tc.wantCase, tc.wantRetry, tc.reason)
			}
			var count int64
			if got.Raise != nil {
				count = got.Raise.Count
			}
			if count != tc.wantRaise {
				t.Errorf("raises A to %d, want %d: %s", count, tc.wantRaise, tc.reason)
			}
			var w wrote
			if got.Checks != nil {
				w = wrote{got.Checks[0].State, got.Checks[0].Message}
			}
			if w.state != tc.want.state || !strings.HasPrefix(w.message, tc.want.message) {
				t.Errorf("writes %+v, want %+v: %s", w, tc.want, tc.reason)
			}
			if diff := cmp.Diff(before, tc.wl); diff != "" {
				t.Errorf("the snapshot was changed, which the cache shares:\n%s", diff)
			}
		})
	}
}

func TestTwoChecks(t *testing.T) {
	snap := Snapshot{
		Workload: workload(check("second", pending, "", 6), check("theirs", pending, "", 6)), TrainJob: trainJob(),
		Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}, "second": {}},
	}
	plan := Decide(snap, epoch.Add(20*time.Second))
	if plan.Raise == nil || plan.Raise.Count != 1 || len(plan.Checks) != 2 {
		t.Fatalf("plan %+v, want one raise and both of our checks", plan)
	}
	if plan.Raise.Attempt.PendingSince != at(6).Unix() {
		t.Errorf("pending since %d, want the later of the two", plan.Raise.Attempt.PendingSince)
	}

	// One is answered, the other appears anew: A stands for both.
	snap.TrainJob = trainJob(raised("1", plan.Raise.Attempt))
	snap.Workload = workload(check("ours", ready, MessageRaised, 11), check("second", pending, "", 15))
	plan = Decide(snap, epoch.Add(20*time.Second))
	if plan.Case != CaseRaised || plan.Raise != nil {
		t.Errorf("case %s, raise %v, want the second check answered with the same A", plan.Case, plan.Raise)
	}
	if want := at(11); !plan.Checks[0].LastTransitionTime.Equal(&want) {
		t.Errorf("the answered check got the transition time %s", plan.Checks[0].LastTransitionTime)
	}
}

func TestBrokenCheckBesideASoundOne(t *testing.T) {
	snap := Snapshot{
		Workload: workload(check("broken", pending, "", 6)), TrainJob: trainJob(),
		Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}, "broken": {Broken: "gate missing"}},
	}
	plan := Decide(snap, epoch.Add(20*time.Second))
	if plan.Raise == nil || plan.Checks[0].State != ready || plan.Checks[1].State != pending || plan.Checks[1].Message != "gate missing" {
		t.Errorf("plan %+v, want the sound check answered and the broken one explained", plan)
	}
}

func TestTakeBackMovesTimeForward(t *testing.T) {
	for name, tc := range map[string]struct {
		now, want int
	}{
		"clock ahead":      {now: 20, want: 20},
		"same second":      {now: 11, want: 12},
		"clock far behind": {now: -300, want: 12},
	} {
		t.Run(name, func(t *testing.T) {
			wl := workload(check("ours", ready, MessageRaised, 11), cond(kueue.WorkloadQuotaReserved, false, 11))
			plan := Decide(Snapshot{Workload: wl, Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}}}, at(tc.now).Time)
			if want := at(tc.want); !plan.Checks[0].LastTransitionTime.Equal(&want) {
				t.Errorf("pending since %s, want %s", plan.Checks[0].LastTransitionTime, want)
			}
		})
	}
}

// TestUsedCountIsVoidForGood: once its A is used up, whatever was Pending is so
// since a later second, so that the next look raises.
func TestUsedCountIsVoidForGood(t *testing.T) {
	for name, wl := range map[string]*kueue.Workload{
		"pending":  workload(),
		"answered": workload(check("ours", ready, MessageRaised, 11)),
	} {
		t.Run(name, func(t *testing.T) {
			snap := Snapshot{Workload: wl, TrainJob: trainJob(raised("1", attempt()), running), Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}}}
			wl.Status.AdmissionChecks = Decide(snap, epoch).Checks
			if again := Decide(snap, epoch); again.Case != CaseRunning {
				t.Fatalf("case %s while it still runs, want %s", again.Case, CaseRunning)
			}
			snap.TrainJob = trainJob(raised("1", attempt()))
			if plan := Decide(snap, epoch); plan.Raise == nil || plan.Raise.Count != 2 {
				t.Errorf("case %s, raise %+v, want A raised to 2", plan.Case, plan.Raise)
			}
		})
	}
}

func TestEarlierAnswerIsDropped(t *testing.T) {
	wl := workload()
	wl.Status.AdmissionChecks[0].PodSetUpdates = []kueue.PodSetUpdate{{Name: "node", Labels: map[string]string{"zone": "a"}}}
	plan := Decide(Snapshot{Workload: wl, TrainJob: trainJob(), Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}}}, epoch)
	if len(plan.Checks[0].PodSetUpdates) != 0 {
		t.Errorf("the new answer keeps %v", plan.Checks[0].PodSetUpdates)
	}
}

func TestRefused(t *testing.T) {
	snap := Snapshot{Workload: workload(), TrainJob: trainJob(), Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}}}
	plan := Decide(snap, epoch)
	if fault := snap.Faulted(plan, epoch); !fault.Retry || fault.Checks[0].Message != MessageFault || fault.Checks[0].State != pending {
		t.Errorf("plan %+v, want the check Pending with the fault and another try", fault)
	}
	refused := snap.Refused(plan, "pods are 100% active", epoch)
	if refused.Raise != nil || !refused.Retry || refused.Checks[0].State != pending {
		t.Fatalf("plan %+v, want the check Pending and another try", refused)
	}
	snap.Workload.Status.AdmissionChecks = refused.Checks
	if again := snap.Refused(plan, "pods are 100% active", epoch.Add(time.Minute)); again.Checks != nil || !again.Retry {
		t.Errorf("the same refusal is written again: %+v", again.Checks)
	}
}

// TestDecideIsStable carries plans out and decides again: nothing may be left to
// write, whatever the first plan was.
func TestDecideIsStable(t *testing.T) {
	snaps := map[string]Snapshot{
		"gated":     {Workload: workload(), TrainJob: trainJob()},
		"foreign":   {Workload: workload(), TrainJob: trainJob(foreign)},
		"old pods":  {Workload: workload(), TrainJob: trainJob(activePods)},
		"running":   {Workload: workload(), TrainJob: trainJob(running)},
		"late":      {Workload: workload(cond(kueue.WorkloadAdmitted, true, 12)), TrainJob: trainJob()},
		"stale":     {Workload: workload(check("ours", ready, MessageRaised, 11), cond(kueue.WorkloadQuotaReserved, false, 11)), TrainJob: trainJob()},
		"bad count": {Workload: workload(), TrainJob: trainJob(raised("no", attempt()))},
	}
	for name, snap := range snaps {
		t.Run(name, func(t *testing.T) {
			snap.Checks = map[kueue.AdmissionCheckReference]Check{"ours": {}}
			plan := Decide(snap, epoch.Add(20*time.Second))
			if plan.Raise != nil {
				raised("1", plan.Raise.Attempt)(snap.TrainJob)
			}
			snap.Workload.Status.AdmissionChecks = plan.Checks
			again := Decide(snap, epoch.Add(time.Hour))
			if again.Raise != nil || again.Checks != nil {
				t.Errorf("after %s a second look writes again: %+v", plan.Case, again)
			}
		})
	}
}
