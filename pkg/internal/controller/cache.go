package controller

import (
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// CacheOptions are the informer caches: only what Setup asked for is cached, of
// each object only what decisions use, and readers share it. Nobody may change
// what they read.
func CacheOptions() cache.Options {
	share := true
	return cache.Options{
		ReaderFailOnMissingInformer:  true,
		DefaultUnsafeDisableDeepCopy: &share,
		ByObject: map[client.Object]cache.ByObject{
			&kueue.Workload{}:       {Transform: slimWorkload},
			&trainer.TrainJob{}:     {Transform: slimTrainJob},
			&kueue.AdmissionCheck{}: {Transform: cache.TransformStripManagedFields()},
		},
	}
}

// slimWorkload keeps identity, conditions and checks of a Workload; of its pod
// sets, which make most of its size, the names, and those only while it waits
// or runs.
func slimWorkload(o any) (any, error) {
	wl, ok := o.(*kueue.Workload)
	if !ok {
		return o, nil
	}
	slim := &kueue.Workload{
		ObjectMeta: slimMeta(&wl.ObjectMeta),
		Spec:       kueue.WorkloadSpec{Active: wl.Spec.Active},
		Status: kueue.WorkloadStatus{
			Conditions:      slimConditions(wl.Status.Conditions),
			AdmissionChecks: wl.Status.AdmissionChecks,
			SchedulingStats: wl.Status.SchedulingStats,
		},
	}
	if gate.PhaseOf(slim) == gate.PhaseEnded {
		slim.Status.AdmissionChecks, slim.Status.SchedulingStats = nil, nil
		return slim, nil
	}
	for _, ps := range wl.Spec.PodSets {
		slim.Spec.PodSets = append(slim.Spec.PodSets, kueue.PodSet{Name: ps.Name})
	}
	return slim, nil
}

// slimTrainJob keeps who a TrainJob belongs to, whether it is suspended, its
// runtime patches, whether Trainer has noted the suspension, and what runs.
func slimTrainJob(o any) (any, error) {
	job, ok := o.(*trainer.TrainJob)
	if !ok {
		return o, nil
	}
	return &trainer.TrainJob{
		ObjectMeta: slimMeta(&job.ObjectMeta),
		Spec:       trainer.TrainJobSpec{Suspend: job.Spec.Suspend, ManagedBy: job.Spec.ManagedBy, RuntimePatches: job.Spec.RuntimePatches},
		Status:     trainer.TrainJobStatus{Conditions: slimConditions(job.Status.Conditions), JobsStatus: job.Status.JobsStatus},
	}, nil
}

func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID,
		ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		DeletionTimestamp: m.DeletionTimestamp, OwnerReferences: m.OwnerReferences,
	}
}

// slimConditions drops the texts of conditions, which decisions never use.
func slimConditions(conditions []metav1.Condition) []metav1.Condition {
	out := make([]metav1.Condition, 0, len(conditions))
	for _, c := range conditions {
		out = append(out, metav1.Condition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
	}
	return out
}
