package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// TestCtlPreflight: a cluster where all is right passes, for the account that the
// chart makes; one without a leader does not, and says what to do.
func TestCtlPreflight(t *testing.T) {
	gate := startLeading(t, run{name: "gate", flags: brisk})
	g := newGate(t, newHook(t, admission.Admit()))
	q := newHookedQueue(t, g)
	q.setQuota("40")
	job := q.batchJob("plain")
	q.awaitPods(job, 2)
	account := namespace + "/" + release
	var r ctlRun
	eventually(t, patience, "all is right, once what other tests made is gone", func() error {
		if r = ctl(t, "preflight", "--service-account", account); r.code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	r.says(t, "v1.36", "its version is not known", "TrainJob spec.runtimePatches  is there",
		"system:serviceaccount:dispatch-system:dispatch-admission has all rights of the controller",
		"dispatch-system/dispatch-admission is held by gate, which renews it",
		"AdmissionCheck "+g.Name, "AdmissionGate "+g.Name, "active with check "+g.Name, "MutatingAdmissionPolicy pods.dispatch.phpboyscout.uk and its binding are there")

	var found struct {
		OK    bool
		Lines []struct{ What, State, Found, Fix string }
	}
	if err := json.Unmarshal([]byte(ctl(t, "preflight", "-o", "json").ok(t).stdout), &found); err != nil || !found.OK || len(found.Lines) < 10 {
		t.Errorf("%v: %+v", err, found)
	}

	ctl(t, "preflight", "--service-account", account, "--mend-queues").fails(t, 1, "right clusterqueues.kueue.x-k8s.io", "may not get, patch", "without -mend-queues")

	gate.kill()
	late := q.batchJob("late")
	awaitWorkload(t, late, "has quota", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadQuotaReserved) })
	ctl(t, "preflight").fails(t, 1, "wrong", "was last renewed at", "by gate, and not for 5s since", "-> see why no replica of dispatch-admission leads", "not ready")
	ctl(t, "explain", "-n", q.name, "job/late").ok(t).says(t, "no gate has looked at it, because none leads", "by gate, and not for 5s since")
	freeLease(t)
	ctl(t, "preflight").fails(t, 1, "dispatch-system/dispatch-admission does not exist: no replica has ever led")

	poor := kubeconfigWith(t, shared.cluster.Endpoint(), rbacv1.PolicyRule{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"admissionchecks"}, Verbs: []string{"list"}})
	ctlAs(t, poor, "preflight").fails(t, 1, "may not get, list, watch, patch", "right workloads.kueue.x-k8s.io", "unknown", "-> run this with an account that may read it")
	ctlAs(t, poor, "preflight", "--service-account", account).fails(t, 1, "rights of system:serviceaccount:dispatch-system:dispatch-admission", "cannot create resource")
}

// ctlExplain: what a job waits for is told, whoever makes it wait.
func ctlExplain(t *testing.T) {
	h := newHook(t, admission.Hold("weekly freeze"))
	g := newGate(t, h)
	foreign := unique("c") + "-foreign"
	newForeignCheck(t, foreign)
	newCheckWith(t, g.Name, parametersOf(g.Name))
	q := newQueueOf(t, g.Name, foreign)
	explain := func(job *batchv1.Job) ctlRun { return ctl(t, "explain", "-n", q.name, "job/"+job.Name).ok(t) }

	held := q.batchJob("held")
	awaitMessage(t, held, g.Name, kueue.CheckStatePending, "weekly freeze")
	explain(held).says(t, "It waits for the checks ", `check "`+g.Name+`": Held by the hook of AdmissionGate "`+g.Name+`": weekly freeze. Held since `,
		"-> nothing: the hook decides", `check "`+foreign+`": `, "It is served by "+foreignController)

	large := q.batchJob("large", func(job *batchv1.Job) {
		job.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("50")
	})
	awaitWorkload(t, large, "is told why it has no quota", func(wl *kueue.Workload) bool {
		return conditionOf(wl, kueue.WorkloadQuotaReserved).Message != ""
	})
	explain(large).says(t, "It waits for quota; it is not the gate's turn yet", "cpu")

	h.says(admission.Admit())
	editGate(t, g.Name, quick)
	answer(t, held, foreign, kueue.CheckStateReady)
	q.awaitPods(held, 2)
	explain(held).says(t, "It does not wait: Kueue has started it")

	q.setStopPolicy(kueue.Hold)
	awaitQueue(q, "is stopped")
	explain(large).says(t, "its queue lets no job start", "is stopped", "kubectl patch clusterqueue "+q.name)
	q.setStopPolicy(kueue.None)

	setActive(t, large, false)
	explain(large).says(t, "It is inactive", `--type=merge -p '{"spec":{"active":true}}'`)
	var e struct{ State, Summary string }
	if err := json.Unmarshal([]byte(ctl(t, "explain", "-n", q.name, "job/large", "-o", "json").ok(t).stdout), &e); err != nil || e.State != "Inactive" {
		t.Errorf("%v: %+v", err, e)
	}
}

// awaitQueue waits until Kueue says something of a queue.
func awaitQueue(q *queue, words string) {
	q.t.Helper()
	eventually(q.t, patience, "the queue "+words, func() error {
		r := ctl(q.t, "queues", "status", q.name)
		if r.code == 0 && strings.Contains(r.stdout, words) {
			return nil
		}
		return errNotYet
	})
}

// ctlRefused: a refusal is told with its reason, and with what has the job asked anew.
func ctlRefused(t *testing.T) {
	h := newHook(t, admission.Refuse("at most 8 CPUs"))
	g := newGate(t, h)
	q := newHookedQueue(t, g)
	q.setQuota("40")
	job := q.batchJob("plain")
	awaitWorkload(t, job, "is inactive", func(wl *kueue.Workload) bool { return wl.Spec.Active != nil && !*wl.Spec.Active })
	e := ctl(t, "explain", "-n", q.name, "job/plain").ok(t)
	e.says(t, "A hook has refused it for good", "at most 8 CPUs")
	_, command, told := strings.Cut(e.stdout, "kubectl ")
	if !told {
		t.Fatalf("it does not say what to do: %s", e)
	}
	h.says(admission.Admit())
	command, _, _ = strings.Cut(command, "\n")
	if out, err := shared.cluster.Kubectl(t.Context(), strings.Fields(command)...); err != nil {
		t.Fatalf("kubectl %s: %v: %s", command, err, out)
	}
	q.awaitPods(job, 2)
}
