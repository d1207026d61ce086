package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// slowly answers d, but only after longer than a held job keeps its quota.
func slowly(d admission.Decision) admission.HookFunc {
	return func(ctx context.Context, _ *admission.Request) (admission.Decision, error) {
		select {
		case <-time.After(1500 * time.Millisecond):
			return d, nil
		case <-ctx.Done():
			return admission.Decision{}, ctx.Err()
		}
	}
}

// gateEditedOnQuota and gateEditedWhileParked: a gate that is edited may decide
// otherwise, so its held jobs are offered at once, although the hook gave a time
// that is far away. What is not in its spec makes no difference. A hook that takes
// its time to answer gets it, also when quota is owed to others.
func gateEditedOnQuota(t *testing.T)     { gateEdited(t, false) }
func gateEditedWhileParked(t *testing.T) { gateEdited(t, true) }

func gateEdited(t *testing.T, park bool) {
	t.Helper()
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 5), patiently)
	q := newHookedQueue(t, gate)
	name := dispatchName()
	h.decides(name, admission.HoldUntil(time.Now().Add(time.Hour), "come back later"))
	held := q.submit(name)
	wl := awaitHeld(t, held, gate.Name, "come back later")
	since := sinceOf(wl)
	if park {
		q.tooBig()
		wantHeld(t, awaitParked(t, held), gate.Name, "come back later", since)
	}
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"example.com/owner":"somebody"}}}`))
	if err := shared.admin.Patch(t.Context(), gate.DeepCopy(), label); err != nil {
		t.Fatal(err)
	}
	h.rule(name, slowly(admission.Admit()))
	editGate(t, gate.Name, window(7200))
	q.awaitStart(held, "1")
	wantOffers(t, h.asked(held), since.Time, 2)
}

// gateRecreated: the gate of held jobs is deleted. Its check becomes inactive, so
// nobody else gets quota to wait on, and says why. When there is a gate of that
// name again, the jobs are offered at once, that on quota as well as the parked one.
func gateRecreated(t *testing.T) {
	h := newHoldHook(t)
	// Kueue's count of who waits may still have the job itself for a second.
	gate := newGate(t, h.testHook, holdTimes(1, 5))
	first := newHookedQueue(t, gate)
	second := newQueueOf(t, gate.Name)
	onQuota, parkedName := dispatchName(), dispatchName()
	later := admission.HoldUntil(time.Now().Add(time.Hour), "come back later")
	h.decides(onQuota, later)
	h.decides(parkedName, later)
	a := first.submit(onQuota)
	awaitHeld(t, a, gate.Name, "come back later")
	second.tooBig()
	b := second.submit(parkedName)
	awaitParked(t, b)

	if err := shared.admin.Delete(t.Context(), gate); err != nil {
		t.Fatal(err)
	}
	awaitActive(t, gate.Name, "False", "BadParameters")
	awaitMessage(t, a, gate.Name, kueue.CheckStatePending, gate.Name, "does not exist")
	awaitWorkload(t, b, "is not kept out of the queue by a gate that is gone", func(wl *kueue.Workload) bool { return requeueAt(wl).IsZero() })

	h.decides(onQuota, admission.Admit())
	h.decides(parkedName, admission.Admit())
	create(t, &v1alpha1.AdmissionGate{ObjectMeta: metav1.ObjectMeta{Name: gate.Name}, Spec: *gate.Spec.DeepCopy()})
	awaitActive(t, gate.Name, "True", "ControllerStarted")
	first.awaitStart(a, "1")
	second.awaitStart(b, "1")
}

// badParameters: a check that names no gate which this program could use is not
// active, and says what is wrong. Its queue is inactive, so a job that comes waits
// without quota, until the check names a gate.
func badParameters() (stories []tale) {
	ref := func(group, kind string) *kueue.AdmissionCheckParametersReference {
		return &kueue.AdmissionCheckParametersReference{APIGroup: group, Kind: kind, Name: "nowhere"}
	}
	for name, tc := range map[string]struct {
		ref   *kueue.AdmissionCheckParametersReference
		words []string
	}{
		"Missing":    {parametersOf("nowhere"), []string{"nowhere", "does not exist"}},
		"WrongKind":  {ref(v1alpha1.GroupName, "AdmissionDoor"), []string{"AdmissionDoor", "must name an AdmissionGate"}},
		"WrongGroup": {ref("example.com", v1alpha1.AdmissionGateKind), []string{"example.com", "must name an AdmissionGate"}},
	} {
		stories = append(stories, tale{"Parameters" + name, func(t *testing.T) { badParametersStory(t, tc.ref, tc.words) }})
	}
	return append(stories, tale{"ParametersInvalid", invalidGate})
}

// invalidGate: a gate that the API server takes and no client can be made for. Its
// check and the gate itself say so, and it is served once it is mended.
func invalidGate(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h, func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook.Endpoint = v1alpha1.Endpoint{URL: "https://hook.example.com", CABundle: []byte("a")}
	})
	newCheckWith(t, gate.Name, parametersOf(gate.Name))
	awaitActive(t, gate.Name, "False", "BadParameters")
	awaitGateReady(t, gate, metav1.ConditionFalse, "Invalid", "caBundle")
	q := newQueueOf(t, gate.Name)
	job := q.submit(dispatchName())
	q.awaitWaiting(1)
	editGate(t, gate.Name, func(s *v1alpha1.AdmissionGateSpec) { s.Hook.Endpoint = v1alpha1.Endpoint{UnixSocket: h.socket} })
	awaitActive(t, gate.Name, "True", "ControllerStarted")
	awaitGateReady(t, gate, metav1.ConditionTrue, "Served", "")
	q.awaitStart(job, "1")
}

// awaitGateReady waits until a gate says of its present version whether it is served,
// and why.
func awaitGateReady(t *testing.T, gate *v1alpha1.AdmissionGate, status metav1.ConditionStatus, reason, words string) {
	t.Helper()
	awaitGate(t, gate.Name, fmt.Sprintf("has Ready %s, %s", status, reason), func(s v1alpha1.AdmissionGateStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.GateReady)
		return c != nil && c.Status == status && c.Reason == reason && strings.Contains(c.Message, words) && c.ObservedGeneration == s.ObservedGeneration
	})
}

func badParametersStory(t *testing.T, ref *kueue.AdmissionCheckParametersReference, words []string) {
	t.Helper()
	right, check := newGate(t, newHook(t, admission.Admit())), unique("check")
	newCheckWith(t, check, ref)
	awaitActive(t, check, "False", "BadParameters")
	var ac kueue.AdmissionCheck
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: check}, &ac); err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		if m := ac.Status.Conditions[0].Message; !strings.Contains(m, w) {
			t.Errorf("message %q does not say %q", m, w)
		}
	}
	q := newQueueOf(t, check)
	job := q.submit(dispatchName())
	q.awaitWaiting(1)
	if wl := awaitWorkload(t, job, "is there", func(*kueue.Workload) bool { return true }); has(wl, kueue.WorkloadQuotaReserved) {
		t.Errorf("it has quota: %s", describeWorkload(wl))
	}
	eventually(t, patience, "the check names a gate", func() error {
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: check}, &ac); err != nil {
			return err
		}
		ac.Spec.Parameters = parametersOf(right.Name)
		return shared.admin.Update(t.Context(), &ac)
	})
	awaitActive(t, check, "True", "ControllerStarted")
	q.awaitStart(job, "1")
}

// holdUntilOnQuota and holdUntilParked: when the hook gives a time, it is asked
// again then, not before and not long after, and people can read the time.
func holdUntilOnQuota(t *testing.T) { holdUntil(t, false) }
func holdUntilParked(t *testing.T)  { holdUntil(t, true) }

func holdUntil(t *testing.T, park bool) {
	t.Helper()
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 0))
	q := newHookedQueue(t, gate)
	seen := watchVersions(t, q.name)
	if park {
		q.tooBig()
	}
	name := dispatchName()
	until := time.Now().Add(20 * time.Second)
	h.rule(name, func(_ context.Context, r *admission.Request) (admission.Decision, error) {
		if r.OfferCount == 1 {
			return admission.HoldUntil(until, "not before the release"), nil
		}
		return admission.Admit(), nil
	})
	held := q.submit(name)
	wl := awaitCalledHeld(t, held, "not before the release")
	if m := conditionOf(wl, v1alpha1.WorkloadHeld).Message; !strings.Contains(m, "asked again at "+until.UTC().Format(time.RFC3339)) {
		t.Errorf("condition Held: %q does not say until when", m)
	}
	if park {
		if at := requeueAt(seen.sees(t, held, "the held job gives its quota back", parked)); at.Before(until) || at.After(until.Add(time.Second)) {
			t.Errorf("Kueue offers it at %s, want %s", at, until)
		}
	}
	q.awaitStart(held, "1")
	if again := h.times(held)[1]; again.Before(until) || again.After(until.Add(30*time.Second)) {
		t.Errorf("asked again at %s, want %s", again, until)
	}
	wantOffers(t, h.asked(held), sinceOf(wl).Time, 2)
	noEarlyOffer(t, seen, held)
}

// windowSpent: a job may be held for so long. When the hook holds it even then, it
// is refused with the last reason that the hook gave; nothing of it ever starts.
func windowSpent(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 0), window(6))
	q := newHookedQueue(t, gate)
	name := dispatchName()
	h.rule(name, func(_ context.Context, r *admission.Request) (admission.Decision, error) {
		if r.OfferCount == 1 {
			return admission.Hold("the first reason"), nil
		}
		return admission.Hold("the last reason"), nil
	})
	seen := watchVersions(t, q.name)
	held := q.submit(name)
	since := sinceOf(seen.sees(t, held, "the job is held first", func(wl *kueue.Workload) bool {
		return has(wl, v1alpha1.WorkloadHeld) && strings.Contains(checkOf(wl, gate.Name).Message, "the first reason")
	}))
	wl := awaitWorkload(t, held, "is refused", func(wl *kueue.Workload) bool {
		return has(wl, v1alpha1.WorkloadRefused) && wl.Spec.Active != nil && !*wl.Spec.Active
	})
	c := conditionOf(wl, v1alpha1.WorkloadRefused)
	if !strings.Contains(c.Message, "the last reason") || !strings.Contains(c.Message, "window of 6s") || c.LastTransitionTime.Sub(since.Time) < 6*time.Second {
		t.Errorf("held since %s, refused at %s: %s", since, c.LastTransitionTime, c.Message)
	}
	awaitEvents(t, held, "HookRefused", "the last reason")
	awaitWorkload(t, held, "gives its quota back", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	wantCount(t, held, "")
	if pods := ofJob(held, q.pods.live()); len(pods) > 0 {
		t.Errorf("%d pods of a refused job", len(pods))
	}
}
