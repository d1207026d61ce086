package runner

import (
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// BenchmarkAsk shows what asking adds to a hook in process. The difference to
// "direct" is the overhead; "clone" is the part of it that copies the request.
//
// The target, 2 µs and 5 allocations at most, is for the small request. A
// larger one costs its deep copy on top, which grows with its maps and pod
// sets: compare "usual/ask" with "usual/clone".
func BenchmarkAsk(b *testing.B) {
	hook := answers(admission.Hold("freeze"))
	labels := map[string]string{"example.com/team": "a", "example.com/cost-center": "4711"}
	requests := map[string]*admission.Request{
		"small": {TenantID: "team-a", TaskID: "node", TryNumber: 1},
		"usual": {
			TenantID: "team-a", TaskID: "node", TryNumber: 1,
			Execution: admission.Execution{Labels: labels, NodeSelector: labels},
			PodSets: []admission.PodSet{{
				Name: "node", Count: 4, Images: []string{"registry.example/train:1"},
				Resources: admission.Resources{Extended: map[string]string{"nvidia.com/gpu": "8"}},
				Flavors:   map[string]string{"cpu": "on-demand", "nvidia.com/gpu": "a100"},
			}},
		},
	}
	for name, req := range requests {
		b.Run(name+"/ask", func(b *testing.B) {
			r, err := New(hook, Config{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r.Ask(b.Context(), req)
			}
		})
		b.Run(name+"/direct", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = hook.Admit(b.Context(), req)
			}
		})
		b.Run(name+"/clone", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req.Clone()
			}
		})
	}
}
