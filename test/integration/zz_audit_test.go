package integration

import (
	"encoding/json"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
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
	for _, c := range wl.Status.AdmissionChecks {
		late := strings.Contains(c.Message, "already admitted when this check appeared")
		if has(&wl, kueue.WorkloadAdmitted) && c.State == kueue.CheckStatePending {
			fail("Pending while admitted")
		}
		if c.State == kueue.CheckStateReady && c.Message != "by the test" && !late && !has(&wl, kueue.WorkloadQuotaReserved) {
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
