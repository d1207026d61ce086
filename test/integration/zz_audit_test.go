package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// TestZAudit comes last and holds every write of the whole run against the rules
// that no write may break, whatever the test that caused it.
func TestZAudit(t *testing.T) {
	writes := audit(t, 0, func(r request) bool { return r.own() && r.Writes() && r.ResponseStatus.Code < 300 })
	if len(writes) == 0 {
		t.Skip("no other test ran, so the audit log has no write of the gate")
	}
	highest := map[string]string{}
	kinds := map[string]int{}
	for _, r := range writes {
		kinds[r.Verb+" "+r.Target()]++
		switch r.Target() {
		case "workloads", "workloads/status":
			newAudited(t, r).check()
		case "trainjobs":
			auditRaise(t, r, highest)
		case "admissionchecks/status", "admissiongates/status", "events":
		default:
			t.Errorf("the gate wrote to %s: %s %s", r.Target(), r.Verb, r.RequestURI)
		}
	}
	t.Logf("%d writes of the gate, %d TrainJobs raised: %v", len(writes), len(highest), kinds)
}

// audited is a write to a Workload.
type audited struct {
	t *testing.T
	// sent is what the gate wrote, and is which of its fields.
	sent   kueue.Workload
	fields []string
	// wl is the Workload right after the write. Since the write was preconditioned
	// on the Workload as read, Kueue's conditions are those that it was read with.
	wl kueue.Workload
}

func newAudited(t *testing.T, r request) *audited {
	t.Helper()
	a := &audited{t: t}
	var sent map[string]any
	for into, data := range map[any]json.RawMessage{&a.sent: r.RequestObject, &sent: r.RequestObject, &a.wl: r.ResponseObject} {
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("%s: %v", r.RequestURI, err)
		}
	}
	a.fields = leaves("", sent)
	return a
}

// leaves are the paths of what an object sets. Lists are leaves, and so are maps
// that are empty.
func leaves(path string, v any) []string {
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 {
		return []string{path}
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, leaves(strings.TrimPrefix(path+" "+key, " "), m[key])...)
	}
	return out
}

func (a *audited) fail(format string, args ...any) {
	a.t.Helper()
	a.t.Errorf("a write to %s/%s %s: it set %q, and the Workload is %s", a.wl.Namespace, a.wl.Name,
		fmt.Sprintf(format, args...), a.fields, describeWorkload(&a.wl))
}

// check sees that a write is one of the three kinds that there are: the checks with
// our conditions, the annotation that keeps count of holds, and the removal of the
// time before which Kueue does not offer the Workload.
func (a *audited) check() {
	a.t.Helper()
	if a.sent.ResourceVersion == "" || a.sent.UID == "" {
		a.fail("was not preconditioned")
	}
	switch {
	case a.wl.DeletionTimestamp != nil:
		a.fail("came while it was being deleted")
	case has(&a.wl, kueue.WorkloadFinished):
		a.fail("came after its end")
	case a.wl.Spec.Active != nil && !*a.wl.Spec.Active && !a.setsBack():
		a.fail("came while it was inactive")
	}
	fields := slices.DeleteFunc(slices.Clone(a.fields), func(f string) bool {
		return slices.Contains([]string{"apiVersion", "kind", "metadata name", "metadata namespace", "metadata uid", "metadata resourceVersion"}, f)
	})
	switch what := strings.Join(fields, ", "); what {
	case "status admissionChecks", "status admissionChecks, status conditions":
		a.checks()
	case "metadata annotations " + v1alpha1.HoldAnnotation:
		if a.phase() != "Reserved" {
			a.fail("counted an offer while it was not offered")
		}
	case "status requeueState requeueAt":
		if !requeueAt(&a.sent).IsZero() || !requeueAt(&a.wl).IsZero() {
			a.fail("set requeueAt, which is Kueue's")
		}
		if p := a.phase(); p == "Admitted" || p == "Queued" || !has(&a.wl, v1alpha1.WorkloadHeld) {
			a.fail("removed requeueAt from a Workload that was not parked")
		}
	default:
		a.fail("set what is not the gate's")
	}
}

// setsBack tells whether all that a write did was to take a Retry back.
func (a *audited) setsBack() bool {
	return has(&a.wl, v1alpha1.WorkloadHeld) && !slices.ContainsFunc(a.sent.Status.AdmissionChecks, func(c kueue.AdmissionCheckState) bool {
		return c.State != kueue.CheckStatePending
	})
}

// phase is where the Workload stood, as far as it matters to what may be written.
func (a *audited) phase() string {
	for _, c := range []string{kueue.WorkloadEvicted, kueue.WorkloadAdmitted} {
		if has(&a.wl, c) {
			return c
		}
	}
	if has(&a.wl, kueue.WorkloadQuotaReserved) {
		return "Reserved"
	}
	return "Queued"
}

