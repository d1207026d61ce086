package request

import (
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

const (
	trainJobKind = "TrainJob"
	podKind      = "Pod"
	workloadKind = "Workload"
)

// job is what the owner of a Workload created.
type job struct {
	object admission.Object
	// operator is the kind of the job.
	operator   string
	isTrainJob bool
}

// jobOf finds the job of a Workload.
//
// It is the controller of the Workload, if it has one. A StatefulSet or a
// LeaderWorkerSet owns its Workload beside its pods, without being the controller.
// A group of pods has nothing but the pods, which may be replaced one by one, so
// that the Workload stands for the group, whose name it has. So it does where
// somebody made a Workload by hand.
func jobOf(in Input) job {
	owner := ownerOf(in.Workload)
	if owner != nil {
		return job{
			object: admission.Object{
				APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: string(owner.UID),
			},
			operator:   owner.Kind,
			isTrainJob: in.TrainJob != nil || isTrainJob(owner),
		}
	}
	j := job{object: workloadObject(in.Workload), operator: workloadKind}
	if len(in.Workload.OwnerReferences) > 0 {
		j.operator = podKind
	}
	return j
}

// ownerOf is the one object that a Workload belongs to, nil if there is none.
func ownerOf(wl *kueue.Workload) *metav1.OwnerReference {
	if owner := metav1.GetControllerOfNoCopy(wl); owner != nil {
		return owner
	}
	i := slices.IndexFunc(wl.OwnerReferences, func(o metav1.OwnerReference) bool { return !isPod(o) })
	if i < 0 {
		return nil
	}
	return &wl.OwnerReferences[i]
}

func isPod(o metav1.OwnerReference) bool {
	return o.Kind == podKind && o.APIVersion == corev1.SchemeGroupVersion.String()
}

func isTrainJob(o *metav1.OwnerReference) bool {
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	return err == nil && o.Kind == trainJobKind && gv.Group == trainer.GroupVersion.Group
}

// workloadObject names a Workload. Typed clients leave its kind empty.
func workloadObject(wl *kueue.Workload) admission.Object {
	return admission.Object{
		APIVersion: kueue.SchemeGroupVersion.String(), Kind: workloadKind, Name: wl.Name, UID: string(wl.UID),
	}
}
