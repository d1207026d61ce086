package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// TestDecisions has what becomes of each answer of a hook, side by side.
func TestDecisions(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	sideBySide(t, map[string]func(*testing.T){
		"Admit":              decisionAdmit,
		"AdmitWith":          decisionAdmitWith,
		"Refuse":             decisionRefuse,
		"Audit":              decisionAudit,
		"FailOpen":           decisionFailOpen,
		"NotOnAllowlist":     decisionNotOnAllowlist,
		"ReservedKeys":       decisionReservedKeys,
		"MissingChoices":     decisionMissingChoices,
		"AppearsLate":        hookedCheckAppearsLate,
		"StaleIsTakenBack":   hookedStaleIsTakenBack,
		"RunsBeforeItsCheck": hookedRunning,
	})
	// Hooks fail in these stories, and somebody starts a job past Kueue.
	for _, line := range gate.find("level=ERROR") {
		t.Errorf("the gate logged: %s", line)
	}
}

// decisionAdmit: the job starts unchanged, and the check says whose word it was.
func decisionAdmit(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	job, plain, foreign := q.submit(dispatchName()), q.batchJob("plain"), q.submit("somebody-elses")
	q.awaitStart(job, "1")
	q.awaitStart(foreign, "")
	for _, p := range q.awaitPods(plain, 2) {
		if len(p.Spec.NodeSelector) > 0 || p.Spec.ServiceAccountName != "default" || p.Spec.PriorityClassName != "" {
			t.Errorf("a pod was changed: %+v", p.Spec)
		}
	}
	for _, o := range []client.Object{job, plain, foreign} {
		wl := awaitMessage(t, o, gate.Name, kueue.CheckStateReady, "Admitted by the hook of AdmissionGate", gate.Name)
		if c := checkOf(wl, gate.Name); len(c.PodSetUpdates) > 0 {
			t.Errorf("%s got updates: %v", o.GetName(), c.PodSetUpdates)
		}
		h.askedOnce(o)
	}
}

// everything changes all that a hook can.
func everything(class string) admission.Changes {
	return admission.Changes{
		NodeSelector:      map[string]string{cluster.PoolLabel: "reserved"},
		Labels:            map[string]string{"example.com/team": "chosen"},
		Annotations:       map[string]string{"example.com/note": "50% of what was chosen"},
		Tolerations:       []admission.Toleration{{Key: cluster.ReservedTaint, Value: "true", Effect: "NoSchedule"}},
		PriorityClassName: class,
		ServiceAccount:    chosenAccount,
	}
}

// wantEverything fails the test unless a pod has it all.
func wantEverything(t *testing.T, pod *corev1.Pod, class string) {
	t.Helper()
	s := pod.Spec
	tolerated := false
	for _, o := range s.Tolerations {
		tolerated = tolerated || o.Key == cluster.ReservedTaint && o.Value == "true" && o.Effect == corev1.TaintEffectNoSchedule
	}
	for what, ok := range map[string]bool{
		"the node selector":      s.NodeSelector[cluster.PoolLabel] == "reserved",
		"the label":              pod.Labels["example.com/team"] == "chosen",
		"the annotation":         pod.Annotations["example.com/note"] == "50% of what was chosen",
		"the toleration":         tolerated,
		"the priority class":     s.PriorityClassName == class,
		"its priority":           s.Priority != nil && *s.Priority == 5000,
		"its preemption policy":  s.PreemptionPolicy != nil && *s.PreemptionPolicy == corev1.PreemptNever,
		"the service account":    s.ServiceAccountName == chosenAccount,
		"a token of the account": tokens(pod)[0] == 1,
	} {
		if !ok {
			t.Errorf("pod %s lacks %s: %s", pod.Name, what, asJSON(t, pod))
			return
		}
	}
}

