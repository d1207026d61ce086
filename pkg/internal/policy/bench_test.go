package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// trainJob is a request as the gate makes them.
func trainJob() *admission.Request {
	pod := admission.Resources{
		Requests: admission.Quantity{CPU: "8", Memory: "64Gi", EphemeralStorage: "100Gi"},
		Limits:   admission.Quantity{Memory: "64Gi"},
		Extended: map[string]string{"nvidia.com/gpu": "8"},
	}
	images := []string{"registry.example.com/init" + digest, "registry.example.com/train" + digest}
	return &admission.Request{
		TenantID: "research", DagID: "dj-01jq8x3v5k2m9n7p4r6s8t0w1y", RunID: "0", TaskID: "node", TryNumber: 1,
		Image: images[1], Resources: pod,
		Execution: admission.Execution{
			ServiceAccount: "trainer-research", PriorityClassName: "batch",
			Labels:      map[string]string{"example.com/team": "a", "example.com/cost-center": "cc-1001", "example.com/data-region": "eu"},
			Annotations: map[string]string{"example.com/contact": "a@example.com"},
			Tolerations: []admission.Toleration{{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"}},
		},
		ServiceAccountChosen: true,
		Namespace:            "research", LocalQueue: "training", ClusterQueue: "gpus",
		Workload:         admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload", Name: "trainjob-dj-01jq-s0-1f2e3", UID: "7b0c1f5e-1"},
		Job:              admission.Object{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "dj-01jq8x3v5k2m9n7p4r6s8t0w1y-s0", UID: "7b0c1f5e-0"},
		WorkloadPriority: 1000, WorkloadPriorityClass: "normal",
		PodSets: []admission.PodSet{
			{Name: "launcher", Count: 1, Images: images[:1], Flavors: map[string]string{"cpu": "on-demand"}},
			{Name: "node", Count: 4, Resources: pod, Images: images, Flavors: map[string]string{"cpu": "on-demand", "nvidia.com/gpu": "a100-west"}},
		},
		MaxRunTimeSeconds: 86400, CreationTime: noon.Add(-time.Hour), OfferCount: 1,
	}
}

var noon = time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)

// manyRules repeats the rules of the documentation under other names until
// there are n.
func manyRules(tb testing.TB, n int) *Policy {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(examplesDir, "*.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	var all []map[string]any
	for len(all) < n {
		before := len(all)
		for _, file := range files {
			if strings.HasSuffix(file, ".test.yaml") {
				continue
			}
			var doc struct{ Rules []map[string]any }
			if err := yaml.Unmarshal(mustRead(tb, file), &doc); err != nil {
				tb.Fatal(err)
			}
			for _, r := range doc.Rules {
				r["name"] = fmt.Sprintf("r%d", len(all))
				all = append(all, r)
			}
		}
		if len(all) == before {
			tb.Fatal("the documentation has no rules")
		}
	}
	data, err := yaml.Marshal(map[string]any{"rules": all[:n]})
	if err != nil {
		tb.Fatal(err)
	}
	return mustLoad(tb, "many.yaml", data)
}

// BenchmarkDecide asks 100 rules: those of the documentation, some of which
// apply. The goal is 100 µs for all and 20 allocations for each. Half of the
// decisions take less than median-ns, however busy the machine is meanwhile.
func BenchmarkDecide(b *testing.B) {
	p := manyRules(b, 100)
	report := func(b *testing.B, req *admission.Request) {
		b.Helper()
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			if _, err := p.Decide(req, noon); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2]), "median-ns")
		allocs := testing.AllocsPerRun(10, func() { _, _ = p.Decide(req, noon) })
		b.ReportMetric(allocs/float64(len(p.rules)), "allocs/rule")
	}
	b.Run("usual", func(b *testing.B) { report(b, trainJob()) })
	b.Run("counted", func(b *testing.B) {
		req := trainJob()
		req.Execution.Annotations["example.com/large"] = strings.Repeat("x", usualAnnotation+1)
		report(b, req)
	})
}

// TestAllocations is the part of the goal that does not depend on the machine.
func TestAllocations(t *testing.T) {
	p, req := manyRules(t, 100), trainJob()
	allocs := testing.AllocsPerRun(10, func() {
		if _, err := p.Decide(req, noon); err != nil {
			t.Error(err)
		}
	})
	if perRule := allocs / 100; perRule > 20 {
		t.Errorf("%v allocations for each rule", perRule)
	}
	for _, r := range p.rules {
		for _, e := range []*expression{r.when, r.unless} {
			if e != nil && e.constant == nil && !e.proven {
				t.Errorf("rule %s is counted", r.name)
			}
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		manyRules(b, 100)
	}
}
