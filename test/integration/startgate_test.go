package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// TestStartGate makes each condition true and false again, on a real cluster and
// with nothing but the documented rights.
func TestStartGate(t *testing.T) {
	g := newStartGate(t)
	g.oneConnection()
	mark := auditMark(t)
	t.Run("Lease", func(t *testing.T) { g.in(t).leases() })
	t.Run("LocalQueue", func(t *testing.T) { g.in(t).localQueue() })
	t.Run("ClusterQueue", func(t *testing.T) { g.in(t).clusterQueue() })
	t.Run("AdmissionCheck", func(t *testing.T) { g.in(t).admissionCheck() })
	t.Run("everything", func(t *testing.T) { g.in(t).everything() })
	t.Run("requests", func(t *testing.T) {
		for range 1000 {
			g.in(t).ask()
		}
		mine := audit(t, mark, func(r request) bool { return strings.HasSuffix(r.User.Username, ":"+g.account) })
		for _, r := range mine {
			if r.Verb != "watch" || r.ResponseStatus.Code >= 300 {
				t.Errorf("the gate asked: %s %s: %d", r.Verb, r.RequestURI, r.ResponseStatus.Code)
			}
		}
		t.Logf("%d requests of the gate have ended", len(mine))
	})
}

// oneConnection sees that all watches share a connection: when it dies silently,
// the renewals of the Lease stay away, too.
func (g *startGate) oneConnection() {
	g.t.Helper()
	eventually(g.t, 10*time.Second, "all watches share a connection", func() error {
		if n := g.network.count(0); n != 1 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
}

// in is g for a part of its test.
func (g *startGate) in(t *testing.T) *startGate {
	q := *g.q
	q.t = t
	return &startGate{Gate: g.Gate, t: t, q: &q, check: g.check, holder: g.holder, account: g.account, took: g.took}
}

func (g *startGate) leases() {
	g.t.Helper()
	name := "Lease dispatch-system/" + g.holder.name
	g.holder.stop()
	end := g.holder.lastRenewal().Add(leaseLength)
	time.Sleep(time.Until(end) - 300*time.Millisecond)
	if d := g.ask(); !admitted(d) && time.Now().Before(end) {
		g.t.Errorf("before the Lease has expired: %s", d)
	}
	g.noticed("the Lease expires", end, noticeLimit, says(name+" has expired"))
	g.holder.start(0)
	g.noticed("it is renewed again", time.Now(), noticeLimit, admitted)

	g.holder.stop()
	g.holder.delete(g.t.Context())
	g.noticed("the Lease is deleted", time.Now(), noticeLimit, says(name+" does not exist"))
	g.holder.start(0)
	g.noticed("it is made again", time.Now(), noticeLimit, admitted)

	g.holder.stop()
	if err := g.holder.write(g.t.Context(), "", time.Now()); err != nil {
		g.t.Fatal(err)
	}
	g.noticed("the Lease is released", time.Now(), noticeLimit, says(name+" has no holder"))
	g.holder.start(0)
	g.noticed("it is acquired again", time.Now(), noticeLimit, admitted)

	g.holder.stop()
	if err := g.holder.write(g.t.Context(), "pod-1", time.Now().Add(-time.Hour)); err != nil {
		g.t.Fatal(err)
	}
	g.noticed("the Lease is turned back by hand", time.Now(), noticeLimit, says(name+" has expired"))
	for _, skew := range []time.Duration{-5 * time.Minute, 5 * time.Minute, -2 * time.Hour} {
		g.holder.start(skew)
		g.noticed("a holder whose clock is off by "+skew.String(), time.Now(), noticeLimit, admitted)
		for end := time.Now().Add(leaseLength + time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if d := g.ask(); !admitted(d) {
				g.t.Fatalf("clock off by %s: %s", skew, d)
			}
		}
		if skew.Abs() <= 5*time.Minute {
			g.freshGate()
		}
		g.holder.stop()
		g.noticed("it dies", g.holder.lastRenewal().Add(leaseLength), noticeLimit, says(name+" has expired"))
	}
	g.holder.start(0)
	g.noticed("a holder whose clock is right", time.Now(), noticeLimit, admitted)
}

// freshGate starts another gate beside the first and waits until it can judge.
func (g *startGate) freshGate() {
	g.t.Helper()
	other := g.in(g.t)
	begun := time.Now()
	other.Gate = other.run()
	for time.Since(begun) < patience && other.Ready() != nil {
		time.Sleep(2 * time.Millisecond)
	}
	if err := other.Ready(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Logf("a new gate is ready after %d ms", time.Since(begun).Milliseconds())
	if d := other.ask(); !admitted(d) {
		g.t.Errorf("a gate that is ready: %s", d)
	}
}

func (g *startGate) localQueue() {
	g.t.Helper()
	name := "LocalQueue " + g.q.name + "/lq"
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.q.name, Name: "lq"}}
	isActive := func() bool { return meta.IsStatusConditionTrue(lq.Status.Conditions, kueue.LocalQueueActive) }

	g.patch(lq, `{"spec":{"stopPolicy":"Hold"}}`)
	g.noticed("the LocalQueue is stopped", time.Now(), noticeLimit, says(name+" is stopped by stopPolicy Hold"))
	g.noticed("Kueue says so, too", time.Now(), patience, says("Kueue: Stopped: "))
	g.patch(lq, `{"spec":{"stopPolicy":"None"}}`)
	g.kueueReacts(lq, "is active", isActive)
	g.noticed("the LocalQueue is open", time.Now(), noticeLimit, admitted)

	if err := shared.admin.Delete(g.t.Context(), lq); err != nil {
		g.t.Fatal(err)
	}
	g.noticed("the LocalQueue is deleted", time.Now(), noticeLimit, says(name+" does not exist"))
	again := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.q.name, Name: "lq"},
		Spec: kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(g.q.name)}}
	if err := shared.admin.Create(g.t.Context(), again); err != nil {
		g.t.Fatal(err)
	}
	g.kueueReacts(lq, "is active", isActive)
	g.noticed("the LocalQueue is back", time.Now(), noticeLimit, admitted)
}

