package request

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// container has requests and limits; nil for none.
func container(requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func sidecar(requests, limits corev1.ResourceList) corev1.Container {
	c := container(requests, limits)
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

func TestPodResources(t *testing.T) {
	cpu := func(q string) corev1.ResourceList { return list("cpu", q) }
	requests := func(q string) admission.Resources {
		return admission.Resources{Requests: admission.Quantity{CPU: q}}
	}
	both := func(request, limit string) admission.Resources {
		return admission.Resources{Requests: admission.Quantity{CPU: request}, Limits: admission.Quantity{CPU: limit}}
	}
	never := container(cpu("5"), nil)
	never.RestartPolicy = new(corev1.ContainerRestartPolicy("Never"))
	cases := map[string]struct {
		reason string
		spec   corev1.PodSpec
		want   admission.Resources
	}{
		"Nothing": {reason: "what is not set is empty"},
		"Zero": {
			reason: "zero is set", spec: corev1.PodSpec{Containers: []corev1.Container{container(cpu("0"), nil)}}, want: requests("0"),
		},
		"Sum": {
			reason: "containers run together", want: both("1500m", "3"),
			spec: corev1.PodSpec{Containers: []corev1.Container{container(cpu("1"), cpu("2")), container(cpu("500m"), cpu("1"))}},
		},
		"MissingRequest": {
			reason: "a container that only has a limit requests it", want: both("3", "2"),
			spec: corev1.PodSpec{Containers: []corev1.Container{container(nil, cpu("2")), container(cpu("1"), nil)}},
		},
		"InitBelow": {
			reason: "init containers run before the others", want: requests("2"),
			spec: corev1.PodSpec{InitContainers: []corev1.Container{container(cpu("1"), nil)}, Containers: []corev1.Container{container(cpu("2"), nil)}},
		},
		"InitAbove": {
			reason: "one after the other, so the largest counts", want: both("3", "4"),
			spec: corev1.PodSpec{
				InitContainers: []corev1.Container{container(cpu("3"), cpu("3")), container(cpu("1"), cpu("4"))},
				Containers:     []corev1.Container{container(cpu("2"), cpu("2"))},
			},
		},
		"Sidecar": {
			reason: "runs beside the containers", want: both("3", "5"),
			spec: corev1.PodSpec{InitContainers: []corev1.Container{sidecar(cpu("1"), cpu("2"))}, Containers: []corev1.Container{container(cpu("2"), cpu("3"))}},
		},
		"LargeSidecar": {
			reason: "its own start takes no more than it does", want: requests("6"),
			spec: corev1.PodSpec{InitContainers: []corev1.Container{sidecar(cpu("5"), nil)}, Containers: []corev1.Container{container(cpu("1"), nil)}},
		},
		"SidecarBeforeInit": {
			reason: "and beside the init containers after it", want: requests("6"),
			spec: corev1.PodSpec{
				InitContainers: []corev1.Container{sidecar(cpu("1"), nil), container(cpu("5"), nil)},
				Containers:     []corev1.Container{container(cpu("2"), nil)},
			},
		},
		"SidecarAfterInit": {
			reason: "but not beside those before it", want: requests("5"),
			spec: corev1.PodSpec{
				InitContainers: []corev1.Container{container(cpu("5"), nil), sidecar(cpu("1"), nil)},
				Containers:     []corev1.Container{container(cpu("2"), nil)},
			},
		},
		"TwoSidecars": {
			reason: "they add up", want: requests("9"),
			spec: corev1.PodSpec{
				InitContainers: []corev1.Container{sidecar(cpu("1"), nil), sidecar(cpu("3"), nil), container(cpu("5"), nil)},
				Containers:     []corev1.Container{container(cpu("2"), nil)},
			},
		},
		"NoSidecar": {
			reason: "only restarting always makes one", want: requests("5"),
			spec: corev1.PodSpec{InitContainers: []corev1.Container{never}, Containers: []corev1.Container{container(cpu("2"), nil)}},
		},
		"Overhead": {
			reason: "the sandbox takes its share, of a limit only where there is one",
			spec: corev1.PodSpec{
				Containers: []corev1.Container{container(list("cpu", "1", "memory", "1Gi"), list("memory", "2Gi"))},
				Overhead:   list("cpu", "250m", "memory", "1Gi"),
			},
			want: admission.Resources{Requests: admission.Quantity{CPU: "1250m", Memory: "2Gi"}, Limits: admission.Quantity{Memory: "3Gi"}},
		},
		"OverheadOfZeroLimit": {
			reason: "a limit of zero stays", want: both("3", "0"),
			spec: corev1.PodSpec{Containers: []corev1.Container{container(cpu("1"), cpu("0"))}, Overhead: cpu("2")},
		},
		"PodLevel": {
			reason: "what is set for the whole pod counts, with overhead", want: both("9", "11"),
			spec: corev1.PodSpec{
				Containers: []corev1.Container{container(cpu("1"), cpu("2"))}, Overhead: cpu("1"),
				Resources: &corev1.ResourceRequirements{Requests: cpu("8"), Limits: cpu("10")},
			},
		},
		"PodLevelLimit": {
			reason: "its limit stands for a missing request", want: both("10", "10"),
			spec: corev1.PodSpec{
				Containers: []corev1.Container{container(cpu("1"), nil)},
				Resources:  &corev1.ResourceRequirements{Limits: cpu("10")},
			},
		},
		"PodLevelOthers": {
			reason: "only CPU, memory and huge pages can be set for a pod",
			spec: corev1.PodSpec{
				Containers: []corev1.Container{container(list("nvidia.com/gpu", "1", "ephemeral-storage", "1Gi"), nil)},
				Resources:  &corev1.ResourceRequirements{Requests: list("nvidia.com/gpu", "8", "ephemeral-storage", "8Gi", "memory", "1Gi", "hugepages-2Mi", "2Mi")},
			},
			want: admission.Resources{
				Requests: admission.Quantity{Memory: "1Gi", EphemeralStorage: "1Gi"},
				Extended: strs{"nvidia.com/gpu": "1", "hugepages-2Mi": "2Mi"},
			},
		},
		"Extended": {
			reason: "everything without a field of its own, by its requests",
			spec: corev1.PodSpec{Containers: []corev1.Container{
				container(list("nvidia.com/gpu", "1", "example.com/nic", "2"), list("nvidia.com/gpu", "1")), container(nil, list("nvidia.com/gpu", "2")),
			}},
			want: admission.Resources{Extended: strs{"nvidia.com/gpu": "3", "example.com/nic": "2"}},
		},
		"EveryField": {
			reason: "CPU, memory and storage have one each",
			spec: corev1.PodSpec{Containers: []corev1.Container{
				container(list("cpu", "1", "memory", "2Gi", "ephemeral-storage", "3Gi"), list("cpu", "4", "memory", "5Gi", "ephemeral-storage", "6Gi")),
			}},
			want: admission.Resources{
				Requests: admission.Quantity{CPU: "1", Memory: "2Gi", EphemeralStorage: "3Gi"},
				Limits:   admission.Quantity{CPU: "4", Memory: "5Gi", EphemeralStorage: "6Gi"},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := Build(input(template(func(t *corev1.PodTemplateSpec) { t.Spec = tc.spec })))
			if diff := cmp.Diff(tc.want, got.Resources); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.want, got.PodSets[0].Resources); diff != "" {
				t.Errorf("pod set (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLargeQuantities: a quantity beyond 64 bits is a pointer inside. Sums must not
// write through it into the object that it was read from, which a cache shares.
func TestLargeQuantities(t *testing.T) {
	const huge = "20000000000000000000.5"
	if q := resource.MustParse(huge); q.AsDec() == nil {
		t.Fatal("the quantity is not large enough to be a pointer")
	}
	spec := corev1.PodSpec{
		InitContainers: []corev1.Container{sidecar(list("cpu", huge), nil), container(list("cpu", huge), nil)},
		Containers:     []corev1.Container{container(list("cpu", huge), list("cpu", huge)), container(list("cpu", huge), list("cpu", huge))},
		Overhead:       list("cpu", huge),
		Resources:      &corev1.ResourceRequirements{Requests: list("cpu", huge), Limits: list("cpu", huge)},
	}
	for _, q := range []corev1.ResourceList{spec.Overhead, spec.Resources.Requests, spec.Containers[0].Resources.Requests, spec.InitContainers[0].Resources.Requests} {
		cpu := q["cpu"]
		cpu.AsDec()
		q["cpu"] = cpu
	}
	before := spec.DeepCopy()
	first := podResources(&spec)
	if diff := cmp.Diff(*before, spec); diff != "" {
		t.Errorf("the pod spec changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(first, podResources(&spec)); diff != "" {
		t.Errorf("the second answer differs (-first +second):\n%s", diff)
	}
}