// decisionAdmitWith: all six fields reach the pods, of a TrainJob, of a Job and of
// a JobSet, which then run where only such pods can. The pods of a job that the
// hook left alone have none of it.
func decisionAdmitWith(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	q.setQuota("20")
	class := q.newChoices()
	other := q.batchJob("other")
	others := q.awaitPods(other, 2)

	h.says(admission.AdmitWith(everything(class)))
	job := q.submit(dispatchName())
	jobs := map[client.Object]int{job: 2, q.batchJob("plain"): 2, q.jobSet("set", func(*jobset.JobSet) {}): 5}
	for o, n := range jobs {
		awaitMessage(t, o, gate.Name, kueue.CheckStateReady, "Admitted with changes by the hook of AdmissionGate", gate.Name)
		for _, p := range q.awaitRunning(o, n) {
			wantEverything(t, p, class)
			if p.Spec.NodeName != "node-2" {
				t.Errorf("%s runs on %s, not on the reserved node", p.Name, p.Spec.NodeName)
			}
		}
	}
	q.awaitStart(job, "1")
	for _, p := range others {
		if s := p.Spec; len(s.NodeSelector) > 0 || s.ServiceAccountName != "default" || s.PriorityClassName != "" || *s.Priority != 0 || p.Labels["example.com/team"] != "" {
			t.Errorf("a pod of another job was changed: %s", asJSON(t, p))
		}
	}
	var template batchv1.Job
	if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(other), &template); err != nil {
		t.Fatal(err)
	}
	if len(template.Spec.Template.Annotations[v1alpha1.ServiceAccountAnnotation]) > 0 {
		t.Errorf("the template of another job was changed: %v", template.Spec.Template)
	}
}

// decisionRefuse: the job fails for good, and its owner can read why wherever they
// look: events on Workload and job, and a condition that outlives Kueue's reset of
// the check. What lets it run again is to delete the Workload.
func decisionRefuse(t *testing.T) {
	h := newHook(t, admission.Refuse("no budget is left for 100% of these"))
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	versions := watchVersions(t, q.name)
	job, plain := q.submit(dispatchName()), q.batchJob("plain")
	refused := map[client.Object]*kueue.Workload{job: nil, plain: nil}
	for o := range refused {
		said := versions.sees(t, o, "the check is rejected", func(wl *kueue.Workload) bool { return checkOf(wl, gate.Name).State == kueue.CheckStateRejected })
		if m := checkOf(said, gate.Name).Message; !strings.Contains(m, "Refused by the hook of AdmissionGate") || !strings.Contains(m, "no budget is left") {
			t.Errorf("message %q", m)
		}
		refused[o] = q.awaitRefused(gate, o, "no budget is left")
	}
	wantCount(t, job, "")
	if n := len(h.asked(job)); n != 1 {
		t.Errorf("the hook was asked %d times about a job that it refused", n)
	}
	h.says(admission.Admit())
	q.staysRefused(plain)
	for o, wl := range refused {
		if err := shared.admin.Delete(t.Context(), wl); err != nil {
			t.Fatal(err)
		}
		again := awaitWorkload(t, o, "is another one, and admitted", func(other *kueue.Workload) bool {
			return other.UID != wl.UID && has(other, kueue.WorkloadAdmitted)
		})
		if c := conditionOf(again, v1alpha1.WorkloadRefused); c.Status == metav1.ConditionTrue {
			t.Errorf("it runs, and is still called refused: %+v", c)
		}
		q.awaitPods(o, 2)
	}
	q.awaitStart(job, "1")
}

// awaitRefused waits until a job has failed for good, and sees that its owner can
// read why.
func (q *queue) awaitRefused(gate *v1alpha1.AdmissionGate, job client.Object, reason string) *kueue.Workload {
	q.t.Helper()
	wl := awaitWorkload(q.t, job, "is inactive, without quota", func(wl *kueue.Workload) bool {
		return wl.Spec.Active != nil && !*wl.Spec.Active && !has(wl, kueue.WorkloadQuotaReserved)
	})
	awaitEvents(q.t, job, "HookRefused", reason, gate.Name)
	c := conditionOf(wl, v1alpha1.WorkloadRefused)
	if c.Status != metav1.ConditionTrue || c.Reason != "HookRefused" || !strings.Contains(c.Message, reason) {
		q.t.Errorf("condition %+v", c)
	}
	if m := checkOf(wl, gate.Name).Message; strings.Contains(m, reason) {
		q.t.Errorf("Kueue left the message of the check alone, %q; the condition was made because it does not", m)
	}
	q.neverStarted(job)
	return wl
}

