package ctl

import (
	"strconv"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

const dispatchJob = "dj-01jdem00000000000000000000-s1"

// condition is a true condition since a time.
func condition(kind string, since time.Time) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.NewTime(since)}
}

func entry(name string, state kueue.CheckState, since time.Time, message string) kueue.AdmissionCheckState {
	return kueue.AdmissionCheckState{Name: kueue.AdmissionCheckReference(name), State: state, Message: message, LastTransitionTime: metav1.NewTime(since)}
}

// workload is one of a TrainJob of dispatch, in the queue.
func workload(conditions ...metav1.Condition) *kueue.Workload {
	yes := true
	return &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "trainjob-x", UID: "wl-uid", CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour)),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: trainer.SchemeGroupVersion.String(), Kind: "TrainJob", Name: dispatchJob, UID: "job-uid", Controller: &yes}}},
		Spec:   kueue.WorkloadSpec{QueueName: "lq", PodSets: []kueue.PodSet{{Name: "node", Count: 2, Template: corev1.PodTemplateSpec{}}}},
		Status: kueue.WorkloadStatus{Conditions: conditions},
	}
}

// plainWorkload is one of a Job.
func plainWorkload(conditions ...metav1.Condition) *kueue.Workload {
	wl := workload(conditions...)
	owner := &wl.OwnerReferences[0]
	owner.APIVersion, owner.Kind, owner.Name = "batch/v1", "Job", "plain"
	return wl
}

func evicted(wl *kueue.Workload, n int32) *kueue.Workload {
	wl.Status.SchedulingStats = &kueue.SchedulingStats{Evictions: []kueue.WorkloadSchedulingStatsEviction{{Reason: "Preempted", Count: n}}}
	return wl
}

func checked(wl *kueue.Workload, entries ...kueue.AdmissionCheckState) *kueue.Workload {
	wl.Status.AdmissionChecks = entries
	return wl
}

// held writes a hold into a Workload.
func held(t *testing.T, wl *kueue.Workload, b hold.Book) *kueue.Workload {
	t.Helper()
	text, err := b.Annotation()
	if err != nil {
		t.Fatal(err)
	}
	wl.Annotations = map[string]string{v1alpha1.HoldAnnotation: text}
	wl.Status.Conditions = append(wl.Status.Conditions, condition(v1alpha1.WorkloadHeld, noon))
	return wl
}

