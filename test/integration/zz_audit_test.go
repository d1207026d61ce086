package integration

import (
	"encoding/json"
	"flag"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestZAudit comes last and holds every write of the whole run against the rules
// that no write may break, whatever the test that caused it.
func TestZAudit(t *testing.T) {
	writes := audit(t, 0, func(r request) bool { return r.own() && r.write() && r.ResponseStatus.Code < 300 })
	if len(writes) == 0 {
		t.Skip("no other test ran, so the audit log has no write of the gate")
	}
	highest := map[string]string{}
	for _, r := range writes {
		switch r.resource() {
		case "workloads/status":
			auditCheckWrite(t, r)
		case "trainjobs":
			auditRaise(t, r, highest)
		case "admissionchecks/status", "events":
		default:
			t.Errorf("the gate wrote to %s: %s %s", r.resource(), r.Verb, r.RequestURI)
		}
	}
	t.Logf("%d writes of the gate, %d TrainJobs raised", len(writes), len(highest))
}

// auditCheckWrite looks at a Workload as it was right after our write; since the
// write was preconditioned on the Workload as read, so are the conditions.
func auditCheckWrite(t *testing.T, r request) {
	t.Helper()
	var wl kueue.Workload
	if err := json.Unmarshal(r.ResponseObject, &wl); err != nil {
		t.Fatalf("%s: %v", r.RequestURI, err)
	}
	fail := func(why string) {
		t.Errorf("a check of %s/%s was written %s: %s", wl.Namespace, wl.Name, why, describeWorkload(&wl))
	}
	if has(&wl, kueue.WorkloadEvicted) {
		fail("while evicted")
	}
	if has(&wl, kueue.WorkloadFinished) {
		fail("after the end")
	}
	if wl.Spec.Active != nil && !*wl.Spec.Active {
		fail("while inactive")
	}
	if wl.DeletionTimestamp != nil {
		fail("while being deleted")
	}
	var ours kueue.Workload
	if err := json.Unmarshal(r.RequestObject, &ours); err != nil {
		t.Fatalf("%s: %v", r.RequestURI, err)
	}
	for _, c := range ours.Status.AdmissionChecks {
		late := c.State == kueue.CheckStateReady && strings.Contains(c.Message, "already admitted when this check appeared")
		if has(&wl, kueue.WorkloadAdmitted) && !late {
			fail(string(c.State) + " while admitted")
		}
		if !has(&wl, kueue.WorkloadQuotaReserved) && c.State == kueue.CheckStateReady {
			fail("Ready without quota")
		}
	}
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
		used[r.Verb+" "+r.resource()+"."+r.ObjectRef.APIGroup] = true
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