func (g *startGate) clusterQueue() {
	g.t.Helper()
	name := "ClusterQueue " + g.q.name
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.q.name}}
	for _, policy := range []kueue.StopPolicy{kueue.Hold, kueue.HoldAndDrain} {
		g.q.setStopPolicy(policy)
		g.noticed("stopPolicy "+string(policy), time.Now(), noticeLimit, says(name+" is stopped by stopPolicy "+string(policy)))
		g.q.setStopPolicy(kueue.None)
		g.usable()
		g.noticed("stopPolicy None", time.Now(), noticeLimit, admitted)
	}

	g.q.edit(func(s *kueue.ClusterQueueSpec) { s.ResourceGroups[0].Flavors[0].Name = "nowhere" })
	g.kueueReacts(cq, "is inactive", func() bool { return meta.IsStatusConditionFalse(cq.Status.Conditions, kueue.ClusterQueueActive) })
	g.noticed("a flavor is missing", time.Now(), noticeLimit, says(name+" is not active (Kueue: FlavorNotFound: ", "nowhere"))
	g.q.edit(func(s *kueue.ClusterQueueSpec) { s.ResourceGroups[0].Flavors[0].Name = "default" })
	g.usable()
	g.noticed("the flavor is there", time.Now(), noticeLimit, admitted)

	if err := shared.admin.Delete(g.t.Context(), cq.DeepCopy()); err != nil {
		g.t.Fatal(err)
	}
	g.gone(cq)
	g.noticed("the ClusterQueue is deleted", time.Now(), noticeLimit, says(name+" does not exist"))
	// The clean-up of the test deletes this one by its name.
	if err := shared.admin.Create(g.t.Context(), clusterQueue(g.q.name, g.check)); err != nil {
		g.t.Fatal(err)
	}
	g.usable()
	g.noticed("the ClusterQueue is back", time.Now(), noticeLimit, admitted)
}

func (g *startGate) admissionCheck() {
	g.t.Helper()
	name := "AdmissionCheck " + g.check
	check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: g.check}}

	g.kueueReacts(check, "is written", func() bool {
		meta.SetStatusCondition(&check.Status.Conditions, metav1.Condition{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionFalse, Reason: "BadParameters", Message: "no gate"})
		return shared.admin.Status().Update(g.t.Context(), check) == nil
	})
	g.noticed("the check is inactive", time.Now(), noticeLimit, says(name+" is not active (BadParameters: no gate)"))
	g.noticed("Kueue says so, too", time.Now(), patience, says("(Kueue: AdmissionCheckInactive: "))
	activate(g.t, check)
	g.usable()
	g.noticed("the check is active", time.Now(), noticeLimit, admitted)

	g.q.edit(func(s *kueue.ClusterQueueSpec) {
		s.AdmissionChecksStrategy.AdmissionChecks[0].OnFlavors = []kueue.ResourceFlavorReference{"default"}
	})
	time.Sleep(300 * time.Millisecond)
	if d := g.ask(); !admitted(d) {
		g.t.Errorf("the check is for the flavor that the queue has: %s", d)
	}

	if err := shared.admin.Delete(g.t.Context(), check); err != nil {
		g.t.Fatal(err)
	}
	g.noticed("the check is being deleted", time.Now(), noticeLimit, says(name+" is being deleted"))
	time.Sleep(3 * time.Second) // Kueue writes the status of queues up to a second late
	cq := &kueue.ClusterQueue{}
	if err := shared.admin.Get(g.t.Context(), client.ObjectKey{Name: g.q.name}, cq); err != nil || !meta.IsStatusConditionTrue(cq.Status.Conditions, kueue.ClusterQueueActive) {
		g.t.Errorf("Kueue now notices a check that is being deleted, the documentation says that it does not: %v, %v", cq.Status.Conditions, err)
	}
	g.q.edit(func(s *kueue.ClusterQueueSpec) { s.AdmissionChecksStrategy = nil })
	g.noticed("the queue names no check", time.Now(), noticeLimit, says("ClusterQueue "+g.q.name+" names no AdmissionCheck of "))
	g.gone(check)
	g.q.edit(func(s *kueue.ClusterQueueSpec) {
		s.AdmissionChecksStrategy = clusterQueue("", g.check).Spec.AdmissionChecksStrategy
	})
	g.noticed("the queue names a missing check", time.Now(), noticeLimit, says(name+" does not exist"))
	if err := shared.admin.Create(g.t.Context(), &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: g.check}, Spec: kueue.AdmissionCheckSpec{ControllerName: v1alpha1.ControllerName}}); err != nil {
		g.t.Fatal(err)
	}
	g.noticed("the check is new", time.Now(), noticeLimit, says(name+" has not been made active"))
	activate(g.t, check)
	g.usable()
	g.noticed("the check is back", time.Now(), noticeLimit, admitted)
}

