package integration

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// mendingRights are what -mend-queues takes beside the rights of the chart, as
// docs/gate.md has them.
var mendingRights = []rbacv1.PolicyRule{
	{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"clusterqueues"}, Verbs: []string{"get", "patch"}},
	{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"admissionchecks"}, Verbs: []string{"get"}},
}

// mendingAccount makes a ServiceAccount with the rights of the chart and those.
func mendingAccount(t *testing.T) string {
	t.Helper()
	name := unique("mending")
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}})
	create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: mendingRights})
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}
	for _, role := range []string{name, release} {
		create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}})
	}
	var bindings rbacv1.RoleBindingList
	if err := shared.admin.List(t.Context(), &bindings, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings.Items {
		if slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Name == release }) {
			create(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + b.RoleRef.Name, Namespace: namespace}, Subjects: subjects, RoleRef: b.RoleRef})
		}
	}
	return name
}

// bareQueue makes a ClusterQueue without jobs.
func bareQueue(t *testing.T, name string, labels map[string]string, checks ...string) *queue {
	t.Helper()
	cq := clusterQueue(name, checks...)
	cq.Labels = labels
	create(t, cq)
	return &queue{t: t, name: name}
}

// manifest is what the owner of a queue applies: his list of checks, and nothing of
// anybody else.
func (q *queue) manifest(labels map[string]string, checks ...string) string {
	q.t.Helper()
	cq := clusterQueue(q.name, checks...)
	cq.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("ClusterQueue"))
	cq.Labels = labels
	path := filepath.Join(q.t.TempDir(), "queue.json")
	if err := os.WriteFile(path, []byte(asJSON(q.t, cq)), 0o600); err != nil {
		q.t.Fatal(err)
	}
	return path
}

// kubectl runs kubectl as the owner of a queue would.
func kubectl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := shared.cluster.Kubectl(t.Context(), args...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// wireEvents are the messages of the events with a reason about an object without a
// namespace.
func wireEvents(tb testing.TB, o client.Object, reason string) []string {
	tb.Helper()
	if err := shared.admin.Get(tb.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		tb.Fatal(err)
	}
	return eventsOn(tb, metav1.NamespaceDefault, o.GetUID(), reason)
}

// awaitWireEvents waits until there are n events with a reason about a queue, and
// sees that the last has all the words.
func (q *queue) awaitWireEvents(n int, reason string, words ...string) {
	q.t.Helper()
	var last []string
	eventually(q.t, patience, fmt.Sprintf("%d events %s on %s with %q", n, reason, q.name, words), func() error {
		last = wireEvents(q.t, q.clusterQueueOf(), reason)
		if len(last) == n && slices.ContainsFunc(last, func(m string) bool { return hasAll(m, words) }) {
			return nil
		}
		return fmt.Errorf("%q", last)
	})
}

// awaitWireEvent waits for an event that says something, among however many.
func (q *queue) awaitWireEvent(reason string, words ...string) {
	q.t.Helper()
	eventually(q.t, patience, fmt.Sprintf("an event %s on %s with %q", reason, q.name, words), func() error {
		all := wireEvents(q.t, q.clusterQueueOf(), reason)
		if !slices.ContainsFunc(all, func(m string) bool { return hasAll(m, words) }) {
			return fmt.Errorf("%q", all)
		}
		return nil
	})
}

// awaitMetric waits until a program says a line of metrics.
func awaitMetric(t *testing.T, address, line string, args ...any) {
	t.Helper()
	line = fmt.Sprintf(line, args...) + "\n"
	eventually(t, patience, line, func() error {
		if !strings.Contains(scrape(t, address), line) {
			return errNotYet
		}
		return nil
	})
}

const (
	wiredLine = `dispatch_admission_cluster_queue_wired{check=%q,cluster_queue=%q} %d`
	lostLine  = `dispatch_admission_cluster_queue_losses_total{check=%q,cluster_queue=%q} %d`
	mendLine  = `dispatch_admission_cluster_queue_mends_total{check=%q,cluster_queue=%q} %d`
)

// TestWiringTold: a gate under the rights of the chart tells of queues that are not
// wired as they are to be, and of those that lose a check, each once.
func TestWiringTold(t *testing.T) {
	check, free := unique("check"), unique("free")
	typo, named := unique("typo"), unique("named")
	address := freeAddress(t)
	gate := startLeading(t, run{name: "gate", flags: []string{"-metrics-bind-address=" + address, "-resync=1s", "-queues=" + typo + "," + named, "-queue-checks=" + check}})
	newCheck(t, check)
	newCheck(t, free)

	awaitMetric(t, address, wiredLine, check, typo, 0)
	eventually(t, patience, "the check tells of the queue that is not there", func() error {
		ac := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: check}}
		for _, m := range wireEvents(t, ac, "ClusterQueueMissing") {
			if strings.Contains(m, fmt.Sprintf("There is no ClusterQueue %q", typo)) {
				return nil
			}
		}
		return errNotYet
	})

	q := bareQueue(t, named, nil)
	q.awaitWireEvents(1, "AdmissionCheckMissing", check, "start ungated", "dispatchctl queues attach "+named)
	awaitMetric(t, address, wiredLine, check, named, 0)
	ctl(t, "queues", "attach", named, "--check", check).ok(t)
	awaitMetric(t, address, wiredLine, check, named, 1)
	q.edit(func(cq *kueue.ClusterQueueSpec) {
		cq.AdmissionChecksStrategy.AdmissionChecks[0].OnFlavors = []kueue.ResourceFlavorReference{"default"}
	})
	q.awaitWireEvents(1, "AdmissionCheckDiffers", "for jobs on default", "is to be for all jobs")
	awaitMetric(t, address, wiredLine, check, named, 0)

	toldLosses(t, address, free)

	for _, line := range gate.find("level=ERROR") {
		t.Errorf("the gate logged %s", line)
	}
	awaitQuiet(t)
	mark, lines := auditMark(t), len(gate.out.all())
	time.Sleep(3 * time.Second) // three full passes
	if c := costSince(t, mark); c != (cost{}) || len(gate.out.all()) != lines {
		t.Errorf("an unchanged world cost %+v, and these lines: %q", c, gate.out.all()[lines:])
	}
}

