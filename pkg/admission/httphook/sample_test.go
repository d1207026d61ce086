package httphook

import (
	"encoding/json"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// sample is a request of the usual size.
func sample() *admission.Request {
	labels := map[string]string{"example.com/team": "a", "example.com/cost-center": "4711"}
	pods := admission.Resources{
		Requests: admission.Quantity{CPU: "8", Memory: "64Gi"},
		Extended: map[string]string{"nvidia.com/gpu": "8"},
	}
	return &admission.Request{
		TenantID: "team-a", DagID: "dj-01jq", RunID: "0", TaskID: "node", TryNumber: 2,
		Image: "registry.example/train@sha256:0f", Resources: pods,
		Execution: admission.Execution{ServiceAccount: "trainer", Labels: labels, NodeSelector: labels},
		Namespace: "team-a", LocalQueue: "training", ClusterQueue: "gpus",
		PodSets: []admission.PodSet{{
			Name: "node", Count: 4, Resources: pods, Images: []string{"registry.example/train@sha256:0f"},
			Flavors: map[string]string{"cpu": "on-demand", "nvidia.com/gpu": "a100"},
		}},
	}
}

func body(b *testing.B, req *admission.Request) []byte {
	b.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	return body
}