// trainJob is a TrainJob of dispatch with an A raised for an attempt; 0 for none.
func trainJob(count int64, a fence.Attempt) *trainer.TrainJob {
	job := &trainer.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: dispatchJob, UID: "job-uid", CreationTimestamp: metav1.NewTime(noon.Add(-2 * time.Hour))}}
	if count == 0 {
		return job
	}
	raise := fence.Raise{Count: count, Attempt: a, Jobs: []string{"node"}}
	annotations := map[string]string{v1alpha1.AdmissionAttemptAnnotation: raise.Attempt.String(), v1alpha1.AdmissionCountAnnotation: itoa(count)}
	job.Spec.RuntimePatches = []trainer.RuntimePatch{{Manager: v1alpha1.AdmissionManager, TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{
		Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{ReplicatedJobs: []trainer.ReplicatedJobPatch{{
			Name: "node", Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{Template: &trainer.PodTemplatePatch{
				Metadata: &metav1.ObjectMeta{Annotations: annotations}}}},
		}}}}}}}
	return job
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// TestQuestion: number of the try, of the offer, and since when held, are those
// that the gate would put into its question.
func TestQuestion(t *testing.T) {
	reserved, minute := condition(kueue.WorkloadQuotaReserved, noon.Add(-time.Minute)), noon.Add(-time.Minute)
	second := func(t time.Time) int64 { return fence.Second(metav1.NewTime(t)) }
	attempt := fence.Attempt{Workload: "wl-uid", Reserved: second(minute), PendingSince: second(minute)}
	pending, ready := entry("policy", kueue.CheckStatePending, minute, ""), entry("policy", kueue.CheckStateReady, noon, "Admitted by the hook.")
	book := hold.Book{Returned: 1, Checks: map[kueue.AdmissionCheckReference]hold.Entry{"policy": {
		Gate: "uid.1", Since: minute, Held: minute, Offers: 2, Next: noon.Add(time.Minute), Message: "Held"}}}
	inactive := workload()
	no := false
	inactive.Spec.Active = &no
	for name, tc := range map[string]struct {
		wl         *kueue.Workload
		job        *trainer.TrainJob
		try, offer int
		held       bool
		note       string
	}{
		"first":                 {wl: checked(workload(reserved), pending), job: trainJob(0, attempt), try: 1, offer: 1},
		"second start":          {wl: checked(workload(reserved), pending), job: trainJob(1, fence.Attempt{Workload: "wl-uid", Reserved: 1}), try: 2, offer: 1},
		"raised already":        {wl: checked(workload(reserved), pending), job: trainJob(2, attempt), try: 2, offer: 1},
		"plain":                 {wl: checked(plainWorkload(reserved), pending), try: 1, offer: 1},
		"plain, evicted":        {wl: checked(evicted(plainWorkload(reserved), 3), pending), try: 4, offer: 1},
		"held":                  {wl: held(t, checked(workload(reserved), pending), book), job: trainJob(0, attempt), try: 1, offer: 3, held: true, note: "the hook is asked next at 2026-03-02T12:01:00Z"},
		"held, parked":          {wl: held(t, checked(evicted(plainWorkload(), 1), pending), book), try: 1, offer: 3, held: true, note: "no quota is reserved"},
		"queued":                {wl: workload(), job: trainJob(0, attempt), try: 1, offer: 1, note: "no quota is reserved"},
		"queued, stale answer":  {wl: checked(workload(), ready), job: trainJob(4, attempt), try: 5, offer: 1, note: "no quota is reserved"},
		"answered":              {wl: checked(workload(reserved), ready), job: trainJob(3, attempt), try: 3, offer: 1},
		"runs":                  {wl: checked(workload(reserved, condition(kueue.WorkloadAdmitted, noon)), ready), job: trainJob(3, attempt), try: 3, offer: 1, note: "the job runs"},
		"runs ungated":          {wl: checked(workload(reserved, condition(kueue.WorkloadAdmitted, noon)), ready), job: trainJob(3, fence.Attempt{}), try: 4, offer: 1, note: "the job runs"},
		"evicted, still quota":  {wl: checked(evicted(workload(reserved, condition(kueue.WorkloadEvicted, noon)), 1), pending), job: trainJob(3, attempt), try: 4, offer: 1, note: "no quota is reserved"},
		"finished":              {wl: checked(workload(reserved, condition(kueue.WorkloadFinished, noon)), ready), job: trainJob(3, attempt), try: 4, offer: 1, note: "has ended"},
		"inactive":              {wl: inactive, job: trainJob(0, attempt), try: 1, offer: 1, note: "has ended or is inactive"},
		"refused by its entry":  {wl: checked(plainWorkload(reserved), entry("policy", kueue.CheckStateRejected, noon, "no")), try: 1, offer: 1},
		"another check pending": {wl: checked(workload(reserved), ready, entry("other", kueue.CheckStatePending, noon, "")), job: trainJob(3, attempt), try: 3, offer: 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := asked{
				workload: tc.wl, trainJob: tc.job, clusterQueue: &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "cq"}},
				ours:  []kueue.AdmissionCheck{{ObjectMeta: metav1.ObjectMeta{Name: "policy"}}, {ObjectMeta: metav1.ObjectMeta{Name: "other"}}},
				check: hooked{"policy", &v1alpha1.AdmissionGate{Spec: v1alpha1.AdmissionGateSpec{Hook: &v1alpha1.Hook{}}}},
			}
			before := tc.wl.DeepCopy()
			req, notes, err := a.request(noon)
			if err != nil {
				t.Fatal(err)
			}
			if req.TryNumber != tc.try || req.OfferCount != tc.offer || req.HeldSince.IsZero() == tc.held || req.ClusterQueue != "cq" {
				t.Errorf("try %d, offer %d, held since %s, queue %q; want %d, %d, %v, cq", req.TryNumber, req.OfferCount, req.HeldSince, req.ClusterQueue, tc.try, tc.offer, tc.held)
			}
			if all := strings.Join(notes, "; "); !strings.Contains(all, tc.note) || tc.note == "" && all != "" {
				t.Errorf("notes %q, want %q", all, tc.note)
			}
			if mustJSON(t, before) != mustJSON(t, tc.wl) {
				t.Error("the Workload was changed")
			}
		})
	}
}

