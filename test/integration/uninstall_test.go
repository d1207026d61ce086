package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// uninstallRights and verifyRights are what prepare-uninstall and verify need, as
// docs/dispatchctl.md has them.
var (
	uninstallRights = []rbacv1.PolicyRule{
		{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"clusterqueues"}, Verbs: []string{"get", "list", "patch"}},
		{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"admissionchecks"}, Verbs: []string{"get", "patch"}},
		{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"workloads"}, Verbs: []string{"list"}},
		{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"admissiongates"}, Verbs: []string{"get", "delete"}},
	}
	verifyRights = []rbacv1.PolicyRule{
		{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"clusterqueues", "admissionchecks"}, Verbs: []string{"get"}},
		{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"admissiongates"}, Verbs: []string{"get"}},
	}
)

// ctlUninstall: the policies of prepare-uninstall, with a job that runs and one that
// waits, under the rights that are documented and no more.
func ctlUninstall(t *testing.T) {
	kubeconfig := kubeconfigWith(t, shared.cluster.Endpoint(), uninstallRights...)
	h := newHook(t, admission.Admit())
	g := newGate(t, h, func(s *v1alpha1.AdmissionGateSpec) { quick(s) })
	held, free := newHookedQueue(t, g), newQueueOf(t, g.Name)
	running := held.batchJob("running")
	held.setQuota("40")
	held.awaitPods(running, 2)
	h.says(admission.Hold("not now"))
	waiting, open := held.batchJob("waiting"), free.batchJob("open")
	awaitMessage(t, waiting, g.Name, kueue.CheckStatePending, "not now")
	awaitMessage(t, open, g.Name, kueue.CheckStatePending, "not now")
	args := []string{"prepare-uninstall", "--check", g.Name, "--gate", g.Name}

	ctlAs(t, kubeconfig, append(args, "--policy", "Refuse")...).fails(t, 1, held.name, free.name, "managed by integration.test",
		"dispatchctl queues detach "+held.name+" --check "+g.Name+" --hold-first")
	ctlAs(t, kubeconfig, append(args, "--dry-run")...).ok(t).says(t, "detached (dry run)", "deleted (dry run)")
	held.wantChecks(g.Name)
	free.wantChecks(g.Name)

	ctlAs(t, kubeconfig, "queues", "detach", free.name, "--check", g.Name).ok(t)
	free.awaitPods(open, 2)
	args = append(args, "--release", "elsewhere/gate")
	ctlAs(t, kubeconfig, args...).fails(t, 1, "was not made by the release elsewhere/gate", "--no-hooks")
	held.wantChecks(g.Name)
	note := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"meta.helm.sh/release-name":"gate","meta.helm.sh/release-namespace":"elsewhere"}}}`))
	if err := shared.admin.Patch(t.Context(), &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}, note); err != nil {
		t.Fatal(err)
	}
	r := ctlAs(t, kubeconfig, args...).ok(t)
	r.says(t, held.name, "detached", "it was put there by integration.test", "has stopPolicy Hold", "kubectl patch clusterqueue "+held.name,
		"AdmissionGate "+g.Name+": left: the release elsewhere/gate did not make it")
	held.wantChecks()
	awaitWorkload(t, waiting, "has no quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	held.neverStarted(waiting)
	held.awaitPods(running, 2)

	// Again, and without what is gone by then.
	args = args[:len(args)-2]
	ctlAs(t, kubeconfig, args...).ok(t).says(t, "nothing to do", "AdmissionGate "+g.Name+": deleted")
	ctlAs(t, kubeconfig, args...).ok(t).says(t, "AdmissionGate "+g.Name+": it does not exist")
	ctlAs(t, kubeconfig, "prepare-uninstall", "--check", "nowhere", "--gate", "nowhere", "--policy", "Refuse").ok(t).says(t, `note: there is no AdmissionCheck "nowhere"`)
	var check kueue.AdmissionCheck
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: g.Name}, &check); err != nil {
		t.Fatal(err)
	}
	if kept := check.Annotations[v1alpha1.KeepDetachedAnnotation]; kept != v1alpha1.KeepAllDetached {
		t.Errorf("the check is to stay out of %q, want every queue", kept)
	}
	foreign := unique("c") + "-foreign"
	newQueue(t, foreign).edit(func(*kueue.ClusterQueueSpec) {})
	ctlAs(t, kubeconfig, "prepare-uninstall", "--check", foreign).ok(t).says(t, "is served by "+foreignController, "left alone")
}

// ctlUninstallDetach: with Detach the jobs that wait start, and the gate goes.
func ctlUninstallDetach(t *testing.T) {
	h := newHook(t, admission.Hold("not now"))
	g := newGate(t, h)
	q := newHookedQueue(t, g)
	job := q.batchJob("waiting")
	awaitMessage(t, job, g.Name, kueue.CheckStatePending, "not now")
	ctl(t, "prepare-uninstall", "--policy", "Detach", "--check", g.Name, "--gate", g.Name).ok(t).says(t, q.name, "detached", "AdmissionGate "+g.Name+": deleted")
	q.awaitPods(job, 2)
}

// ctlVerify: what is named is in order, or it is told what is not.
func ctlVerify(t *testing.T) {
	kubeconfig := kubeconfigWith(t, shared.cluster.Endpoint(), verifyRights...)
	g := newGate(t, newHook(t, admission.Admit()))
	q := newHookedQueue(t, g)
	args := []string{"verify", "--check", g.Name, "--gate", g.Name, "--queue", q.name}
	ctlAs(t, kubeconfig, args...).ok(t).says(t, "AdmissionCheck "+g.Name, "AdmissionGate "+g.Name, "ClusterQueue "+q.name, "active with "+g.Name)
	ctl(t, "queues", "detach", q.name, "--check", g.Name, "--hold-first").ok(t)
	ctlAs(t, kubeconfig, append(args, "--timeout", "2s")...).fails(t, 1, "does not name check "+g.Name, "-> dispatchctl queues attach "+q.name)
	ctl(t, "queues", "attach", q.name, "--check", g.Name).ok(t)
	ctlAs(t, kubeconfig, append(args, "--timeout", "0s")...).fails(t, 1, "it has stopPolicy Hold", "-> kubectl patch clusterqueue "+q.name)
	q.setStopPolicy(kueue.None)
	ctlAs(t, kubeconfig, args...).ok(t)
	ctlAs(t, kubeconfig, "verify", "--queue", "nowhere", "--timeout", "0s").fails(t, 1, "ClusterQueue nowhere", "does not exist")
	ctlAs(t, kubeconfig, "verify", "-l", "team=vision", "--timeout", "0s").fails(t, 1, "unknown", "run this with an account that may read it")
	ctl(t, "verify", "-l", "team=nobody", "--check", g.Name).ok(t).says(t, "warning", "nothing is gated")
}

// TestUninstallWithoutKueue: with a Kueue that does not run, a queue is freed if no
// job waits on quota, and else stays as it is until Kueue runs: no job starts ungated.
func TestUninstallWithoutKueue(t *testing.T) {
	startLeading(t, run{name: "gate"})
	g := newGate(t, newHook(t, admission.Hold("not now")))
	q := newHookedQueue(t, g)
	job := q.batchJob("waiting")
	awaitMessage(t, job, g.Name, kueue.CheckStatePending, "not now")
	check := unique("check")
	newCheck(t, check)
	idle := bareQueue(t, unique("idle"), nil, check)

	if err := shared.cluster.StopComponent(cluster.Kueue); err != nil {
		t.Fatal(err)
	}
	startKueue := sync.OnceValue(func() error { return shared.cluster.StartComponent(context.Background(), cluster.Kueue) })
	t.Cleanup(func() { _ = startKueue() })
	ctl(t, "prepare-uninstall", "--check", g.Name).fails(t, 1, "failed calling webhook", "start Kueue, or remove its webhook configurations")
	restore := withoutKueueWebhooks(t)
	ctl(t, "prepare-uninstall", "--check", check).ok(t).says(t, idle.name, "detached", "Kueue has not looked at the queue since")
	idle.wantChecks()
	ctl(t, "prepare-uninstall", "--check", g.Name).fails(t, 1, "no Kueue runs", "1 of its jobs sit on quota", "note: the annotation "+v1alpha1.KeepDetachedAnnotation)
	q.wantChecks(g.Name)
	restore()
	if err := startKueue(); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the queue is freed once Kueue runs", func() error {
		if r := ctl(t, "prepare-uninstall", "--check", g.Name); r.code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	q.wantChecks()
	q.neverStarted(job)
}

// withoutKueueWebhooks takes Kueue's webhooks away, as one does who has lost Kueue, and
// returns what brings them back; the end of the test does too.
func withoutKueueWebhooks(t *testing.T) (restore func()) {
	t.Helper()
	var mutating admissionv1.MutatingWebhookConfigurationList
	var validating admissionv1.ValidatingWebhookConfigurationList
	for _, list := range []client.ObjectList{&mutating, &validating} {
		if err := shared.admin.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	var gone []client.Object
	for i := range mutating.Items {
		gone = append(gone, &mutating.Items[i])
	}
	for i := range validating.Items {
		gone = append(gone, &validating.Items[i])
	}
	var back []client.Object
	for _, o := range gone {
		if !strings.HasPrefix(o.GetName(), "kueue") {
			continue
		}
		if err := shared.admin.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		o.SetUID("")
		o.SetResourceVersion("")
		o.SetManagedFields(nil)
		o.SetCreationTimestamp(metav1.Time{})
		back = append(back, o)
	}
	if len(back) == 0 {
		t.Fatal("Kueue has no webhooks")
	}
	once := sync.OnceFunc(func() {
		for _, o := range back {
			if err := shared.admin.Create(context.Background(), o); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(once)
	return once
}
