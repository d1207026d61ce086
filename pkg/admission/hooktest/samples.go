package hooktest

import (
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Sample is a request with a name for messages.
type Sample struct {
	Name    string
	Request *admission.Request
}

// Samples returns the requests that hooks are asked about: the least and the
// most that a request can hold, and what lies between. They are new copies.
func Samples() []Sample {
	return []Sample{
		{"empty", &admission.Request{}},
		{"task before it is queued", taskRequest()},
		{"TrainJob with GPUs", trainJobRequest()},
		{"TrainJob held for a day", heldRequest()},
		{"plain Job without resources", jobRequest()},
		{"unusual text", unusualRequest()},
		{"many pod sets", wideRequest()},
	}
}

// taskRequest is what a workflow server knows before it creates the work.
func taskRequest() *admission.Request {
	return &admission.Request{
		TenantID: "team-a", DagID: "nightly", RunID: "scheduled__2026-03-02T00:00:00+00:00", TaskID: "features.build",
		TryNumber: 1, Operator: "PythonOperator", Image: "registry.example/runtime@sha256:6b1f", SourceMode: true,
		Resources: admission.Resources{Requests: admission.Quantity{CPU: "500m", Memory: "1Gi"}},
		Execution: admission.Execution{ServiceAccount: "default"},
	}
}

func trainJobRequest() *admission.Request {
	pod := admission.Resources{
		Requests: admission.Quantity{CPU: "8", Memory: "64Gi", EphemeralStorage: "100Gi"},
		Limits:   admission.Quantity{Memory: "64Gi"},
		Extended: map[string]string{"nvidia.com/gpu": "8"},
	}
	return &admission.Request{
		TenantID: "team-a", DagID: "dj-01jq8x3v5k2m9n7p4r6s8t0w1y", RunID: "0", TaskID: "node", TryNumber: 1,
		Image: "registry.example/train:2.4", Resources: pod,
		Execution: admission.Execution{
			ServiceAccount: "trainer", PriorityClassName: "batch",
			NodeSelector: map[string]string{"kubernetes.io/arch": "amd64"},
			Labels:       map[string]string{"example.com/team": "a"},
			Annotations:  map[string]string{"example.com/contact": "a@example.com"},
			Tolerations:  []admission.Toleration{{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"}},
		},
		ServiceAccountChosen: true,
		Namespace:            "team-a", LocalQueue: "training", ClusterQueue: "gpus",
		Workload:         admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload", Name: "trainjob-dj-01jq-s0-1f2e3", UID: "7b0c1f5e-1"},
		Job:              admission.Object{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "dj-01jq8x3v5k2m9n7p4r6s8t0w1y-s0", UID: "7b0c1f5e-0"},
		WorkloadPriority: 1000, WorkloadPriorityClass: "high",
		PodSets: []admission.PodSet{{
			Name: "node", Count: 4, Resources: pod, Images: []string{"registry.example/train:2.4"},
			Flavors: map[string]string{"cpu": "on-demand", "memory": "on-demand", "nvidia.com/gpu": "h100"},
		}},
		MaxRunTimeSeconds: 86400,
		CreationTime:      time.Date(2026, time.March, 1, 8, 0, 0, 0, time.UTC),
		OfferCount:        1,
	}
}

func heldRequest() *admission.Request {
	r := trainJobRequest()
	r.TryNumber = 3
	r.HeldSince = time.Date(2026, time.March, 1, 9, 0, 0, 123456789, time.UTC)
	r.OfferCount = 288
	r.Execution.Tolerations = append(r.Execution.Tolerations, admission.Toleration{
		Key: "example.com/spot", Value: "true", Effect: "NoExecute", TolerationSeconds: new(int64(0)),
	})
	return r
}

func jobRequest() *admission.Request {
	return &admission.Request{
		TenantID: "default", DagID: "pi", RunID: "0d6a", TaskID: "main", TryNumber: 1, Image: "perl",
		Execution: admission.Execution{ServiceAccount: "default"},
		Namespace: "default", LocalQueue: "default", ClusterQueue: "default",
		Workload: admission.Object{Name: "job-pi-0d6a", UID: "0d6b"},
		Job:      admission.Object{APIVersion: "batch/v1", Kind: "Job", Name: "pi", UID: "0d6a"},
		PodSets:  []admission.PodSet{{Name: "main", Count: 1, Images: []string{"perl"}}},
	}
}

// unusualRequest is legal all the same.
func unusualRequest() *admission.Request {
	return &admission.Request{
		TenantID: "Ünïcode ☃ \u2028", DagID: "a\"b\\c", RunID: "<script>&", TaskID: "\t\n", TryNumber: 1 << 30,
		Resources:        admission.Resources{Requests: admission.Quantity{CPU: "1e-3", Memory: "0.5Ei"}},
		Execution:        admission.Execution{Annotations: map[string]string{"example.com/empty": ""}},
		WorkloadPriority: -1 << 31,
	}
}

func wideRequest() *admission.Request {
	r := trainJobRequest()
	for i := range 7 {
		set := r.PodSets[0]
		set.Name += string(rune('a' + i))
		set.Count = 1000
		r.PodSets = append(r.PodSets, set)
	}
	return r.Clone()
}
