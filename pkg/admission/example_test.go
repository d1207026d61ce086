package admission_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// policy runs each tenant on its own nodes, holds during a freeze and refuses
// more than 8 CPUs.
type policy struct {
	pools       map[string]string // tenant to node pool
	freezeStart time.Time
	freezeEnd   time.Time
	now         func() time.Time
}

// Admit is the hook.
func (p policy) Admit(_ context.Context, req *admission.Request) (admission.Decision, error) {
	cpu, err := admission.MilliUnits(req.Resources.Requests.CPU)
	if err != nil {
		return admission.Refuse("cannot read the CPU request: " + err.Error()), nil
	}
	if cpu > 8000 {
		return admission.Refuse("a pod may use at most 8 CPUs"), nil
	}
	if now := p.now(); !now.Before(p.freezeStart) && now.Before(p.freezeEnd) {
		return admission.HoldUntil(p.freezeEnd, "the year-end freeze is on"), nil
	}
	pool, known := p.pools[req.TenantID]
	if !known {
		return admission.Admit(), nil
	}
	return admission.AdmitWith(admission.Changes{
		NodeSelector: map[string]string{"example.com/pool": pool},
		Tolerations:  []admission.Toleration{{Key: "example.com/pool", Value: pool, Effect: "NoSchedule"}},
	}), nil
}

// A hook that runs each tenant on its own nodes, holds during a freeze and
// refuses more than 8 CPUs.
func Example() {
	clock := time.Date(2026, time.December, 1, 9, 0, 0, 0, time.UTC)
	var hook admission.Hook = policy{
		pools:       map[string]string{"team-a": "pool-a"},
		freezeStart: time.Date(2026, time.December, 20, 0, 0, 0, 0, time.UTC),
		freezeEnd:   time.Date(2027, time.January, 4, 0, 0, 0, 0, time.UTC),
		now:         func() time.Time { return clock },
	}
	ask := func(tenant, cpu string) {
		req := &admission.Request{TenantID: tenant, TryNumber: 1}
		req.Resources.Requests.CPU = cpu
		decision, err := hook.Admit(context.Background(), req)
		fmt.Println(tenant, cpu, "->", decision, err)
	}

	ask("team-a", "4")
	ask("team-b", "7500m")
	ask("team-a", "16")
	clock = time.Date(2026, time.December, 24, 18, 0, 0, 0, time.UTC)
	ask("team-a", "4")

	// Output:
	// team-a 4 -> AdmitWith {"decision":"AdmitWith","changes":{"nodeSelector":{"example.com/pool":"pool-a"},"tolerations":[{"key":"example.com/pool","value":"pool-a","effect":"NoSchedule"}]}} <nil>
	// team-b 7500m -> Admit <nil>
	// team-a 16 -> Refuse {"decision":"Refuse","reason":"a pod may use at most 8 CPUs"} <nil>
	// team-a 4 -> Hold {"decision":"Hold","reason":"the year-end freeze is on","until":"2027-01-04T00:00:00Z"} <nil>
}

func ExampleHoldUntil() {
	monday := time.Date(2026, time.March, 2, 8, 0, 0, 0, time.UTC)
	decision := admission.HoldUntil(monday, "training starts on Monday")

	reason, held := decision.Held()
	until, timed := decision.Until()
	fmt.Println(held, reason)
	fmt.Println(timed, until)
	// Output:
	// true training starts on Monday
	// true 2026-03-02 08:00:00 +0000 UTC
}

func ExampleAdmitWith() {
	decision := admission.AdmitWith(admission.Changes{
		Labels:         map[string]string{"example.com/cost-center": "4711"},
		ServiceAccount: "team-a",
		Tolerations: []admission.Toleration{{
			Key: "example.com/spot", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(30)),
		}},
	})

	changes, _ := decision.Changes()
	fmt.Println(changes.Labels["example.com/cost-center"], changes.ServiceAccount, *changes.Tolerations[0].TolerationSeconds)
	fmt.Println(decision.Validate())
	// Output:
	// 4711 team-a 30
	// <nil>
}

// The four decisions and what their accessors tell.
func ExampleDecision() {
	fmt.Println("kind       held  refused changes")
	for _, d := range []admission.Decision{
		{}, // the zero Decision admits
		admission.Admit(),
		admission.AdmitWith(admission.Changes{ServiceAccount: "team-a"}),
		admission.Hold("freeze"),
		admission.Refuse("too large"),
	} {
		_, held := d.Held()
		_, refused := d.Refused()
		_, changes := d.Changes()
		fmt.Printf("%-10s %-5t %-7t %t\n", d.Kind(), held, refused, changes)
	}
	// Output:
	// kind       held  refused changes
	// Admit      false false   false
	// Admit      false false   false
	// AdmitWith  false false   true
	// Hold       true  false   false
	// Refuse     false true    false
}

func ExampleIsReservedKey() {
	fmt.Println(admission.IsReservedKey("kueue.x-k8s.io/queue-name"))
	fmt.Println(admission.IsReservedKey("cluster-autoscaler.kubernetes.io/safe-to-evict"))
	// Output:
	// true
	// false
}
