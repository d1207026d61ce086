package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// cycles is how often fiftyCycles has a job give its quota back.
const cycles = 50

// fiftyCycles: a held job gives its quota back fifty times, because somebody waits
// all the time, and then runs all the same: nothing wears out. Most times its gate
// is edited while it is parked, so that it is offered at once; every tenth time
// Kueue offers it by itself when its time has come. Every fifth time a short job
// comes by and gets the quota. A was never raised for an attempt that did not
// start, and the hook was asked once for each.
func fiftyCycles(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 0))
	q := newHookedQueue(t, gate)
	q.tooBig()
	seen := watchVersions(t, q.name)
	mark := auditMark(t)
	name := dispatchName()
	natural := func(cycle int) bool { return cycle%10 == 0 && cycle < cycles }
	h.rule(name, func(_ context.Context, r *admission.Request) (admission.Decision, error) {
		if natural(r.OfferCount) {
			return admission.HoldUntil(time.Now().Add(6*time.Second), "no seat"), nil
		}
		return admission.HoldUntil(time.Now().Add(time.Hour), "no seat"), nil
	})
	began := time.Now()
	held := q.submit(name)
	since := sinceOf(awaitCalledHeld(t, held, "no seat"))
	for cycle := 1; cycle <= cycles; cycle++ {
		if cycle%5 == 0 {
			awaitFinished(t, q.shortJob())
		}
		awaitReturned(t, h, held, cycle)
		if cycle == cycles {
			h.decides(name, admission.Admit())
		}
		if cycle == cycles || !natural(cycle) {
			editGate(t, gate.Name, window(86400+cycle))
		}
	}
	q.awaitStart(held, "1")
	took := time.Since(began)

	wl := awaitWorkload(t, held, "runs", running)
	if n := evictions(wl); n < cycles || n > cycles*3/2 {
		t.Errorf("%d evictions, want %d, and some more if Kueue was faster than the gate", n, cycles)
	}
	wantOffers(t, h.asked(held), since.Time, cycles+1)
	fewEvents(t, held, wl.Name)
	writes := writesAbout(t, mark, wl)
	t.Logf("%d cycles in %s, %d evictions, %d versions of the workload; writes: %s",
		cycles, took.Round(time.Second), evictions(wl), len(versions(t, seen, held)), perCycle(writes))
	lost := max(0, evictions(wl)-cycles) // races, each of which takes another turn
	if n := writes["gate patch workloads"]; n > 2*cycles+2+lost {
		t.Errorf("%d writes of the annotation, want two for each cycle at most", n)
	}
	if n := writes["gate patch workloads/status"]; n > 6*cycles+3*lost {
		t.Errorf("%d writes of the status, want six for each cycle at most", n)
	}
}

// fewEvents sees that what repeats is told as a series, on the job and its Workload.
func fewEvents(t *testing.T, job client.Object, workload string) {
	t.Helper()
	for kind, name := range map[string]string{"TrainJob": job.GetName(), "Workload": workload} {
		returned := eventsOf(t, job.GetNamespace(), kind, name, "QuotaReturned")
		if len(returned) != 1 || returned[0].Series == nil {
			t.Errorf("%d events on the %s tell that quota was returned, want one with a count: %v", len(returned), kind, returned)
		}
		t.Logf("%d events on the %s", len(eventsOf(t, job.GetNamespace(), kind, name)), kind)
	}
}

// awaitReturned waits until a held job has been offered n times and is parked.
func awaitReturned(t *testing.T, h *holdHook, held client.Object, n int) {
	t.Helper()
	h.awaitAsked(held, n)
	awaitParked(t, held)
}

// wantOffers wants n requests that belong to one hold since a time, and to the
// first start of the job.
func wantOffers(t *testing.T, calls []*admission.Request, since time.Time, n int) {
	t.Helper()
	if len(calls) != n {
		t.Errorf("the hook was asked %d times, want %d", len(calls), n)
	}
	for i, r := range calls {
		if r.OfferCount != i+1 || r.TryNumber != 1 {
			t.Errorf("call %d is offer %d of try %d", i+1, r.OfferCount, r.TryNumber)
		}
		if i > 0 && !r.HeldSince.Equal(since) {
			t.Errorf("offer %d is of a hold since %s, want %s", r.OfferCount, r.HeldSince, since)
		}
	}
}

