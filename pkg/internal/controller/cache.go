package controller

import (
	"strings"
	"unique"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/request"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
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
			&kueue.Workload{}:         {Transform: slimWorkload},
			&trainer.TrainJob{}:       {Transform: slimTrainJob},
			&kueue.AdmissionCheck{}:   {Transform: cache.TransformStripManagedFields()},
			&kueue.ResourceFlavor{}:   {Transform: cache.TransformStripManagedFields()},
			&kueue.ClusterQueue{}:     {Transform: slimQueue},
			&v1alpha1.AdmissionGate{}: {Transform: cache.TransformStripManagedFields()},
		},
	}
}

// slimWorkload keeps identity, conditions and checks of a Workload. Its pod sets
// make most of its size: while it waits with quota, what hooks are told of them is
// kept, which is no secret; while it runs, their names, as those of their assignments,
// because a pod set without anything is more than a kilobyte.
func slimWorkload(o any) (any, error) {
	wl, ok := o.(*kueue.Workload)
	if !ok {
		return o, nil
	}
	slim := &kueue.Workload{
		ObjectMeta: slimMeta(&wl.ObjectMeta),
		Spec:       kueue.WorkloadSpec{Active: wl.Spec.Active, QueueName: shared(wl.Spec.QueueName)},
		Status: kueue.WorkloadStatus{
			Conditions:      slimConditions(wl.Status.Conditions),
			AdmissionChecks: shareChecks(wl.Status.AdmissionChecks),
			SchedulingStats: wl.Status.SchedulingStats,
			RequeueState:    wl.Status.RequeueState,
		},
	}
	slim.Annotations = pick(wl.Annotations, v1alpha1.HoldAnnotation)
	switch gate.PhaseOf(slim) {
	case gate.PhaseEnded:
		if len(gate.Waiting(slim)) > 0 {
			return slim, nil
		}
		slim.Status.AdmissionChecks, slim.Status.SchedulingStats, slim.Status.RequeueState = nil, nil, nil
		return slim, nil
	case gate.PhaseReserved:
		wholeAttempt(slim, wl)
		return slim, nil
	case gate.PhaseAdmitted:
		slim.Status.Admission = &kueue.Admission{}
		for _, name := range gate.ReplicatedJobs(wl) { // also of one that is slim already
			slim.Status.Admission.PodSetAssignments = append(slim.Status.Admission.PodSetAssignments,
				kueue.PodSetAssignment{Name: kueue.PodSetReference(shared(name))})
		}
	case gate.PhaseQueued, gate.PhaseEvicted:
	}
	return slim, nil
}

// shared is a string that all who have it share: a decoder makes a new one for each.
func shared[S ~string](s S) S { return unique.Make(s).Value() }

// shareChecks shares what most checks have in common. The list is the decoder's own.
func shareChecks(checks []kueue.AdmissionCheckState) []kueue.AdmissionCheckState {
	for i := range checks {
		c := &checks[i]
		c.Name, c.State, c.Message = shared(c.Name), shared(c.State), shared(c.Message)
	}
	return checks
}

// wholeAttempt keeps all that a hook can be told of an attempt.
func wholeAttempt(slim, wl *kueue.Workload) {
	slim.Labels, slim.Annotations = wl.Labels, request.SlimAnnotations(wl.Annotations)
	slim.CreationTimestamp = wl.CreationTimestamp
	slim.Status.Admission = wl.Status.Admission
	active := slim.Spec.Active
	slim.Spec = wl.Spec
	slim.Spec.Active, slim.Spec.PodSets = active, request.Slim(wl.Spec.PodSets)
}