// TestNoQuestion: where nothing would be asked, the gate's own reason is given.
func TestNoQuestion(t *testing.T) {
	garbled := trainJob(1, fence.Attempt{})
	garbled.Spec.RuntimePatches[0].TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Metadata.Annotations[v1alpha1.AdmissionCountAnnotation] = "x"
	other := trainJob(0, fence.Attempt{})
	other.UID = "another"
	for name, tc := range map[string]struct {
		job  *trainer.TrainJob
		want string
	}{
		"gone":         {nil, "the TrainJob of the Workload does not exist any more"},
		"another one":  {other, "the TrainJob of the Workload does not exist any more"},
		"bad record":   {garbled, `is "x", not a positive integer`},
		"no hook, yes": {trainJob(0, fence.Attempt{}), ""},
	} {
		req, notes, err := asked{workload: workload(), trainJob: tc.job}.request(noon)
		switch {
		case tc.want == "":
			if err != nil || req.TryNumber != 1 || !strings.Contains(strings.Join(notes, "; "), "no check of this job has a hook") {
				t.Errorf("%s: %v, notes %q", name, err, notes)
			}
		case err == nil || !strings.Contains(err.Error(), tc.want):
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for _, tc := range []struct {
		arg, namespace string
		want           target
	}{
		{"team-a/wl-1", "", target{"team-a", "workload", "wl-1"}},
		{"workload/wl-1", "team-a", target{"team-a", "workload", "wl-1"}},
		{"wl-1", "team-a", target{"team-a", "workload", "wl-1"}},
		{"wl-1", "", target{"", "workload", "wl-1"}},
		{"TrainJob/x", "", target{"", "trainjob", "x"}},
		{"jobs/x", "team-a", target{"team-a", "job", "x"}},
		{"RayJob/x", "team-a", target{"team-a", "rayjob", "x"}},
		{"rayjob/x", "", target{"rayjob", "workload", "x"}},
	} {
		if got, err := parseTarget(tc.arg, tc.namespace); err != nil || got != tc.want {
			t.Errorf("%s in %q: %+v, %v, want %+v", tc.arg, tc.namespace, got, err, tc.want)
		}
	}
}

func TestPickOwned(t *testing.T) {
	named := func(name, owner string, gone bool) kueue.Workload {
		wl := *plainWorkload()
		wl.Name, wl.OwnerReferences[0].Name = name, owner
		if gone {
			now := metav1.NewTime(noon)
			wl.DeletionTimestamp = &now
		}
		return wl
	}
	for name, tc := range map[string]struct {
		all        []kueue.Workload
		want, fail string
	}{
		"one":      {all: []kueue.Workload{named("a", "x", false), named("b", "y", false)}, want: "a"},
		"replaced": {all: []kueue.Workload{named("a", "x", true), named("b", "x", false)}, want: "b"},
		"going":    {all: []kueue.Workload{named("a", "x", true)}, want: "a"},
		"none":     {fail: "no Workload of job/x in namespace \"ns\": Kueue makes one once the job names a LocalQueue"},
		"several":  {all: []kueue.Workload{named("b", "x", false), named("a", "x", false)}, fail: "has several Workloads: name one of workload/a or b"},
	} {
		wl, err := pickOwned(tc.all, "ns", target{kind: "job", name: "x"})
		if tc.fail == "" && (err != nil || wl.Name != tc.want) || tc.fail != "" && (err == nil || !strings.Contains(err.Error(), tc.fail)) {
			t.Errorf("%s: %v, %v", name, wl, err)
		}
	}
}
