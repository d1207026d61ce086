package ctl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/ctl/explain"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// saying is a condition with a message.
func saying(c metav1.Condition, message string) metav1.Condition {
	c.Message = message
	return c
}

func untrue(c metav1.Condition) metav1.Condition {
	c.Status = metav1.ConditionFalse
	return c
}

// explained are facts about a Workload in a queue that is in order.
func explained(wl *kueue.Workload, changes ...func(*explain.Facts)) explain.Facts {
	check := func(controller, gate string) *kueue.AdmissionCheck {
		c := &kueue.AdmissionCheck{Spec: kueue.AdmissionCheckSpec{ControllerName: controller}}
		c.Name = "policy"
		if gate != "" {
			c.Spec.Parameters = &kueue.AdmissionCheckParametersReference{APIGroup: v1alpha1.GroupName, Kind: v1alpha1.AdmissionGateKind, Name: gate}
		}
		c.Status.Conditions = []metav1.Condition{condition(kueue.AdmissionCheckActive, noon)}
		return c
	}
	f := explain.Facts{
		Workload: wl, TrainJob: trainJob(2, fence.Attempt{}), Now: noon,
		LocalQueue:   &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Name: "lq"}, Spec: kueue.LocalQueueSpec{ClusterQueue: "training"}},
		ClusterQueue: &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "training"}, Status: kueue.ClusterQueueStatus{PendingWorkloads: 3}},
		Checks: map[string]*kueue.AdmissionCheck{
			"policy": check(v1alpha1.ControllerName, "gate"), "foreign": check("example.com/manual", ""),
		},
		Gates: map[string]*v1alpha1.AdmissionGate{"gate": {ObjectMeta: metav1.ObjectMeta{Name: "gate"}, Status: v1alpha1.AdmissionGateStatus{Endpoint: "unix:/run/hook.sock"}}},
		Leads: func() (string, string) { return "", "" },
	}
	f.ClusterQueue.Status.Conditions = []metav1.Condition{condition(kueue.ClusterQueueActive, noon)}
	f.ClusterQueue.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: "policy"}, {Name: "foreign"}}}
	for _, change := range changes {
		change(&f)
	}
	return f
}