// writesAbout counts what was written about a Workload since a mark, by who wrote
// and what.
func writesAbout(t *testing.T, mark int64, wl *kueue.Workload) map[string]int {
	t.Helper()
	writers := map[string]string{account: "gate", "system:serviceaccount:kueue-system:kueue-controller-manager": "kueue"}
	counts := map[string]int{}
	for _, r := range audit(t, mark, func(r request) bool {
		return r.Writes() && r.ObjectRef.Namespace == wl.Namespace && !strings.Contains(r.RequestURI, "dryRun") && writers[r.User.Username] != ""
	}) {
		about := r.ObjectRef.Name == wl.Name || r.ObjectRef.Resource == "events" && strings.Contains(string(r.RequestObject), string(wl.UID))
		if !about {
			continue
		}
		key := writers[r.User.Username] + " " + r.Verb + " " + r.Target()
		if r.ResponseStatus.Code >= 300 {
			key = fmt.Sprintf("%s with status %d", key, r.ResponseStatus.Code)
		}
		counts[key]++
	}
	return counts
}

func perCycle(writes map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(writes)) {
		parts = append(parts, fmt.Sprintf("%s %d (%.1f a cycle)", key, writes[key], float64(writes[key])/cycles))
	}
	return strings.Join(parts, "; ")
}

// reoffersAreQuiet: a job that is held on quota and offered again and again causes
// one event on itself and on its Workload, not one each time, and no write but the
// annotation that keeps count. kubectl describe says why it waits, since when, and
// until when.
func reoffersAreQuiet(t *testing.T) {
	h := newHoldHook(t)
	// Kueue's count of who waits may still have the job itself for a second.
	gate := newGate(t, h.testHook, holdTimes(1, 5), window(36000))
	q := newHookedQueue(t, gate)
	seen := watchVersions(t, q.name)
	name := dispatchName()
	h.decides(name, admission.Hold("the cluster is in maintenance"))
	held := q.submit(name)
	wl := awaitHeld(t, held, gate.Name, "maintenance")
	h.awaitAsked(held, 6)
	awaitEvents(t, held, "HookHeld", "the cluster is in maintenance", "Held since", "refused if it is still held at")

	var before *kueue.Workload
	compared := 0
	for _, v := range versions(t, seen, held) {
		if !has(v, v1alpha1.WorkloadHeld) {
			continue
		}
		if before != nil {
			wantOnlyBook(t, before, v)
			compared++
		}
		before = v
	}
	if compared < 4 {
		t.Errorf("the workload changed %d times while it was held, want a change for each offer", compared)
	}
	for kind, object := range map[string]string{"TrainJob": name, "Workload": wl.Name} {
		ours := eventsOf(t, q.name, kind, object, "HookHeld", "HookNoVerdict", "QuotaReturned", "HookReleased")
		if len(ours) != 1 || ours[0].Series != nil {
			t.Errorf("%d events on the %s: %v", len(ours), kind, ours)
		}
		// Kueue tells the message of a check when its job reconciles, once.
		for _, e := range eventsOf(t, q.name, kind, object) {
			if e.Series != nil && e.Series.Count > 3 {
				t.Errorf("%s was told %d times: %s", e.Reason, e.Series.Count, e.Message)
			}
		}
	}
	since := sinceOf(wl).UTC()
	out, err := shared.cluster.Kubectl(t.Context(), "describe", "workload", wl.Name, "-n", q.name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"the cluster is in maintenance", gate.Name, "Held since " + since.Format(time.RFC3339),
		"refused if it is still held at " + since.Add(10*time.Hour).Format(time.RFC3339), "HookHeld",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("kubectl describe does not say %q:\n%s", want, out)
		}
	}
}

// wantOnlyBook wants two versions of a held Workload to differ in the annotation
// that keeps count of offers, or in a condition of Kueue's own, and in nothing else.
func wantOnlyBook(t *testing.T, before, after *kueue.Workload) {
	t.Helper()
	strip := func(wl *kueue.Workload) string {
		wl = wl.DeepCopy()
		delete(wl.Annotations, v1alpha1.HoldAnnotation)
		wl.ResourceVersion, wl.ManagedFields = "", nil
		wl.Status.Conditions = slices.DeleteFunc(wl.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kueue.WorkloadPodsReady })
		return asJSON(t, wl)
	}
	if a, b := strip(before), strip(after); a != b {
		t.Errorf("two offers changed more than the annotation:\n%s\n%s", a, b)
	}
}