// toldLosses: queues that nobody said are to be wired lose a check, by the ways of
// their owners.
func toldLosses(t *testing.T, address, check string) {
	t.Helper()
	owner := &queue{t: t, name: unique("owned")}
	file := owner.manifest(nil)
	kubectl(t, "apply", "-f", file)
	t.Cleanup(func() { _ = shared.admin.Delete(context.WithoutCancel(t.Context()), clusterQueue(owner.name)) })
	ctl(t, "queues", "attach", owner.name, "--check", check).ok(t)
	awaitMetric(t, address, wiredLine, check, owner.name, 1)
	kubectl(t, "apply", "-f", file)
	owner.wantChecks(check) // a manifest without a list leaves it

	foreign := unique("c") + "-foreign"
	newForeignCheck(t, foreign)
	kubectl(t, "apply", "-f", owner.manifest(nil, foreign))
	owner.wantChecks(foreign)
	owner.awaitWireEvents(1, "AdmissionCheckLost", check, "by kubectl-client-side-apply", "start ungated")
	awaitMetric(t, address, wiredLine, check, owner.name, 0)
	awaitMetric(t, address, lostLine, check, owner.name, 1)

	ctl(t, "queues", "attach", owner.name, "--check", check).ok(t)
	awaitMetric(t, address, wiredLine, check, owner.name, 1)
	kubectl(t, "replace", "-f", owner.manifest(nil, foreign))
	owner.wantChecks(foreign)
	owner.awaitWireEvents(2, "AdmissionCheckLost", check, "managed by", "kubectl")
	awaitMetric(t, address, lostLine, check, owner.name, 2)

	// What people take out by dispatchctl is not lost.
	ctl(t, "queues", "attach", owner.name, "--check", check).ok(t)
	awaitMetric(t, address, wiredLine, check, owner.name, 1)
	ctl(t, "queues", "detach", owner.name, "--check", check).ok(t)
	eventually(t, patience, "the series goes", func() error {
		if strings.Contains(scrape(t, address), owner.name) {
			return errNotYet
		}
		return nil
	})
	owner.awaitWireEvents(2, "AdmissionCheckLost")
}

