package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"

	"sigs.k8s.io/yaml"
)

// Names below "system:" that the audit log leaves out.
const (
	kwokUser      = "system:kwok"
	podRunnerUser = "system:pod-runner"
)

// auditPolicy keeps what tests count and read: every request of service accounts
// and of users outside "system:", and writes of the workload APIs in full.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - group: kueue.x-k8s.io
  - group: trainer.kubeflow.org
  - group: jobset.x-k8s.io
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:anonymous", "` + kwokUser + `",
    "` + podRunnerUser + `", "` + nodeUser + `", "` + proxyUser + `", "` + dnsUser + `"]
- level: Metadata
`

// KueueConfig changes how Kueue is configured. The zero value keeps the default.
type KueueConfig struct {
	// WaitForPodsReady replaces the default, which is a timeout of five minutes
	// and a requeue after one second.
	WaitForPodsReady *WaitForPodsReady
	// FeatureGates are set beside the default ones.
	FeatureGates map[string]bool
	// Edit, if not nil, changes the configuration (config.kueue.x-k8s.io/v1beta2)
	// last, as the nested maps that YAML makes of it.
	Edit func(config map[string]any)
}

// WaitForPodsReady is what Kueue calls waitForPodsReady.
type WaitForPodsReady struct {
	// Disabled turns it off; the other fields are ignored then.
	Disabled bool
	// Timeout, a Go duration such as "10s", is how long an admitted Workload's
	// pods may take to be ready before it is evicted.
	Timeout string
	// RecoveryTimeout is the same for a pod that stops being ready; empty means
	// Kueue's default.
	RecoveryTimeout string
	// BlockAdmission admits one Workload after the other.
	BlockAdmission bool
	// BackoffBaseSeconds and BackoffMaxSeconds delay the requeue; 0 means at once.
	BackoffBaseSeconds, BackoffMaxSeconds int
	// BackoffLimitCount deactivates a Workload after so many requeues; nil means never.
	BackoffLimitCount *int
}

var defaultWaitForPodsReady = WaitForPodsReady{Timeout: "5m", BackoffBaseSeconds: 1, BackoffMaxSeconds: 10}

// config renders the settings as Kueue reads them; nil if they are disabled.
func (w WaitForPodsReady) config() map[string]any {
	if w.Disabled {
		return nil
	}
	requeuing := map[string]any{
		"timestamp":          "Eviction",
		"backoffBaseSeconds": w.BackoffBaseSeconds,
		"backoffMaxSeconds":  w.BackoffMaxSeconds,
	}
	if w.BackoffLimitCount != nil {
		requeuing["backoffLimitCount"] = *w.BackoffLimitCount
	}
	config := map[string]any{
		"timeout":           w.Timeout,
		"blockAdmission":    w.BlockAdmission,
		"requeuingStrategy": requeuing,
	}
	if w.RecoveryTimeout != "" {
		config["recoveryTimeout"] = w.RecoveryTimeout
	}
	return config
}

func (c *Cluster) kueueConfig() map[string]any {
	wait := defaultWaitForPodsReady
	if c.config.Kueue.WaitForPodsReady != nil {
		wait = *c.config.Kueue.WaitForPodsReady
	}
	gates := map[string]bool{"VisibilityOnDemand": false} // it would need an APIService
	maps.Copy(gates, c.config.Kueue.FeatureGates)
	config := c.managerConfig("config.kueue.x-k8s.io/v1beta2", portKueue, portKueueProbe)
	config["leaderElection"] = map[string]any{"leaderElect": false, "resourceName": "c1f6bfd2.kueue.x-k8s.io"}
	config["clientConnection"] = map[string]any{"qps": 300, "burst": 500} // as shipped
	config["featureGates"] = gates
	config["controller"] = map[string]any{"groupKindConcurrency": map[string]any{ // as shipped
		"Job.batch": 5, "Pod": 5, "Workload.kueue.x-k8s.io": 10, "LocalQueue.kueue.x-k8s.io": 5,
		"Cohort.kueue.x-k8s.io": 1, "ClusterQueue.kueue.x-k8s.io": 5, "ResourceFlavor.kueue.x-k8s.io": 1,
	}}
	config["integrations"] = map[string]any{"frameworks": []any{
		"batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob",
		"pod", "deployment", "statefulset",
	}}
	if w := wait.config(); w != nil {
		config["waitForPodsReady"] = w
	}
	if c.config.Kueue.Edit != nil {
		c.config.Kueue.Edit(config)
	}
	return config
}

func (c *Cluster) jobSetConfig() map[string]any {
	config := c.managerConfig("config.jobset.x-k8s.io/v1alpha1", portJobSet, portJobSetProbe)
	config["internalCertManagement"] = map[string]any{"enable": false}
	return config
}

func (c *Cluster) trainerConfig() map[string]any {
	config := c.managerConfig("config.trainer.kubeflow.org/v1alpha1", portTrainer, portTrainerProbe)
	config["certManagement"] = map[string]any{"enable": false}
	config["clientConnection"] = map[string]any{"qps": 50, "burst": 100} // as shipped
	config["controller"] = map[string]any{"groupKindConcurrency": map[string]any{
		"TrainJob.trainer.kubeflow.org": 5, "TrainingRuntime.trainer.kubeflow.org": 1,
		"ClusterTrainingRuntime.trainer.kubeflow.org": 1,
	}}
	config["statusServer"] = map[string]any{"port": c.ports.get(portTrainerStatus), "qps": 5, "burst": 10}
	delete(config["webhook"].(map[string]any), "certDir") // a field it does not know
	return config
}

// managerConfig is what the configurations of all three managers share.
func (c *Cluster) managerConfig(apiVersion, webhookPort, probePort string) map[string]any {
	return map[string]any{
		"apiVersion":     apiVersion,
		"kind":           "Configuration",
		"health":         map[string]any{"healthProbeBindAddress": c.ports.address(probePort)},
		"metrics":        map[string]any{"bindAddress": "0"},
		"leaderElection": map[string]any{"leaderElect": false},
		"webhook": map[string]any{
			"host": loopback, "port": c.ports.get(webhookPort), "certDir": c.pki.path("webhook"),
		},
	}
}

func writeYAML(path string, value any) error {
	data, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, data, 0o644)
}

// What placement tests can refer to on the fake nodes.
const (
	// PoolLabel is "main" on two nodes and "reserved" on the third.
	PoolLabel = "cluster.test/pool"
	// ReservedTaint, with the value "true", keeps pods off the reserved node.
	ReservedTaint = "cluster.test/reserved"

	fakeNode = "kwok.x-k8s.io/node"
)

var nodeNames = []string{"node-0", "node-1", "node-2"}

// fakeNodeObject renders the i-th node; the last one is reserved.
func fakeNodeObject(i int) ([]byte, error) {
	pool, taints := "main", []any{}
	if i == len(nodeNames)-1 {
		pool = "reserved"
		taints = append(taints, map[string]any{"key": ReservedTaint, "value": "true", "effect": "NoSchedule"})
	}
	resources := map[string]any{"cpu": "32", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": "8"}
	return json.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata": map[string]any{
			"name":        nodeNames[i],
			"annotations": map[string]any{fakeNode: "fake", "node.alpha.kubernetes.io/ttl": "0"},
			"labels": map[string]any{
				"kubernetes.io/hostname": nodeNames[i], "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
				PoolLabel: pool,
			},
		},
		"spec":   map[string]any{"taints": taints},
		"status": map[string]any{"allocatable": resources, "capacity": resources},
	})
}
