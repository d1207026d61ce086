package integration

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// TestStartGateAPIServer: the API server hangs, then goes away and comes back. It is
// the last test of all, because some components are slow to come back themselves.
func TestStartGateAPIServer(t *testing.T) {
	g := newStartGate(t)
	at := time.Now()
	t.Cleanup(func() { _ = shared.cluster.Signal(cluster.APIServer, syscall.SIGCONT) })
	if err := shared.cluster.Signal(cluster.APIServer, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.noticed("the API server hangs", at.Add(leaseLength), noticeLimit, func(d admission.Decision) bool { return d.Kind() == admission.KindHold })
	if err := shared.cluster.Signal(cluster.APIServer, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	g.noticed("it goes on", time.Now(), 10*time.Second, admitted)

	if err := shared.cluster.Kill(cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	at = time.Now()
	time.Sleep(leaseLength / 3)
	if d := g.ask(); !admitted(d) {
		t.Errorf("a moment without API server: %s", d)
	}
	g.noticed("the API server is gone", at.Add(leaseLength), noticeLimit, says("AdmissionChecks, ClusterQueues, Leases, LocalQueues cannot be watched: "))
	time.Sleep(10 * time.Second) // the default of client-go would wait for most of a minute now
	if err := shared.cluster.StartComponent(t.Context(), cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	g.serves()
	g.noticed("the API server is back", time.Now(), 10*time.Second, admitted)
	t.Logf("log of the start gate:\n%s", strings.Join(g.log.all(), "\n"))
	if n := len(g.log.all()); n > 20 {
		t.Errorf("one outage filled the log with %d lines", n)
	}
	if err := g.Ready(); err != nil {
		t.Error(err)
	}
	g.oneConnection()
}

// serves waits until the API server gives the account of the gate what it wants:
// one that has just started has not read the roles and the CRDs.
func (g *startGate) serves() {
	g.t.Helper()
	begun := time.Now()
	c, err := harness.NewClient(g.kubeconfig)
	if err != nil {
		g.t.Fatal(err)
	}
	lease := []client.ListOption{client.InNamespace(namespace), client.MatchingFields{metav1.ObjectNameField: g.holder.name}}
	eventually(g.t, patience, "the API server serves", func() error {
		ctx := g.t.Context()
		return errors.Join(c.List(ctx, &kueue.LocalQueueList{}), c.List(ctx, &kueue.ClusterQueueList{}), c.List(ctx, &kueue.AdmissionCheckList{}),
			c.List(ctx, &coordinationv1.LeaseList{}, lease...))
	})
	g.t.Logf("the API server serves %d ms after it said that it is ready", time.Since(begun).Milliseconds())
}
