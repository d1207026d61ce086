package request

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Slim returns the pod sets with nothing in them but what Build and package
// placement read: name and count; labels and annotations; of each container name,
// image and resources, of init containers also the restart policy; of the pod node
// selector, tolerations, service account, priority class, resources and overhead.
// The values of annotations that Build leaves out are replaced by "(withheld)",
// because placement has to know their keys.
//
// An informer that keeps slimmed objects holds no environment, argument or secret,
// and Build answers the same. Slim of slimmed pod sets changes nothing. What is
// kept is shared with the argument, so neither may be changed.
func Slim(podSets []kueue.PodSet) []kueue.PodSet {
	if podSets == nil {
		return nil
	}
	slim := make([]kueue.PodSet, 0, len(podSets))
	for i := range podSets {
		ps := &podSets[i]
		slim = append(slim, kueue.PodSet{Name: ps.Name, Count: ps.Count, Template: slimTemplate(&ps.Template)})
	}
	return slim
}

func slimTemplate(t *corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: t.Labels, Annotations: SlimAnnotations(t.Annotations)},
		Spec: corev1.PodSpec{
			InitContainers:           slimContainers(t.Spec.InitContainers, true),
			Containers:               slimContainers(t.Spec.Containers, false),
			NodeSelector:             t.Spec.NodeSelector,
			ServiceAccountName:       t.Spec.ServiceAccountName,
			DeprecatedServiceAccount: t.Spec.DeprecatedServiceAccount,
			Tolerations:              t.Spec.Tolerations,
			PriorityClassName:        t.Spec.PriorityClassName,
			Overhead:                 t.Spec.Overhead,
			Resources:                slimPodResources(t.Spec.Resources),
		},
	}
}

func slimContainers(containers []corev1.Container, initial bool) []corev1.Container {
	slim := make([]corev1.Container, 0, len(containers))
	for i := range containers {
		c := &containers[i]
		kept := corev1.Container{Name: c.Name, Image: c.Image, Resources: slimResources(&c.Resources)}
		if initial {
			kept.RestartPolicy = c.RestartPolicy
		}
		slim = append(slim, kept)
	}
	return slim
}

func slimPodResources(r *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if r == nil {
		return nil
	}
	return new(slimResources(r))
}

func slimResources(r *corev1.ResourceRequirements) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits}
}

// withheld stands for the value of an annotation that nobody gets to see.
const withheld = "(withheld)"

// manifestKeys are annotations in which tools keep the manifest of an object,
// compressed or encoded some of them.
var manifestKeys = map[string]bool{
	"kapp.k14s.io/original":           true,
	"objectset.rio.cattle.io/applied": true,
}

// withholds tells whether an annotation may repeat the manifest of its object, with
// the environment of its containers. kubectl keeps one in
// kubectl.kubernetes.io/last-applied-configuration, and many tools have followed
// its example, also in the name. For the rest the value tells: the text of an object
// or of a pod spec.
func withholds(key, value string) bool {
	key = strings.ToLower(key)
	return value == withheld || manifestKeys[key] ||
		strings.Contains(key, "last-applied") || strings.Contains(key, "last-handled") ||
		mentions(value, "apiVersion", "kind") || mentions(value, "containers", "image")
}

func mentions(text string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// shown are the annotations that a hook may see.
func shown(annotations map[string]string) map[string]string {
	all := make(map[string]string, len(annotations))
	for key, value := range annotations {
		if !withholds(key, value) {
			all[key] = value
		}
	}
	return all
}

// SlimAnnotations keeps all keys, but replaces the values that a hook may not see by
// "(withheld)". Slim does it for pod templates; it is for caches that keep the
// annotations of Workloads and TrainJobs, too, where kubectl leaves whole manifests.
func SlimAnnotations(annotations map[string]string) map[string]string {
	if annotations == nil {
		return nil
	}
	all := make(map[string]string, len(annotations))
	for key, value := range annotations {
		if withholds(key, value) {
			value = withheld
		}
		all[key] = value
	}
	return all
}
