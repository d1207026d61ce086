package request

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

const (
	// defaultContainerAnnotation names the container that kubectl and its like
	// take for the main one.
	defaultContainerAnnotation = "kubectl.kubernetes.io/default-container"

	// defaultServiceAccount is the one that Kubernetes gives to a pod without.
	defaultServiceAccount = "default"

	// trainerNode is the name that Trainer has for the job that trains and for the
	// container in it whose image a TrainJob chooses. Where MPI has a launcher,
	// "node" are the workers.
	trainerNode = "node"

	// ancestorLabel says what a job of a runtime is for. Runtimes set it on the
	// job; Kueue has it only where they set it on the pods, too.
	ancestorLabel   = "trainer.kubeflow.org/trainjob-ancestor-step"
	ancestorTrainer = "trainer"
)

// mainFirst are the pod sets with the main one in front.
func mainFirst(sets []kueue.PodSet, isTrainJob bool) []*kueue.PodSet {
	if len(sets) == 0 {
		return nil
	}
	first := mainPodSet(sets, isTrainJob)
	all := append(make([]*kueue.PodSet, 0, len(sets)), &sets[first])
	for i := range sets {
		if i != first {
			all = append(all, &sets[i])
		}
	}
	return all
}

// mainPodSet is the index of the pod set that does the work: of a TrainJob the one
// that trains, of anything else the first.
func mainPodSet(sets []kueue.PodSet, isTrainJob bool) int {
	if !isTrainJob {
		return 0
	}
	if i := slices.IndexFunc(sets, func(ps kueue.PodSet) bool { return ps.Name == trainerNode }); i >= 0 {
		return i
	}
	return max(0, slices.IndexFunc(sets, func(ps kueue.PodSet) bool {
		return ps.Template.Labels[ancestorLabel] == ancestorTrainer
	}))
}

// mainImage is the image of the container that does the work: the one that an
// annotation names, else the one that Trainer runs the training in, else the first.
func mainImage(t *corev1.PodTemplateSpec, isTrainJob bool) string {
	names := []string{t.Annotations[defaultContainerAnnotation]}
	if isTrainJob {
		names = append(names, trainerNode)
	}
	for _, name := range names {
		for i := range t.Spec.Containers {
			if t.Spec.Containers[i].Name == name {
				return t.Spec.Containers[i].Image
			}
		}
	}
	if len(t.Spec.Containers) == 0 {
		return ""
	}
	return t.Spec.Containers[0].Image
}

func podSet(ps *kueue.PodSet) admission.PodSet {
	return admission.PodSet{
		Name:      string(ps.Name),
		Count:     int(ps.Count),
		Resources: podResources(&ps.Template.Spec),
		Images:    images(&ps.Template.Spec),
	}
}

// assign adds what Kueue reserved: with partial admission fewer pods than wanted.
func assign(set *admission.PodSet, a *kueue.PodSetAssignment) {
	if a.Count != nil {
		set.Count = int(*a.Count)
	}
	set.Flavors = make(map[string]string, len(a.Flavors))
	for resource, flavor := range a.Flavors {
		set.Flavors[string(resource)] = string(flavor)
	}
}

func images(spec *corev1.PodSpec) []string {
	var all []string
	for i := range spec.InitContainers {
		all = append(all, spec.InitContainers[i].Image)
	}
	for i := range spec.Containers {
		all = append(all, spec.Containers[i].Image)
	}
	return all
}

func execution(t *corev1.PodTemplateSpec) admission.Execution {
	return admission.Execution{
		ServiceAccount:    serviceAccount(&t.Spec),
		PriorityClassName: t.Spec.PriorityClassName,
		NodeSelector:      t.Spec.NodeSelector,
		Labels:            t.Labels,
		Annotations:       shown(t.Annotations),
		Tolerations:       tolerations(t.Spec.Tolerations),
	}
}

// serviceAccount is the one that the pods will have. Templates that no API server
// has defaulted may have it in the old field alone.
func serviceAccount(spec *corev1.PodSpec) string {
	switch {
	case spec.ServiceAccountName != "":
		return spec.ServiceAccountName
	case spec.DeprecatedServiceAccount != "":
		return spec.DeprecatedServiceAccount
	}
	return defaultServiceAccount
}

func tolerations(list []corev1.Toleration) []admission.Toleration {
	var all []admission.Toleration
	for _, t := range list {
		all = append(all, admission.Toleration{
			Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect),
			TolerationSeconds: t.TolerationSeconds,
		})
	}
	return all
}
