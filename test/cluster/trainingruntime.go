package cluster

import "fmt"

// TrainingRuntime is a ClusterTrainingRuntime of so many nodes, each a pod of one CPU
// whose container nobody has to run. Annotations are those of the pods, as YAML in
// braces, for instance {a: b}.
func TrainingRuntime(name string, nodes int, annotations string) string {
	return fmt.Sprintf(`---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: %s
  labels: {trainer.kubeflow.org/framework: torch}
spec:
  mlPolicy: {numNodes: %d, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata:
            labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}
          spec:
            template:
              metadata: {annotations: %s}
              spec:
                containers:
                - name: node
                  image: example.com/train:1
                  resources: {requests: {cpu: "1"}}
`, name, nodes, annotations)
}