// TestWiringMended: a gate with -mend-queues keeps queues wired, and leaves them alone
// where people say so.
func TestWiringMended(t *testing.T) {
	p := newProxy(t)
	g := newGate(t, newHook(t, admission.Admit()))
	check, team := g.Name, map[string]string{"example.com/mend": unique("team")}
	address := freeAddress(t)
	gate := startLeading(t, run{name: "gate", via: &p.endpoint, account: mendingAccount(t), flags: []string{"-metrics-bind-address=" + address,
		"-queue-selector=example.com/mend=" + team["example.com/mend"], "-queue-checks=" + check, "-mend-queues"}})
	foreign := unique("c") + "-foreign"
	newForeignCheck(t, foreign)

	// A queue that is there before its check is, and one that gets its label later.
	q := bareQueue(t, unique("q"), team)
	q.awaitWireEvents(1, "AdmissionCheckMissing", "the check does not exist")
	newCheckWith(t, check, parametersOf(check))
	q.awaitWireEvents(1, "AdmissionCheckAttached", check)
	awaitMetric(t, address, wiredLine, check, q.name, 1)
	other := bareQueue(t, unique("q"), nil, foreign)
	patch := client.RawPatch(types.MergePatchType, []byte(asJSON(t, map[string]any{"metadata": map[string]any{"labels": team}})))
	if err := shared.admin.Patch(t.Context(), other.clusterQueueOf(), patch); err != nil {
		t.Fatal(err)
	}
	other.awaitChecks(check, foreign)

	// Its owner drops it, again and again. Within two seconds of the last time each
	// next one is put off, so how often that is told depends on the machine.
	file := q.manifest(team, foreign)
	kubectl(t, "apply", "-f", file)
	q.awaitWireEvent("AdmissionCheckLost", "it was put back")
	q.awaitChecks(check, foreign)
	kubectl(t, "replace", "-f", file)
	q.awaitChecks(check, foreign)
	awaitMetric(t, address, mendLine, check, q.name, 3)
	kubectl(t, "replace", "-f", file)
	q.awaitWireEvent("AdmissionCheckLost", "the next try is in", "put off for longer")
	q.awaitChecks(check, foreign)
	awaitMetric(t, address, lostLine, check, q.name, 3)
	awaitMetric(t, address, mendLine, check, q.name, 4)

	mendingPaused(t, check, team, other, foreign)

	withdrawn := bareQueueThatStops(t, p, g, team)
	withdrawn.awaitWireEvents(1, "AdmissionCheckWithdrawn", "inactive with it")
	withdrawn.wantChecks()
	create(t, &v1alpha1.AdmissionGate{ObjectMeta: metav1.ObjectMeta{Name: g.Name}, Spec: g.Spec})
	withdrawn.awaitChecks(check)
	for _, line := range gate.find("level=ERROR") {
		t.Errorf("the gate logged %s", line)
	}
}

// awaitChecks waits until the queue names these checks.
func (q *queue) awaitChecks(want ...string) {
	q.t.Helper()
	slices.Sort(want)
	eventually(q.t, patience, fmt.Sprintf("%s names %q", q.name, want), func() error {
		var got []string
		if s := q.clusterQueueOf().Spec.AdmissionChecksStrategy; s != nil {
			for _, e := range s.AdmissionChecks {
				got = append(got, string(e.Name))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}

// mendingPaused: what people detach stays out until they attach it.
func mendingPaused(t *testing.T, check string, team map[string]string, q *queue, foreign string) {
	t.Helper()
	ctl(t, "queues", "detach", q.name, "--check", check).ok(t)
	q.awaitWireEvents(1, "AdmissionCheckMissing", "people keep it out", v1alpha1.KeepDetachedAnnotation)
	q.wantChecks(foreign)
	ctl(t, "queues", "attach", q.name, "--check", check).ok(t)
	q.wantChecks(check, foreign)

	ctl(t, "queues", "detach", "--all", "--check", check).ok(t)
	late := bareQueue(t, unique("q"), team)
	late.awaitWireEvents(1, "AdmissionCheckMissing", "people keep it out")
	late.wantChecks()
	q.wantChecks(foreign)
	ctl(t, "queues", "attach", q.name, "--check", check).ok(t).says(t, "note: AdmissionCheck", "was to stay out of every queue")
	late.awaitChecks(check)
}

// bareQueueThatStops makes a queue that is inactive with the check of a gate: the
// gate goes when the check is about to be put there.
func bareQueueThatStops(t *testing.T, p *proxy, g *v1alpha1.AdmissionGate, team map[string]string) *queue {
	t.Helper()
	name := unique("q")
	held := p.hold(func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/clusterqueues/"+name)
	})
	q := bareQueue(t, name, team)
	held.await(t)
	if err := shared.admin.Delete(t.Context(), g.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the check is inactive", func() error {
		var check kueue.AdmissionCheck
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: g.Name}, &check); err != nil {
			return err
		}
		if slices.ContainsFunc(check.Status.Conditions, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse }) {
			return nil
		}
		return errNotYet
	})
	close(held.release)
	return q
}