// staysRefused pins what Kueue does: a job whose check was rejected is not queued
// again by making its Workload active. A job that comes later shows that its turn
// would have come.
func (q *queue) staysRefused(job client.Object) {
	q.t.Helper()
	setActive(q.t, job, true)
	q.awaitPods(q.batchJob("later"), 2)
	wl, err := workloadOf(q.t.Context(), q.name, job.GetUID())
	if err != nil {
		q.t.Fatal(err)
	}
	if c := conditionOf(wl, kueue.WorkloadRequeued); c.Status != metav1.ConditionFalse || has(wl, kueue.WorkloadQuotaReserved) {
		q.t.Errorf("Kueue queues a refused job again, so the documentation should say so: %s", describeWorkload(wl))
	}
}

// decisionAudit: whatever the hook answers, the job runs unchanged, and it is told
// what would have become of it.
func decisionAudit(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h, func(s *v1alpha1.AdmissionGateSpec) { s.Hook.Mode = v1alpha1.ModeAudit })
	q := newHookedQueue(t, gate)
	q.setQuota("40")
	class := q.newChoices()
	for name, tc := range map[string]struct {
		answer func(context.Context, *admission.Request) (admission.Decision, error)
		words  []string
	}{
		"hold":   {decides(admission.Hold("not in a freeze")), []string{"answered Hold", "not in a freeze"}},
		"refuse": {decides(admission.Refuse("no budget")), []string{"answered Refuse", "no budget"}},
		"change": {decides(admission.AdmitWith(everything(class))), []string{"answered AdmitWith"}},
		"nothing": {func(context.Context, *admission.Request) (admission.Decision, error) {
			return admission.Decision{}, errors.New("broken")
		}, []string{"gave no verdict"}},
	} {
		h.does(tc.answer)
		job := q.batchJob(name)
		words := append([]string{"mode Audit", gate.Name}, tc.words...)
		wl := awaitMessage(t, job, gate.Name, kueue.CheckStateReady, words...)
		awaitEvents(t, job, "HookAudited", words...)
		for _, p := range q.awaitPods(job, 2) {
			if p.Spec.ServiceAccountName != "default" || len(p.Spec.NodeSelector) > 0 || p.Labels["example.com/team"] != "" {
				t.Errorf("%s: a pod was changed: %s", name, asJSON(t, p))
			}
		}
		if has(wl, v1alpha1.WorkloadHeld) || has(wl, v1alpha1.WorkloadRefused) {
			t.Errorf("%s: %s", name, describeWorkload(wl))
		}
		h.askedOnce(job)
	}
}

func decides(d admission.Decision) admission.HookFunc {
	return func(context.Context, *admission.Request) (admission.Decision, error) { return d, nil }
}

// decisionFailOpen: without a verdict the job starts unchanged and is marked; a
// Hold and a Refuse never fail open.
func decisionFailOpen(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h, failOpen, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("20")
	h.does(func(context.Context, *admission.Request) (admission.Decision, error) {
		return admission.Decision{}, errors.New("broken")
	})
	broken := q.batchJob("broken")
	awaitMessage(t, broken, gate.Name, kueue.CheckStateReady, "failurePolicy Admit", gate.Name)
	awaitEvents(t, broken, "HookFailedOpen", "failurePolicy Admit")
	q.awaitPods(broken, 2)

	h.says(admission.AdmitWith(admission.Changes{Labels: map[string]string{"kueue.x-k8s.io/queue-name": "mine"}}))
	wrong := q.submit(dispatchName())
	awaitMessage(t, wrong, gate.Name, kueue.CheckStateReady, "failurePolicy Admit", "kueue.x-k8s.io/queue-name")
	q.awaitStart(wrong, "1")

	h.says(admission.Hold("not in a freeze"))
	held := q.batchJob("held")
	h.awaitAsked(held, 2)
	awaitMessage(t, held, gate.Name, kueue.CheckStatePending, "not in a freeze")
	h.says(admission.Refuse("no budget"))
	awaitEvents(t, held, "HookRefused", "no budget")
	q.neverStarted(held)
}

