package podrunner

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Programs maps the name of an image, which is the last element of its
// repository, to the directory of the static binaries that the image holds.
type Programs map[string]string

// imageName returns the last element of an image's repository, without tag and
// digest.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	image = image[strings.LastIndexByte(image, '/')+1:]
	name, _, _ := strings.Cut(image, ":")
	return name
}

// run reports whether the pod is bound to a node and consists of known images
// only. A pod that mixes them with others is left to whoever simulates those.
func (p Programs) run(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if p[imageName(list[i].Image)] == "" {
				return false
			}
		}
	}
	return true
}