// slimTrainJob keeps who a TrainJob belongs to, whether it is suspended, its
// runtime patches, whether Trainer has noted the suspension, and what runs.
func slimTrainJob(o any) (any, error) {
	job, ok := o.(*trainer.TrainJob)
	if !ok {
		return o, nil
	}
	slim := &trainer.TrainJob{
		ObjectMeta: slimMeta(&job.ObjectMeta),
		Spec:       trainer.TrainJobSpec{Suspend: job.Spec.Suspend, ManagedBy: job.Spec.ManagedBy, RuntimePatches: job.Spec.RuntimePatches},
		Status:     trainer.TrainJobStatus{Conditions: slimConditions(job.Status.Conditions), JobsStatus: job.Status.JobsStatus},
	}
	if slim.Spec.Suspend != nil && *slim.Spec.Suspend {
		// Hooks may be told labels and annotations of a job that is to start.
		slim.Labels, slim.Annotations, slim.CreationTimestamp = job.Labels, request.SlimAnnotations(job.Annotations), job.CreationTimestamp
	}
	return slim, nil
}

func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	for i := range m.OwnerReferences {
		o := &m.OwnerReferences[i]
		o.APIVersion, o.Kind = shared(o.APIVersion), shared(o.Kind)
	}
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: shared(m.Namespace), UID: m.UID,
		ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		DeletionTimestamp: m.DeletionTimestamp, OwnerReferences: m.OwnerReferences,
	}
}

// slimConditions drops the texts of conditions, which decisions never use, but
// keeps ours, which are written again with each write of checks.
func slimConditions(conditions []metav1.Condition) []metav1.Condition {
	out := make([]metav1.Condition, 0, len(conditions))
	for _, c := range conditions {
		if strings.HasPrefix(c.Type, v1alpha1.GroupName+"/") {
			out = append(out, c)
			continue
		}
		out = append(out, metav1.Condition{Type: shared(c.Type), Status: shared(c.Status), LastTransitionTime: c.LastTransitionTime})
	}
	return out
}

// slimPod keeps of a pod which start it belongs to.
func slimPod(o any) (any, error) {
	pod, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return o, nil
	}
	slim := &metav1.PartialObjectMetadata{TypeMeta: pod.TypeMeta, ObjectMeta: slimMeta(&pod.ObjectMeta)}
	slim.OwnerReferences = nil
	slim.Labels = pick(pod.Labels, jobset.JobSetNameKey)
	slim.Annotations = pick(pod.Annotations, v1alpha1.AdmissionCountAnnotation)
	return slim, nil
}

// slimJob keeps of a Job whether it can make pods.
func slimJob(o any) (any, error) {
	job, ok := o.(*batchv1.Job)
	if !ok {
		return o, nil
	}
	slim := &batchv1.Job{
		ObjectMeta: slimMeta(&job.ObjectMeta), Spec: batchv1.JobSpec{Suspend: job.Spec.Suspend},
		Status: batchv1.JobStatus{Active: job.Status.Active, Conditions: job.Status.Conditions},
	}
	slim.Labels = pick(job.Labels, jobset.JobSetNameKey)
	return slim, nil
}

// slimJobSet keeps of a JobSet whether it can make Jobs.
func slimJobSet(o any) (any, error) {
	js, ok := o.(*jobset.JobSet)
	if !ok {
		return o, nil
	}
	return &jobset.JobSet{
		ObjectMeta: slimMeta(&js.ObjectMeta), Spec: jobset.JobSetSpec{Suspend: js.Spec.Suspend},
		Status: jobset.JobSetStatus{Conditions: slimConditions(js.Status.Conditions)},
	}, nil
}

// slimQueue keeps of a ClusterQueue who waits for its quota, and how it is wired to
// checks by whom.
func slimQueue(o any) (any, error) {
	cq, ok := o.(*kueue.ClusterQueue)
	if !ok {
		return o, nil
	}
	slim := &kueue.ClusterQueue{
		ObjectMeta: slimMeta(&cq.ObjectMeta),
		Spec:       kueue.ClusterQueueSpec{CohortName: cq.Spec.CohortName, AdmissionChecksStrategy: cq.Spec.AdmissionChecksStrategy},
		Status:     kueue.ClusterQueueStatus{PendingWorkloads: cq.Status.PendingWorkloads},
	}
	slim.Labels, slim.ManagedFields = cq.Labels, wiring.SlimManagers(cq.ManagedFields)
	return slim, nil
}

// pick keeps one entry of a map.
func pick(m map[string]string, key string) map[string]string {
	value, ok := m[key]
	if !ok {
		return nil
	}
	return map[string]string{key: value}
}