// awaitWrong waits until a job is held because what the hook chose cannot be done,
// with a message that has the words, and sees that nothing has started.
func (q *queue) awaitWrong(gate *v1alpha1.AdmissionGate, job client.Object, words ...string) {
	q.t.Helper()
	words = append([]string{"what the hook of AdmissionGate", gate.Name, "cannot be done"}, words...)
	awaitMessage(q.t, job, gate.Name, kueue.CheckStatePending, words...)
	awaitEvents(q.t, job, "HookNoVerdict", words...)
	wantUnfinished(q.t, job)
	q.neverStarted(job)
}

// decisionNotOnAllowlist: a choice that the operator does not allow is no verdict,
// and an empty list allows none.
func decisionNotOnAllowlist(t *testing.T) {
	h := newHook(t, admission.AdmitWith(admission.Changes{ServiceAccount: "root"}))
	gate := newGate(t, h, quick, func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook.Allowlist = v1alpha1.Allowlist{ServiceAccounts: []string{chosenAccount}, PriorityClasses: []string{}}
	})
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	class := q.newChoices()
	job, plain := q.submit(dispatchName()), q.batchJob("plain")
	for _, o := range []client.Object{job, plain} {
		q.awaitWrong(gate, o, `changes.serviceAccount: "root" is not on the allowlist`)
	}
	wantCount(t, job, "")
	h.says(admission.AdmitWith(admission.Changes{ServiceAccount: chosenAccount, PriorityClassName: class}))
	q.awaitWrong(gate, plain, "changes.priorityClassName", class, "is not on the allowlist")
	h.says(admission.AdmitWith(admission.Changes{ServiceAccount: chosenAccount}))
	for _, o := range []client.Object{job, plain} {
		for _, p := range q.awaitPods(o, 2) {
			if p.Spec.ServiceAccountName != chosenAccount {
				t.Errorf("a pod of %s has the account %q", o.GetName(), p.Spec.ServiceAccountName)
			}
		}
	}
}

// decisionReservedKeys: a hook may not set what belongs to Kubernetes, Kueue and
// the rest.
func decisionReservedKeys(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("20")
	for name, changes := range map[string]admission.Changes{
		"label":      {Labels: map[string]string{"kueue.x-k8s.io/queue-name": "mine"}},
		"annotation": {Annotations: map[string]string{v1alpha1.AdmissionCountAnnotation: "7"}},
		"case":       {Annotations: map[string]string{"Dispatch.phpboyscout.uk/service-account": "root"}},
	} {
		h.says(admission.AdmitWith(changes))
		job := q.submit(dispatchName())
		q.awaitWrong(gate, job, "changes."+map[bool]string{true: "labels", false: "annotations"}[name == "label"], "the key is reserved")
		h.says(admission.Admit())
		q.awaitStart(job, "1")
	}
}

// decisionMissingChoices: what does not exist is found before the check turns
// Ready, since pods with it could never be made. It may be made meanwhile.
func decisionMissingChoices(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	late := unique("late")
	h.says(admission.AdmitWith(admission.Changes{ServiceAccount: late, PriorityClassName: late}))
	job := q.submit(dispatchName())
	q.awaitWrong(gate, job, "changes.serviceAccount", fmt.Sprintf("the ServiceAccount %q does not exist in namespace %q", late, q.name))
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: late, Namespace: q.name}})
	q.awaitWrong(gate, job, "changes.priorityClassName", fmt.Sprintf("the PriorityClass %q does not exist", late))
	wantCount(t, job, "")
	create(t, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: late}, Value: 7})
	q.awaitStart(job, "1")
	for _, p := range q.awaitPods(job, 2) {
		if p.Spec.ServiceAccountName != late || p.Spec.PriorityClassName != late || *p.Spec.Priority != 7 {
			t.Errorf("account %q, class %q, priority %d", p.Spec.ServiceAccountName, p.Spec.PriorityClassName, *p.Spec.Priority)
		}
	}
}