// TestExplain shows what is said in each case.
func TestExplain(t *testing.T) {
	reserved := condition(kueue.WorkloadQuotaReserved, noon.Add(-time.Minute))
	unreserved := saying(untrue(condition(kueue.WorkloadQuotaReserved, noon)), "couldn't assign flavors to pod set node: insufficient unused quota for cpu in flavor default, 1 more needed")
	waits := func(message string, changes ...func(*explain.Facts)) explain.Facts {
		return explained(checked(workload(reserved), entry("policy", kueue.CheckStatePending, noon, message), entry("foreign", kueue.CheckStateReady, noon, "ok")), changes...)
	}
	parked := func(wl *kueue.Workload) *kueue.Workload {
		at := metav1.NewTime(noon.Add(time.Hour))
		wl.Status.RequeueState = &kueue.RequeueState{RequeueAt: &at}
		return wl
	}
	hold := saying(condition(v1alpha1.WorkloadHeld, noon), `Held by the hook of AdmissionGate "gate": weekly freeze. Held since 2026-03-02T12:00:00Z. The hook is asked again at 2026-03-02T18:00:00Z.`)
	off := false
	inactive := func(conditions ...metav1.Condition) *kueue.Workload {
		wl := workload(conditions...)
		wl.Spec.Active = &off
		return wl
	}
	gone := workload()
	gone.DeletionTimestamp = &metav1.Time{Time: noon}
	stop := kueue.Hold
	cases := map[string]explain.Facts{
		"01 finished":        explained(workload(saying(condition(kueue.WorkloadFinished, noon), "Job finished successfully"))),
		"02 being deleted":   explained(gone),
		"03 refused":         explained(inactive(saying(condition(v1alpha1.WorkloadRefused, noon), `Refused by the hook of AdmissionGate "gate": at most 8 CPUs`))),
		"04 deactivated":     explained(inactive(saying(condition(kueue.WorkloadEvicted, noon), "exceeded the maximum number of re-queuing retries"))),
		"05 turned off":      explained(inactive()),
		"06 runs":            explained(workload(reserved, condition(kueue.WorkloadAdmitted, noon))),
		"07 runs, not ready": explained(workload(reserved, condition(kueue.WorkloadAdmitted, noon), saying(untrue(condition(kueue.WorkloadPodsReady, noon)), "Not all pods are ready or succeeded"))),
		"08 stopping":        explained(workload(reserved, saying(condition(kueue.WorkloadEvicted, noon), "Preempted to accommodate a workload"))),
		"10 held":            explained(checked(workload(reserved, hold), entry("policy", kueue.CheckStatePending, noon, `Held by the hook of AdmissionGate "gate": weekly freeze`))),
		"11 held, no quota":  explained(parked(workload(unreserved, hold))),
		"12 no verdict":      waits(`Waiting: the hook of AdmissionGate "gate" gave no verdict; it is asked again. The log of the gate has the details.`, func(f *explain.Facts) { f.Gates["gate"].Status.LastError = "connection refused" }),
		"13 pods":            waits("Waiting for the pods of an earlier start to end: 2 pods of the start with admission count 2."),
		"14 not stopped":     waits(gate.MessageNotStopped),
		"15 running":         waits(gate.MessageRunning),
		"16 fault":           waits(gate.MessageFault),
		"17 taken back":      waits(gate.MessageTakenBack),
		"09 asking":          waits(`Waiting for the answer of the hook of AdmissionGate "gate".`),
		"18 changes":         waits(`Waiting: what the hook of AdmissionGate "gate" answered cannot be done: changes.nodeSelector["a"]: conflicts; it is asked again.`),
		"18 another message": waits("The admission count cannot be raised: …"),
		"19 no answer":       waits(""),
		"20 nobody leads": waits("", func(f *explain.Facts) {
			f.Leads = func() (string, string) { return "nobody holds dispatch-system/dispatch-admission", "see why" }
		}),
		"21 check broken": waits("", func(f *explain.Facts) {
			f.Checks["policy"].Status.Conditions[0] = saying(untrue(f.Checks["policy"].Status.Conditions[0]), "spec.parameters names the AdmissionGate")
		}),
		"22 check gone":        waits("", func(f *explain.Facts) { delete(f.Checks, "policy") }),
		"23 foreign":           explained(checked(workload(reserved), entry("policy", kueue.CheckStateReady, noon, "ok"), entry("foreign", kueue.CheckStatePending, noon, "Provisioning."))),
		"24 both":              explained(checked(workload(reserved), entry("policy", kueue.CheckStatePending, noon, gate.MessageOldPods), entry("foreign", kueue.CheckStatePending, noon, ""))),
		"25 rejected":          explained(checked(plainWorkload(reserved), entry("policy", kueue.CheckStateRejected, noon, "Refused by the hook")), noTrainJob),
		"26 retry":             explained(checked(plainWorkload(reserved), entry("policy", kueue.CheckStateRetry, noon, "The quota was given back")), noTrainJob),
		"27 all ready":         explained(checked(workload(reserved), entry("policy", kueue.CheckStateReady, noon, "ok"))),
		"30 quota":             explained(evicted(workload(unreserved), 2)),
		"31 quota, evicted":    explained(workload(unreserved, saying(condition(kueue.WorkloadEvicted, noon), "Preempted to accommodate a workload"))),
		"32 nothing said":      explained(workload()),
		"33 backoff":           explained(parked(workload(unreserved, saying(condition(kueue.WorkloadEvicted, noon), "Exceeded the PodsReady timeout")))),
		"34 no local queue":    explained(workload(), func(f *explain.Facts) { f.LocalQueue, f.ClusterQueue = nil, nil }),
		"35 no cluster queue":  explained(workload(), func(f *explain.Facts) { f.ClusterQueue = nil }),
		"36 local queue stops": explained(workload(unreserved), func(f *explain.Facts) { f.LocalQueue.Spec.StopPolicy = &stop }),
		"37 queue stopped": explained(workload(unreserved), func(f *explain.Facts) {
			f.ClusterQueue.Spec.StopPolicy = &stop
			f.ClusterQueue.Status.Conditions[0] = saying(untrue(f.ClusterQueue.Status.Conditions[0]), "Can't admit new workloads: is stopped.")
		}),
		"38 check stops queue": explained(workload(unreserved), func(f *explain.Facts) {
			f.ClusterQueue.Status.Conditions[0] = saying(untrue(f.ClusterQueue.Status.Conditions[0]), "Can't admit new workloads: references inactive AdmissionCheck(s): policy.")
			f.Checks["policy"].Status.Conditions = nil
		}),
		"39 bad count": explained(workload(unreserved), func(f *explain.Facts) {
			patch := &f.TrainJob.Spec.RuntimePatches[0]
			patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Metadata.Annotations[v1alpha1.AdmissionCountAnnotation] = "x"
		}),
	}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		e := explain.Explain(cases[name])
		fmt.Fprintf(&all, "=== %s: %s\n", name, e.State)
		explainText(&all, e)
		fmt.Fprintln(&all)
	}
	golden(t, "explain", all.String())
}

func noTrainJob(f *explain.Facts) { f.TrainJob = (*trainer.TrainJob)(nil) }
