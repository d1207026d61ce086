package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// clusterQueueOf reads the ClusterQueue of a queue.
func (q *queue) clusterQueueOf() *kueue.ClusterQueue {
	q.t.Helper()
	var cq kueue.ClusterQueue
	if err := shared.admin.Get(q.t.Context(), client.ObjectKey{Name: q.name}, &cq); err != nil {
		q.t.Fatal(err)
	}
	return &cq
}

// wantChecks fails the test unless the queue names these checks, in any order, a
// check on flavors as name@flavor.
func (q *queue) wantChecks(want ...string) {
	q.t.Helper()
	var got []string
	if s := q.clusterQueueOf().Spec.AdmissionChecksStrategy; s != nil {
		for _, e := range s.AdmissionChecks {
			name := string(e.Name)
			for _, f := range e.OnFlavors {
				name += "@" + string(f)
			}
			got = append(got, name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		q.t.Errorf("the queue names %q, want %q", got, want)
	}
}

// ctlAttachDetach: an entry is added beside those of others and removed again, and
// nothing else of the queue changes.
func ctlAttachDetach(t *testing.T) {
	foreign, first, second := unique("c")+"-foreign", unique("first"), unique("second")
	newCheck(t, first)
	newCheck(t, second)
	q := newQueue(t, foreign)
	before := q.clusterQueueOf()

	ctl(t, "queues", "attach", q.name, "--check", first, "--dry-run").ok(t).says(t, "attached (dry run)")
	q.wantChecks(foreign)
	ctl(t, "queues", "attach", q.name, "--check", first).ok(t).says(t, q.name, "attached")
	ctl(t, "queues", "attach", q.name, "--check", first, "--check", second).ok(t).says(t, "it was there already by dispatchctl/"+first)
	q.wantChecks(foreign, first, second)
	version := q.clusterQueueOf().ResourceVersion
	ctl(t, "queues", "attach", q.name, "--check", first, "--check", second).ok(t).says(t, "unchanged")
	if again := q.clusterQueueOf().ResourceVersion; again != version {
		t.Errorf("an attach that has nothing to do wrote version %s, after %s", again, version)
	}

	ctl(t, "queues", "detach", q.name, "--check", second, "--dry-run").ok(t).says(t, "detached (dry run)")
	q.wantChecks(foreign, first, second)
	ctl(t, "queues", "detach", q.name, "--check", second).ok(t).says(t, "detached")
	q.wantChecks(foreign, first)
	ctl(t, "queues", "detach", q.name, "--check", second).ok(t).says(t, "the queue does not name it")
	ctl(t, "queues", "detach", "--all", "--check", first).ok(t).says(t, q.name)
	ctl(t, "queues", "detach", "--all", "--check", first).ok(t).says(t, "nothing to do")
	q.wantChecks(foreign)

	after := q.clusterQueueOf()
	if g, w := asJSON(t, after.Spec), asJSON(t, before.Spec); g != w {
		t.Errorf("the queue was\n%s\nand is\n%s", w, g)
	}
	for _, m := range after.ManagedFields {
		if strings.HasPrefix(m.Manager, "dispatchctl/") && strings.Contains(m.FieldsV1.GetRawString(), foreign) {
			t.Errorf("%s has taken over the entry of %s: %s", m.Manager, foreign, m.FieldsV1.GetRawString())
		}
	}
	ctl(t, "queues", "detach", q.name, "--check", foreign).fails(t, 1, "it is served by "+foreignController+", not by the gate")
	q.wantChecks(foreign)
	ctl(t, "queues", "detach", "nowhere").ok(t).says(t, "the queue does not exist")
	ctl(t, "queues", "attach", "nowhere", "--check", first).fails(t, 1, `"nowhere" not found`)
	if err := client.IgnoreNotFound(shared.admin.Get(t.Context(), client.ObjectKey{Name: "nowhere"}, &kueue.ClusterQueue{})); err != nil {
		t.Error(err)
	}
	ctl(t, "queues", "attach", q.name, "--check", foreign).fails(t, 1, "is served by "+foreignController)
}

// ctlLastEntry: the only entry of a queue can be removed, and queues are found by
// their labels.
func ctlLastEntry(t *testing.T) {
	check := unique("check")
	newCheck(t, check)
	q := newQueueOf(t)
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"example.com/team":%q}}}`, q.name))
	if err := shared.admin.Patch(t.Context(), q.clusterQueueOf(), patch); err != nil {
		t.Fatal(err)
	}
	selector := "example.com/team=" + q.name
	ctl(t, "queues", "attach", "-l", selector, "--check", check).ok(t).says(t, q.name, "attached")
	q.wantChecks(check)
	ctl(t, "queues", "detach", "-l", selector, "--check", check).ok(t).says(t, q.name, "detached")
	q.wantChecks()
	if s := q.clusterQueueOf().Spec.AdmissionChecksStrategy; s != nil {
		t.Errorf("a strategy without checks is left: %+v", s)
	}
	ctl(t, "queues", "attach", "-l", "example.com/team=nobody", "--check", check).fails(t, 1, "no ClusterQueue has these labels")
	ctl(t, "queues", "detach", "-l", "example.com/team=nobody", "--check", check).ok(t).says(t, "nothing to do")
}

// ctlFlavors: a check can be limited to flavors, and a limit by somebody else's
// hand is told.
func ctlFlavors(t *testing.T) {
	check := unique("check")
	newCheck(t, check)
	q := newQueueOf(t)
	ctl(t, "queues", "attach", q.name, "--check", check, "--on-flavors", "a100").fails(t, 1, "the queue has no quota in the flavors a100; it has in default")
	q.wantChecks()
	ctl(t, "queues", "attach", q.name, "--check", check, "--on-flavors", "default").ok(t)
	q.wantChecks(check + "@default")
	ctl(t, "queues", "status", q.name).ok(t).says(t, "on default", "dispatchctl/"+check)
	ctl(t, "queues", "attach", q.name, "--check", check).ok(t).says(t, "attached")
	q.wantChecks(check)
	q.edit(func(cq *kueue.ClusterQueueSpec) {
		cq.AdmissionChecksStrategy.AdmissionChecks[0].OnFlavors = []kueue.ResourceFlavorReference{"default"}
	})
	ctl(t, "queues", "attach", q.name, "--check", check).fails(t, 1, "the entry is limited to the flavors default, put there by integration.test")
	ctl(t, "queues", "detach", q.name, "--check", check).ok(t).says(t, "it was put there by integration.test; take it out there too")
	q.wantChecks()
}

// ctlDetachParked: a job that has given its quota back for hours goes on when its
// check goes, and is not called held any more.
func ctlDetachParked(t *testing.T) {
	h := newHoldHook(t)
	g := newGate(t, h.testHook, holdTimes(10, 0))
	q := newHookedQueue(t, g)
	h.decides("parked", admission.HoldUntil(time.Now().Add(6*time.Hour), "not today"))
	job := q.batchJob("parked")
	q.tooBig()
	if at := requeueAt(awaitParked(t, job)); time.Until(at) < 5*time.Hour {
		t.Fatalf("it is parked until %s", at)
	}
	r := ctl(t, "queues", "detach", q.name, "--check", g.Name).ok(t)
	t.Logf("detached: %s", r)
	q.awaitPods(job, 2)
	awaitWorkload(t, job, "is not called held", func(wl *kueue.Workload) bool {
		return conditionOf(wl, v1alpha1.WorkloadHeld).Status == metav1.ConditionFalse
	})
}

// TestDetachWithoutGate: with no gate to let go of a job that is parked, it is told how
// to, and that does it.
func TestDetachWithoutGate(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	h := newHoldHook(t)
	g := newGate(t, h.testHook, holdTimes(10, 0))
	q := newHookedQueue(t, g)
	h.decides("parked", admission.HoldUntil(time.Now().Add(6*time.Hour), "not today"))
	job := q.batchJob("parked")
	q.tooBig()
	awaitParked(t, job)
	gate.kill()
	r := ctl(t, "queues", "detach", q.name, "--check", g.Name).ok(t)
	r.says(t, "so 1 jobs stay without quota until their next offer")
	_, command, _ := strings.Cut(r.stderr, "to let one go: kubectl ")
	command, patch, _ := strings.Cut(command, " -p '")
	patch, _, _ = strings.Cut(patch, "'")
	if out, err := shared.cluster.Kubectl(t.Context(), append(strings.Fields(command), "-p", patch)...); err != nil {
		t.Fatalf("kubectl %s -p '%s': %v: %s", command, patch, err, out)
	}
	q.awaitPods(job, 2)
}

// ctlDetachWaiting: jobs that wait for a check start when it goes, and with
// --hold-first none does until somebody opens the queue.
func ctlDetachWaiting(t *testing.T) {
	h := newHook(t, admission.Hold("not now"))
	g := newGate(t, h)
	open, stopped := newHookedQueue(t, g), newQueueOf(t, g.Name)
	free, kept := open.batchJob("plain"), stopped.batchJob("plain")
	for _, job := range []*batchv1.Job{free, kept} {
		awaitMessage(t, job, g.Name, kueue.CheckStatePending, "not now")
	}
	var status struct {
		Queues []struct {
			Queue, Check  string
			Wired, Active bool
			Waiting       int
		}
	}
	eventually(t, patience, "both are counted as waiting", func() error {
		out := ctl(t, "queues", "status", open.name, stopped.name, "-o", "json").ok(t).stdout
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return err
		}
		for _, s := range status.Queues {
			if !s.Wired || !s.Active || s.Check != g.Name || s.Waiting != 1 {
				return fmt.Errorf("%+v", status)
			}
		}
		return nil
	})
	ctl(t, "queues", "detach", open.name, "--check", g.Name).ok(t)
	open.awaitPods(free, 2)
	awaitWorkload(t, free, "is not called held", func(wl *kueue.Workload) bool {
		return conditionOf(wl, v1alpha1.WorkloadHeld).Status == metav1.ConditionFalse
	})
	r := ctl(t, "queues", "detach", stopped.name, "--hold-first").ok(t)
	stopped.wantChecks()
	command := `kubectl patch clusterqueue ` + stopped.name + ` --type=merge -p '{"spec":{"stopPolicy":"None"}}'`
	r.says(t, "has stopPolicy Hold", command)
	ctl(t, "queues", "status", stopped.name).ok(t).says(t, "is stopped")
	wl := awaitWorkload(t, kept, "has no quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	if has(wl, kueue.WorkloadAdmitted) {
		t.Error("the job of the stopped queue has started")
	}
	stopped.neverStarted(kept)
	// The command that was told opens the queue.
	if _, err := shared.cluster.Kubectl(t.Context(), "patch", "clusterqueue", stopped.name, "--type=merge", "-p", `{"spec":{"stopPolicy":"None"}}`); err != nil {
		t.Fatal(err)
	}
	stopped.awaitPods(kept, 2)
}

// ctlNotServed: a check that no gate serves is not put into a queue.
func ctlNotServed(t *testing.T) {
	check := unique("check")
	newCheckWith(t, check, parametersOf("nowhere"))
	q := newQueueOf(t)
	awaitActive(t, check, metav1.ConditionFalse, "BadParameters")
	ctl(t, "queues", "attach", q.name, "--check", check, "--timeout", "5s").fails(t, 1, "gave up waiting until AdmissionCheck", "spec.parameters names the AdmissionGate")
	ctl(t, "queues", "attach", q.name, "--check", check, "--dry-run").fails(t, 1, "is not Active")
	ctl(t, "queues", "attach", q.name, "--check", "nowhere", "--timeout", "5s").fails(t, 1, "it does not exist")
	q.wantChecks()
}

// wiringRights are what attach, detach and status need, as docs/dispatchctl.md has
// them.
var wiringRights = []rbacv1.PolicyRule{
	{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"clusterqueues"}, Verbs: []string{"get", "list", "patch"}},
	{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"admissionchecks"}, Verbs: []string{"get", "list", "patch"}},
	{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"workloads"}, Verbs: []string{"list"}},
}

// kubeconfigWith makes a ServiceAccount with rights and returns its kubeconfig, by
// way of an endpoint.
func kubeconfigWith(t *testing.T, via cluster.Endpoint, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	name := unique("account")
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}})
	create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
	create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}})
	kubeconfig, err := shared.cluster.ServiceAccountKubeconfigVia(t.Context(), via, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// ctlWithdraw: an entry that stops its queue is taken back, under the rights that
// are documented and no more.
func ctlWithdraw(t *testing.T) {
	p := newProxy(t)
	kubeconfig := kubeconfigWith(t, p.endpoint, wiringRights...)
	g := newGate(t, newHook(t, admission.Admit()))
	newCheckWith(t, g.Name, parametersOf(g.Name))
	q := newQueueOf(t)
	// The gate goes when the check has been found active and is about to be added.
	held := p.hold(func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/clusterqueues/"+q.name)
	})
	done := make(chan ctlRun, 1)
	go func() { done <- ctlAs(t, kubeconfig, "queues", "attach", q.name, "--check", g.Name) }()
	held.await(t)
	if err := shared.admin.Delete(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	check := &kueue.AdmissionCheck{}
	eventually(t, patience, "the check is inactive", func() error {
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: g.Name}, check); err != nil {
			return err
		}
		if slices.ContainsFunc(check.Status.Conditions, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse }) {
			return nil
		}
		return errNotYet
	})
	close(held.release)
	select {
	case r := <-done:
		r.fails(t, 1, "FAILED (withdrawn)", "taken back, because it made the queue inactive", "AdmissionCheck")
	case <-time.After(patience):
		t.Fatal("dispatchctl does not end")
	}
	q.wantChecks()
	eventually(t, patience, "the queue is active again", func() error {
		for _, c := range q.clusterQueueOf().Status.Conditions {
			if c.Type == kueue.ClusterQueueActive && c.Status == metav1.ConditionTrue {
				return nil
			}
		}
		return errNotYet
	})
	ctlAs(t, kubeconfig, "queues", "status", q.name).ok(t).says(t, "no check of ours")
	ctlAs(t, kubeconfig, "queues", "detach", q.name, "--check", g.Name, "--hold-first").ok(t)
}

// ctlConcurrent: writes that meet others of the queue begin anew, and none is lost.
func ctlConcurrent(t *testing.T) {
	check := unique("check")
	newCheck(t, check)
	q := newQueueOf(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/turn":"%d"}}}`, i))
			_ = shared.admin.Patch(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: q.name}}, patch)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	for range 3 {
		ctl(t, "queues", "attach", q.name, "--check", check).ok(t)
		q.wantChecks(check)
		ctl(t, "queues", "detach", q.name, "--check", check).ok(t)
		q.wantChecks()
	}
	stop()
	<-done
}
