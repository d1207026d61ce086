package cluster

import (
	"fmt"
	"os"
	"strings"
)

// Annotations on a pod that script its life on a fake node. Their values are Go
// durations such as "10s". A pod without any runs until it is deleted.
const (
	// RunAfter is the time from being scheduled to running, 100ms if unset.
	RunAfter = "cluster.test/run-after"
	// CompleteAfter makes the pod succeed this long after it began to run.
	CompleteAfter = "cluster.test/complete-after"
	// FailAfter makes the pod fail, with exit code 1, this long after it began to run.
	FailAfter = "cluster.test/fail-after"
	// TerminateAfter is how long a deleted pod goes on running, 1s if unset.
	TerminateAfter = "cluster.test/terminate-after"
)

// ending is how a pod leaves the phase Running.
type ending struct {
	stage      string
	annotation string
	phase      string
	reason     string
	condition  string
	exitCode   int
}

// writeStages tells kwok how nodes and pods live in this cluster.
func (c *Cluster) writeStages() error {
	nodes, err := os.ReadFile(c.tools.manifest("node-stages.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("stages.yaml"), []byte(podStages(c.config.Programs)+"---\n"+string(nodes)), 0o644)
}

// podStages renders kwok's stages of a pod's life. Pods whose images are all
// programs are not kwok's.
func podStages(programs map[string]string) string {
	podStage := func(name, selector, delay, next string) string {
		return podStage(name, notPrograms(programs)+selector, delay, next)
	}
	selector, status := podRun()
	stages := []string{podStage("pod-run", selector, delay(100, RunAfter), status)}
	for _, e := range []ending{
		{"pod-complete", CompleteAfter, "Succeeded", "Completed", "PodCompleted", 0},
		{"pod-fail", FailAfter, "Failed", "Error", "PodFailed", 1},
	} {
		selector := match("deletionTimestamp", "DoesNotExist") + phases("Running") +
			fmt.Sprintf("    - {key: '.metadata.annotations[%q]', operator: Exists}\n", e.annotation)
		stages = append(stages, podStage(e.stage, selector, delay(1000, e.annotation), e.status()))
	}
	// As a kubelet does it: a deleted pod first ends, then goes.
	term := ending{"pod-terminate", TerminateAfter, "Failed", "Error", "PodFailed", 143}
	stages = append(stages,
		podStage(term.stage, match("deletionTimestamp", "Exists")+phases("Pending", "Running"),
			delay(1000, term.annotation), term.status()),
		podStage("pod-gone", match("deletionTimestamp", "Exists")+phases("Succeeded", "Failed"),
			"    durationMilliseconds: 50\n", "    delete: true\n"))
	return strings.Join(stages, "---\n")
}

func podRun() (selector, status string) {
	selector = match("deletionTimestamp", "DoesNotExist") + phases("Pending") +
		"    - {key: '.spec.nodeName', operator: Exists}\n"
	status = `    statusTemplate: |
      {{ $now := Now }}
` + conditions("True", "") + `      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        ready: true
        started: true
        restartCount: 0
        state: {running: {startedAt: {{ $now | Quote }}}}
      {{ end }}
      initContainerStatuses:
      {{ range .spec.initContainers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        ready: true
        restartCount: 0
        {{ if eq .restartPolicy "Always" }}
        started: true
        state: {running: {startedAt: {{ $now | Quote }}}}
        {{ else }}
        state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
        {{ end }}
      {{ end }}
      {{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) (or .metadata.uid "") (or .metadata.name "") (or .metadata.namespace "") }}
      podIP: {{ index . 0 | Quote }}
      podIPs:
      {{ range . }}
      - ip: {{ . | Quote }}
      {{ end }}
      {{ end }}
      phase: Running
      startTime: {{ $now | Quote }}
`
	return selector, status
}

// status is the template of a pod that has ended.
func (e ending) status() string {
	return `    statusTemplate: |
      {{ $now := Now }}
` + conditions("False", e.condition) + fmt.Sprintf(`      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        ready: false
        started: false
        restartCount: 0
        state: {terminated: {exitCode: %d, reason: %s, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
      {{ end }}
      phase: %s
`, e.exitCode, e.reason, e.phase)
}

// conditions renders the conditions of a pod that is ready or, with a reason, not.
func conditions(ready, reason string) string {
	if reason != "" {
		reason = ", reason: " + reason
	}
	const form = "      - {type: %s, status: %q, lastTransitionTime: {{ $now | Quote }}%s}\n"
	return "      conditions:\n" + fmt.Sprintf(form, "Initialized", "True", "") +
		fmt.Sprintf(form, "Ready", ready, reason) + fmt.Sprintf(form, "ContainersReady", ready, reason)
}

func match(field, operator string) string {
	return fmt.Sprintf("    - {key: '.metadata.%s', operator: %s}\n", field, operator)
}

func phases(names ...string) string {
	return fmt.Sprintf("    - {key: '.status.phase', operator: In, values: [%s]}\n", strings.Join(names, ", "))
}

func delay(milliseconds int, annotation string) string {
	return fmt.Sprintf("    durationMilliseconds: %d\n    durationFrom: {expressionFrom: '.metadata.annotations[%q]'}\n",
		milliseconds, annotation)
}

func podStage(name, selector, delay, next string) string {
	return fmt.Sprintf(`apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: %s}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
%s  delay:
%s  next:
%s`, name, selector, delay, next)
}