// everything goes wrong at once, and is told at once.
func (g *startGate) everything() {
	g.t.Helper()
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.q.name, Name: "lq"}}
	g.holder.stop()
	g.holder.delete(g.t.Context())
	g.patch(lq, `{"spec":{"stopPolicy":"HoldAndDrain"}}`)
	g.patch(&kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.q.name}}, `{"spec":{"stopPolicy":"Hold","admissionChecksStrategy":null}}`)
	g.noticed("everything", time.Now(), patience, says("ClusterQueue "+g.q.name+" is stopped", "(Kueue: Stopped", "names no AdmissionCheck", "Lease dispatch-system/"+g.holder.name+" does not exist", "LocalQueue "+g.q.name+"/lq is stopped by stopPolicy HoldAndDrain (Kueue: "))
	first := g.ask()
	for range 100 {
		if d := g.ask(); !d.Equal(first) {
			g.t.Fatalf("%s, then %s", first, d)
		}
	}
	if reason, _ := first.Held(); !slices.IsSorted(strings.Split(reason, "; ")) {
		g.t.Errorf("not sorted: %s", reason)
	}
}

// patch changes an object as kubectl patch --type=merge does.
func (g *startGate) patch(o client.Object, body string) {
	g.t.Helper()
	if err := shared.admin.Patch(g.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
		g.t.Fatal(err)
	}
}

// usable waits until Kueue says that both queues are active.
func (g *startGate) usable() {
	g.t.Helper()
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.q.name}}
	g.kueueReacts(cq, "is active", func() bool {
		active := meta.FindStatusCondition(cq.Status.Conditions, kueue.ClusterQueueActive)
		return active != nil && active.Status == metav1.ConditionTrue && active.ObservedGeneration == cq.Generation
	})
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.q.name, Name: "lq"}}
	g.kueueReacts(lq, "is active", func() bool { return meta.IsStatusConditionTrue(lq.Status.Conditions, kueue.LocalQueueActive) })
}

// gone waits until an object does not exist any more.
func (g *startGate) gone(o client.Object) {
	g.t.Helper()
	eventually(g.t, patience, o.GetName()+" is gone", func() error {
		if err := shared.admin.Get(g.t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return errNotYet
		}
		return nil
	})
}

// TestStartGateWatchCut: one watch is cut and not let through for longer than the
// Lease lasts.
func TestStartGateWatchCut(t *testing.T) {
	g := newStartGate(t)
	g.network.sever("/clusterqueues")
	at := time.Now()
	g.q.edit(func(s *kueue.ClusterQueueSpec) { s.AdmissionChecksStrategy = nil }) // the gate cannot see it
	for time.Since(at) < leaseLength-500*time.Millisecond {
		if d := g.ask(); !admitted(d) {
			t.Fatalf("%s after the cut: %s", time.Since(at), d)
		}
		time.Sleep(20 * time.Millisecond)
	}
	g.noticed("a watch is cut for too long", at.Add(leaseLength), noticeLimit, says("ClusterQueues cannot be watched: "))
	if d := g.ask(); says("Lease")(d) || says("LocalQueue ")(d) {
		t.Errorf("only one watch was cut: %s", d)
	}
	g.network.sever("")
	g.noticed("it runs again, and tells", time.Now(), noticeLimit, says("names no AdmissionCheck"))
	g.q.edit(func(s *kueue.ClusterQueueSpec) {
		s.AdmissionChecksStrategy = clusterQueue("", g.check).Spec.AdmissionChecksStrategy
	})
	g.usable()
	g.noticed("the queue is gated", time.Now(), noticeLimit, admitted)
	if err := g.Ready(); err != nil {
		t.Error(err)
	}
}

// TestStartGateForbidden: a right is missing, then given.
func TestStartGateForbidden(t *testing.T) {
	g := newStartGate(t)
	limited := g.in(t)
	limited.account = gateAccount(t, "another-lease")
	limited.Gate = limited.run()
	limited.noticed("no right to the Lease", time.Now(), noticeLimit, says("Leases cannot be watched, the API server forbids it: let the start gate list and watch them"))
	if err := limited.Ready(); err == nil || !strings.Contains(err.Error(), "Leases") {
		t.Errorf("ready: %v", err)
	}
	if len(limited.log.all()) > 10 {
		t.Errorf("one fault filled the log: %q", limited.log.all())
	}
}