// checks looks at a write of our checks and conditions.
func (a *audited) checks() {
	a.t.Helper()
	for _, c := range a.sent.Status.Conditions {
		requeue := c.Type == kueue.WorkloadRequeued && c.Status == metav1.ConditionFalse && a.setsBack()
		if c.Type != v1alpha1.WorkloadHeld && c.Type != v1alpha1.WorkloadRefused && !requeue {
			a.fail("set the condition %s", c.Type)
		}
	}
	for _, c := range a.sent.Status.AdmissionChecks {
		if c.RetryCount != nil || (c.RequeueAfterSeconds != nil) != (c.State == kueue.CheckStateRetry) {
			a.fail("set what is Kueue's of check %s", c.Name)
		}
		if len(c.PodSetUpdates) > 0 && c.State != kueue.CheckStateReady {
			a.fail("gave pods something by check %s, which is %s", c.Name, c.State)
		}
		if !a.allowed(c) {
			a.fail("made check %s %s while it was %s", c.Name, c.State, a.phase())
		}
	}
}

// allowed tells whether a check may have become, or have stayed, what was written.
func (a *audited) allowed(c kueue.AdmissionCheckState) bool {
	says := func(words string) bool { return strings.Contains(c.Message, words) }
	held := has(&a.wl, v1alpha1.WorkloadHeld)
	switch a.phase() {
	case "Reserved":
		switch c.State {
		case kueue.CheckStateRetry: // at once, because a delay would be spent on the quota
			return held && *c.RequeueAfterSeconds == 0
		case kueue.CheckStateRejected:
			return has(&a.wl, v1alpha1.WorkloadRefused)
		}
		return true
	case kueue.WorkloadEvicted:
		// Never an answer, and Retry only with the time until the next offer: Kueue
		// takes back what it finds, but only once, and that has been.
		parks := c.State == kueue.CheckStateRetry && *c.RequeueAfterSeconds > 0
		return held && (c.State == kueue.CheckStatePending || parks)
	case kueue.WorkloadAdmitted:
		late := c.State == kueue.CheckStateReady && says("already admitted when this check appeared")
		ungated := c.State == kueue.CheckStateRetry && *c.RequeueAfterSeconds == 0 && says("it is evicted, to start again gated")
		return late || ungated || a.kept(c)
	}
	return c.State == kueue.CheckStatePending
}

// kept tells whether a check was repeated as it was, because another check of ours
// changed and a write has all of them.
func (a *audited) kept(c kueue.AdmissionCheckState) bool {
	return len(a.sent.Status.AdmissionChecks) > 1 && c.State == kueue.CheckStateReady
}

// auditRaise sees that A of a TrainJob only ever rises.
func auditRaise(t *testing.T, r request, highest map[string]string) {
	t.Helper()
	var job trainer.TrainJob
	if err := json.Unmarshal(r.ResponseObject, &job); err != nil {
		t.Fatalf("%s: %v", r.RequestURI, err)
	}
	count := countIn(&job)
	before := highest[string(job.UID)]
	if len(count) < len(before) || len(count) == len(before) && count <= before {
		t.Errorf("A of %s/%s went from %s to %s", job.Namespace, job.Name, before, count)
	}
	highest[string(job.UID)] = count
}

// TestZRights compares the ClusterRole with what the gate asked for in the whole
// run, both ways: nothing was denied, and nothing is granted in vain.
func TestZRights(t *testing.T) {
	used := map[string]bool{}
	for _, r := range audit(t, 0, func(r request) bool { return r.User.Username == account }) {
		// The admission webhooks' no is a 403, too; the authorizer's names the user.
		if r.ResponseStatus.Code == 403 && strings.Contains(r.ResponseStatus.Message, account) {
			t.Errorf("denied: %s %s: %s", r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
		used[r.Verb+" "+r.Target()+"."+r.ObjectRef.APIGroup] = true
		if r.Target() == "pods" && !strings.Contains(r.RequestURI, "labelSelector=") && !strings.Contains(r.RequestURI, "fieldSelector=metadata.name") {
			t.Errorf("asked for all pods: %s %s", r.Verb, r.RequestURI)
		}
	}
	if pattern := flag.Lookup("test.run").Value.String(); pattern != "" {
		t.Skipf("only the tests %q ran, so a right that was not used proves nothing", pattern)
	}
	var role rbacv1.ClusterRole
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: release}, &role); err != nil {
		t.Fatal(err)
	}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					right := verb + " " + resource + "." + group
					// An event that repeats within minutes is patched into a series. A
					// list is what an informer falls back to where the API server does
					// not stream the first state through the watch.
					if !used[right] && right != "patch events.events.k8s.io" && verb != "list" {
						t.Errorf("granted and never used: %s", right)
					}
				}
			}
		}
	}
}