// hookedCheckAppearsLate: a job that runs when the check appears is not asked about
// and not touched; its next start is.
func hookedCheckAppearsLate(t *testing.T) {
	h := newHook(t, admission.Refuse("never"))
	gate := newGate(t, h)
	newCheckWith(t, gate.Name, parametersOf(gate.Name))
	q := newQueue(t)
	job := q.submit(dispatchName())
	q.awaitStart(job, "")
	q.awaitRunning(job, 2)
	q.edit(func(cq *kueue.ClusterQueueSpec) {
		cq.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: kueue.AdmissionCheckReference(gate.Name)}}}
	})
	awaitMessage(t, job, gate.Name, kueue.CheckStateReady, "already admitted")
	if n := len(h.asked(job)); n != 0 {
		t.Errorf("the hook was asked %d times about a job that runs", n)
	}
	wantCount(t, job, "")
	h.says(admission.Admit())
	q.restart(job)
	q.awaitStart(job, "1")
	if calls := h.asked(job); len(calls) != 1 || calls[0].TryNumber != 1 {
		t.Errorf("asked %d times about the next start", len(calls))
	}
}

// hookedStaleIsTakenBack: quota that was lost after the hook had admitted the job
// takes the answer with it. The hook is asked anew, and its new answer holds.
func hookedStaleIsTakenBack(t *testing.T) {
	h := newHook(t, admission.AdmitWith(admission.Changes{Labels: map[string]string{"example.com/answer": "first"}}))
	gate := newGate(t, h)
	theirs := unique("check") + "-foreign"
	newForeignCheck(t, theirs)
	newCheckWith(t, gate.Name, parametersOf(gate.Name))
	q := newQueueOf(t, gate.Name, theirs)
	q.setQuota("8")
	job, plain := q.submit(dispatchName()), q.batchJob("plain")
	for _, o := range []client.Object{job, plain} {
		awaitCheck(t, o, gate.Name, kueue.CheckStateReady)
	}
	q.setStopPolicy(kueue.Hold)
	h.says(admission.AdmitWith(admission.Changes{Labels: map[string]string{"example.com/answer": "second"}}))
	for _, o := range []client.Object{job, plain} {
		awaitWorkload(t, o, "has lost its quota and the answer", func(wl *kueue.Workload) bool {
			c := checkOf(wl, gate.Name)
			return !has(wl, kueue.WorkloadQuotaReserved) && c.State == kueue.CheckStatePending && len(c.PodSetUpdates) == 0
		})
	}
	q.setStopPolicy(kueue.None)
	for _, o := range []client.Object{job, plain} {
		awaitCheck(t, o, gate.Name, kueue.CheckStateReady)
		answer(t, o, theirs, kueue.CheckStateReady)
		for _, p := range q.awaitPods(o, 2) {
			if p.Labels["example.com/answer"] != "second" {
				t.Errorf("a pod of %s has the labels %v", o.GetName(), p.Labels)
			}
		}
		if n := len(h.asked(o)); n != 2 {
			t.Errorf("asked %d times about the two attempts of %s", n, o.GetName())
		}
	}
	q.awaitStart(job, "2")
}

// hookedRunning: a TrainJob that somebody started past Kueue is not asked about
// until Kueue has stopped it.
func hookedRunning(t *testing.T) {
	h := newHook(t, admission.Hold("for now"))
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	job := q.submit(dispatchName())
	h.awaitAsked(job, 1)
	versions := watchVersions(t, q.name)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":false}}`))
	if err := shared.admin.Patch(t.Context(), job.DeepCopy(), patch); err != nil {
		t.Fatal(err)
	}
	q.awaitStopped(job)
	h.says(admission.Admit())
	q.awaitStart(job, "1")
	for _, wl := range versions.of(job) {
		if c := checkOf(wl, gate.Name); c.State == kueue.CheckStateRejected || c.State == kueue.CheckStateRetry {
			t.Errorf("the check became %s: %q", c.State, c.Message)
		}
	}
}
