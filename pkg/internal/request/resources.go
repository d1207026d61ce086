package request

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// podResources are the effective requests and limits of one pod, as Kubernetes
// schedules it and Kueue counts it. The arithmetic is that of
// k8s.io/component-helpers/resource, which would be a module of its own for two
// functions.
func podResources(spec *corev1.PodSpec) admission.Resources {
	requests, limits := total(spec, requested), total(spec, limited)
	for name, q := range spec.Overhead {
		add(requests, name, q)
		// A pod without a limit has none with overhead, either.
		if limit, ok := limits[name]; ok && !limit.IsZero() {
			add(limits, name, q)
		}
	}
	return admission.Resources{
		Requests: quantity(requests), Limits: quantity(limits), Extended: extended(requests),
	}
}

// pick is one side of the resources of a container or a pod.
type pick func(*corev1.ResourceRequirements) corev1.ResourceList

func limited(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits }

// requested takes the limit for a request that is missing, as the API server does
// for pods and Kueue for templates.
func requested(r *corev1.ResourceRequirements) corev1.ResourceList {
	all := corev1.ResourceList{}
	maps.Copy(all, r.Limits)
	maps.Copy(all, r.Requests)
	return all
}

// total is what a pod takes at its peak. Containers run together, and sidecars,
// which are init containers that restart, run beside all that start after them.
// What is set for the pod as a whole counts instead of the sum.
func total(spec *corev1.PodSpec, side pick) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for i := range spec.Containers {
		addAll(sum, side(&spec.Containers[i].Resources))
	}
	sidecars, peak := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.InitContainers {
		own := side(&spec.InitContainers[i].Resources)
		if isSidecar(&spec.InitContainers[i]) {
			addAll(sum, own)
			addAll(sidecars, own)
			continue
		}
		starting := corev1.ResourceList{}
		addAll(starting, own)
		addAll(starting, sidecars)
		raise(peak, starting)
	}
	raise(sum, peak)
	if spec.Resources != nil {
		for name, q := range side(spec.Resources) {
			if isPodLevel(name) {
				sum[name] = q.DeepCopy()
			}
		}
	}
	return sum
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// isPodLevel tells what may be set for a pod as a whole; the rest is ignored there.
func isPodLevel(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func addAll(to, from corev1.ResourceList) {
	for name, q := range from {
		add(to, name, q)
	}
}

// add never changes a quantity in place that it did not copy: a large one holds a
// pointer, and the object it came from is shared.
func add(to corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	sum, ok := to[name]
	if !ok {
		to[name] = q.DeepCopy()
		return
	}
	sum.Add(q)
	to[name] = sum
}

func raise(to, from corev1.ResourceList) {
	for name, q := range from {
		if old, ok := to[name]; !ok || q.Cmp(old) > 0 {
			to[name] = q.DeepCopy()
		}
	}
}

func quantity(list corev1.ResourceList) admission.Quantity {
	return admission.Quantity{
		CPU:              text(list, corev1.ResourceCPU),
		Memory:           text(list, corev1.ResourceMemory),
		EphemeralStorage: text(list, corev1.ResourceEphemeralStorage),
	}
}

func text(list corev1.ResourceList, name corev1.ResourceName) string {
	q, ok := list[name]
	if !ok {
		return ""
	}
	return q.String()
}

// extended are the requests that have no field of their own.
func extended(list corev1.ResourceList) map[string]string {
	all := map[string]string{}
	for name := range list {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		default:
			all[string(name)] = text(list, name)
		}
	}
	return all
}
