package podrunner

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

const (
	firstBackoff = time.Second
	maxBackoff   = 10 * time.Second
	// settled is how long a container runs until its next failure is a first one.
	settled = time.Minute
	// lastWords is how long a process has at least between SIGTERM and SIGKILL.
	lastWords = 2 * time.Second
)

// kind tells when a container runs.
type kind int

const (
	regular     kind = iota
	initializer      // runs to its end before the next one starts
	sidecar          // an init container that goes on running
)

// container is what a worker knows of one container.
type container struct {
	spec *corev1.Container
	kind kind

	proc           *process // nil if it does not run
	started, ready bool
	restarts       int32
	id             string
	state, last    corev1.ContainerState

	backoff   time.Duration
	notBefore time.Time // of the next start

	command    command // of the process that runs
	stopProbes func()
	ending     bool // the process was asked to end
}

// newContainers lists the containers of a pod in the order in which they start.
func newContainers(pod *corev1.Pod) []*container {
	var all []*container
	add := func(spec *corev1.Container, k kind, statuses []corev1.ContainerStatus) {
		reason := "ContainerCreating"
		if len(pod.Spec.InitContainers) > 0 && k == regular {
			reason = "PodInitializing"
		}
		c := &container{spec: spec, kind: k, state: waiting(reason, "")}
		if status, ok := podutil.GetContainerStatus(statuses, spec.Name); ok {
			c.resume(status)
		}
		all = append(all, c)
	}
	for i := range pod.Spec.InitContainers {
		k := initializer
		if podutil.IsRestartableInitContainer(&pod.Spec.InitContainers[i]) {
			k = sidecar
		}
		add(&pod.Spec.InitContainers[i], k, pod.Status.InitContainerStatuses)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], regular, pod.Status.ContainerStatuses)
	}
	return all
}

// resume takes over what an earlier runner has reported. A process that ran then
// has died with that runner.
func (c *container) resume(status corev1.ContainerStatus) {
	c.restarts, c.id, c.last = status.RestartCount, status.ContainerID, status.LastTerminationState
	switch {
	case status.State.Terminated != nil:
		c.state = status.State
	case status.State.Running != nil:
		c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown",
			Message:   "The process died with the runner that started it.",
			StartedAt: status.State.Running.StartedAt, FinishedAt: metav1.Now(), ContainerID: status.ContainerID,
		}}
	}
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// exit returns how the container last ended, nil if it has not, or runs again.
func (c *container) exit() *corev1.ContainerStateTerminated {
	switch {
	case c.proc != nil:
		return nil
	case c.state.Terminated != nil:
		return c.state.Terminated
	}
	return c.last.Terminated
}

// restarted reports whether the container, which has ended, is to run again.
func (c *container) restarted(pod *corev1.PodSpec, exitCode int32) bool {
	if c.kind == initializer && exitCode == 0 {
		return false
	}
	return podutil.ContainerShouldRestart(*c.spec, *pod, exitCode)
}

// over reports whether the container has ended for good.
func (c *container) over(pod *corev1.PodSpec) bool {
	exit := c.exit()
	return exit != nil && !c.restarted(pod, exit.ExitCode)
}

// begin notes that the container runs now.
func (c *container) begin(p *process, id string, now time.Time) {
	if c.exit() != nil {
		c.restarts++
		c.last = corev1.ContainerState{Terminated: c.exit()}
	}
	c.proc, c.id, c.ending = p, id, false
	c.started = c.spec.StartupProbe == nil
	c.ready = c.started && c.spec.ReadinessProbe == nil && c.kind != initializer
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}}
}

// end notes that the process has ended.
func (c *container) end(exitCode int32, message string, now time.Time) {
	begun := c.state.Running.StartedAt
	reason := "Completed"
	if exitCode != 0 {
		reason = "Error"
	}
	c.proc, c.started = nil, false
	c.ready = c.kind == initializer && exitCode == 0
	c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: exitCode, Reason: reason, Message: message,
		StartedAt: begun, FinishedAt: metav1.NewTime(now), ContainerID: c.id,
	}}
	c.backoff = min(max(firstBackoff, 2*c.backoff), maxBackoff)
	if now.Sub(begun.Time) >= settled {
		c.backoff = firstBackoff
	}
	c.notBefore = now.Add(c.backoff)
}

// backOff says that the container, which has ended, waits for its next start.
func (c *container) backOff() {
	if c.state.Terminated != nil {
		c.last = c.state
		c.state = waiting("CrashLoopBackOff", "back-off "+c.backoff.String()+" restarting container "+c.spec.Name)
	}
}

// status is what is reported of the container.
func (c *container) status() corev1.ContainerStatus {
	started := c.started
	status := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, ContainerID: c.id,
		State: c.state, LastTerminationState: c.last,
		Started: &started, Ready: c.ready, RestartCount: c.restarts,
	}
	return status
}
