package podrunner

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/isolation"
)

// userOf returns whom a container runs as. The images have no user of their own,
// so that one without runAsUser runs as root, which runAsNonRoot forbids.
func userOf(pod *corev1.Pod, c *corev1.Container) (isolation.User, error) {
	uid, u := runAsUser(pod, c), isolation.User{}
	if uid != nil {
		u.UID = uint32(*uid)
	}
	if u.UID == 0 && nonRoot(pod, c) {
		return isolation.User{}, errors.New("container has runAsNonRoot and image will run as root")
	}
	if p := pod.Spec.SecurityContext; p != nil {
		if p.RunAsGroup != nil {
			u.GID = uint32(*p.RunAsGroup)
		}
		for _, group := range p.SupplementalGroups {
			u.Groups = append(u.Groups, uint32(group))
		}
		if p.FSGroup != nil {
			u.Groups = append(u.Groups, uint32(*p.FSGroup))
		}
	}
	if s := c.SecurityContext; s != nil && s.RunAsGroup != nil {
		u.GID = uint32(*s.RunAsGroup)
	}
	return u, nil
}

func runAsUser(pod *corev1.Pod, c *corev1.Container) *int64 {
	if s := c.SecurityContext; s != nil && s.RunAsUser != nil {
		return s.RunAsUser
	}
	if s := pod.Spec.SecurityContext; s != nil {
		return s.RunAsUser
	}
	return nil
}

func nonRoot(pod *corev1.Pod, c *corev1.Container) bool {
	if s := c.SecurityContext; s != nil && s.RunAsNonRoot != nil {
		return *s.RunAsNonRoot
	}
	s := pod.Spec.SecurityContext
	return s != nil && s.RunAsNonRoot != nil && *s.RunAsNonRoot
}
