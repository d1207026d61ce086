package podrunner

import (
	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubeletstatus "k8s.io/kubernetes/pkg/kubelet/status"
)

// newStatus returns the status of a pod after old, from what is known of its
// containers. Final says that none of them runs or will run any more.
func newStatus(pod *corev1.Pod, old corev1.PodStatus, containers []*container, initialized, final bool) corev1.PodStatus {
	status := *old.DeepCopy()
	status.ObservedGeneration = pod.Generation
	status.InitContainerStatuses, status.ContainerStatuses = nil, nil
	for _, c := range containers {
		if c.kind == regular {
			status.ContainerStatuses = append(status.ContainerStatuses, c.status())
		} else {
			status.InitContainerStatuses = append(status.InitContainerStatuses, c.status())
		}
	}
	status.Phase = phase(&pod.Spec, containers, initialized, final)
	// The kubelet's own rules say what the conditions are.
	all := append(append([]corev1.ContainerStatus{}, status.InitContainerStatuses...), status.ContainerStatuses...)
	for _, condition := range []corev1.PodCondition{
		{
			Type: corev1.PodReadyToStartContainers, Status: truth(!final && status.PodIP != ""),
			ObservedGeneration: podutil.CalculatePodConditionObservedGeneration(&old, pod.Generation, corev1.PodReadyToStartContainers),
		},
		kubeletstatus.GeneratePodInitializedCondition(pod, &old, all, status.Phase),
		kubeletstatus.GenerateContainersReadyCondition(pod, &old, all, status.Phase),
		kubeletstatus.GeneratePodReadyCondition(pod, &old, status.Conditions, all, status.Phase),
	} {
		podutil.UpdatePodCondition(&status, &condition)
	}
	return status
}

func truth(b bool) corev1.ConditionStatus {
	if b {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// phase sums the containers up. Sidecars do not count: how they end says nothing
// of the pod.
func phase(spec *corev1.PodSpec, containers []*container, initialized, final bool) corev1.PodPhase {
	begun, succeeded, failed, regulars := initialized, 0, 0, 0
	for _, c := range containers {
		switch exit := c.exit(); {
		case c.kind == sidecar:
			continue
		case c.kind == initializer:
			if exit != nil && exit.ExitCode != 0 && c.over(spec) {
				failed++
			}
			continue
		case exit != nil && exit.ExitCode == 0:
			succeeded++
		case exit != nil:
			failed++
		}
		regulars++
	}
	switch {
	case final && failed == 0 && succeeded == regulars:
		return corev1.PodSucceeded
	case final:
		return corev1.PodFailed
	case begun && !neverRan(containers):
		return corev1.PodRunning
	}
	return corev1.PodPending
}

// neverRan reports whether a regular container has not run yet.
func neverRan(containers []*container) bool {
	for _, c := range containers {
		if c.kind == regular && c.proc == nil && c.exit() == nil {
			return true
		}
	}
	return false
}
