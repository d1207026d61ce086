package podrunner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestImageName(t *testing.T) {
	for image, want := range map[string]string{
		"gate":                             "gate",
		"gate:v1":                          "gate",
		"ghcr.io/org/gate:v1":              "gate",
		"localhost:5000/gate":              "gate",
		"localhost:5000/gate:v1@sha256:01": "gate",
		"org/gate@sha256:01":               "gate",
		"gate/other":                       "other",
	} {
		if got := imageName(image); got != want {
			t.Errorf("imageName(%q) = %q, want %q", image, got, want)
		}
	}
}

func TestRun(t *testing.T) {
	programs := Programs{"gate": "/bin"}
	pod := func(node string, init, images []string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		for _, image := range init {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Image: image})
		}
		for _, image := range images {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Image: image})
		}
		return p
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"bound":                      {pod("n", nil, []string{"a/gate:v1"}), true},
		"not bound yet":              {pod("", nil, []string{"a/gate:v1"}), false},
		"another image":              {pod("n", nil, []string{"other"}), false},
		"one of two":                 {pod("n", nil, []string{"gate", "other"}), false},
		"another for initialization": {pod("n", []string{"other"}, []string{"gate"}), false},
	} {
		if got := programs.run(tc.pod); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
