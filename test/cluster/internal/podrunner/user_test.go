package podrunner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestUserOf(t *testing.T) {
	yes, no := true, false
	id := func(n int64) *int64 { return &n }
	for name, tc := range map[string]struct {
		pod     *corev1.PodSecurityContext
		own     *corev1.SecurityContext
		want    uint32
		refused bool
	}{
		"nothing said":             {nil, nil, 0, false},
		"the pod's":                {&corev1.PodSecurityContext{RunAsUser: id(65532), RunAsNonRoot: &yes}, nil, 65532, false},
		"the container's":          {&corev1.PodSecurityContext{RunAsUser: id(1)}, &corev1.SecurityContext{RunAsUser: id(2)}, 2, false},
		"not root, without a user": {&corev1.PodSecurityContext{RunAsNonRoot: &yes}, nil, 0, true},
		"not root, as root":        {nil, &corev1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: id(0)}, 0, true},
		"root after all":           {&corev1.PodSecurityContext{RunAsNonRoot: &yes}, &corev1.SecurityContext{RunAsNonRoot: &no}, 0, false},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: tc.pod}}
		got, err := userOf(pod, &corev1.Container{SecurityContext: tc.own})
		if got.UID != tc.want || (err != nil) != tc.refused {
			t.Errorf("%s: user %d, %v; want %d, refused: %t", name, got.UID, err, tc.want, tc.refused)
		}
	}
}
