package main

import "github.com/dispatch-admission/dispatch-admission/test/cluster"

const (
	// ours is a TrainJob as dispatch names it: dj-<ULID>-s<start>.
	ours = "dj-01jdem00000000000000000000-s1"
	// theirs is anybody's.
	theirs = "somebody-elses"
	// urgent has a higher priority and needs all of the quota.
	urgent = "urgent"
)

// queues is what a cluster operator has before the chart: a quota of four CPUs.
var queues = `apiVersion: v1
kind: Namespace
metadata: {name: research}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: training}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - name: default
      resources: [{name: cpu, nominalQuota: "4"}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: research, namespace: research}
spec: {clusterQueue: training}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 1000
` + cluster.TrainingRuntime("torch", 1, "{}")

// trainJob is a TrainJob of so many nodes of one CPU each.
const trainJob = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: %s
  namespace: research
  labels: {kueue.x-k8s.io/queue-name: research%s}
spec:
  runtimeRef: {name: torch}
  trainer: {numNodes: %d}
`
