package startgate_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"k8s.io/client-go/rest"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/startgate"
)

// policy is what the operator wants.
func policy(_ context.Context, req *admission.Request) (admission.Decision, error) {
	if req.TenantID == "" {
		return admission.Refuse("only tenants may train"), nil
	}
	return admission.AdmitWith(admission.Changes{NodeSelector: map[string]string{"tenant": req.TenantID}}), nil
}

// offer offers one attempt to start.
func offer(ctx context.Context, gate admission.Hook, attempt *admission.Request) {
	decision, err := gate.Admit(ctx, attempt)
	if err != nil {
		fmt.Println("no verdict, so it waits, and the log says why:", err)
		return
	}
	switch decision.Kind() {
	case admission.KindAdmit, admission.KindAdmitWith: // a gate always names the queue
		changes, _ := decision.Changes()
		fmt.Println("create the job, in queue", changes.Labels[startgate.QueueLabel])
	case admission.KindHold:
		reason, _ := decision.Held()
		fmt.Println("offer it again later:", reason)
	case admission.KindRefuse:
		reason, _ := decision.Refused()
		fmt.Println("fail it for good:", reason)
	}
}

// A workflow server asks the gate before it creates the work of an attempt. This
// one is still waiting for the first answer of the API server.
func Example() {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	config := &rest.Config{Host: silent.URL} // in a pod: rest.InClusterConfig()

	gate, err := startgate.New(config, startgate.Options{
		Policy:     admission.HookFunc(policy),
		LocalQueue: "training", // of attempts that name none
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { _ = gate.Run(ctx) }() // as long as the server runs

	fmt.Println("ready:", gate.Ready() == nil) // for the readiness probe of the server
	offer(ctx, gate, &admission.Request{TenantID: "team-a", Namespace: "team-a", TryNumber: 1})
	offer(ctx, gate, &admission.Request{TenantID: "team-a", Namespace: "team-a", TryNumber: 1, LocalQueue: "no name"})

	// Output:
	// ready: false
	// offer it again later: AdmissionChecks, ClusterQueues, Leases, LocalQueues not read yet: wait, or see the log of the start gate
	// fail it for good: localQueue: "no name" cannot be the name of a LocalQueue: name a LocalQueue in the task (localQueue, or the pod label kueue.x-k8s.io/queue-name), or have the operator set a default (kueue.localQueue)
}
