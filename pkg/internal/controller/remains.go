package controller

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// indexJobSet finds pods and Jobs by namespace and JobSet.
const indexJobSet = "jobset"

// podWatch watches what is left of the earlier starts of TrainJobs: pods that have
// not ended, as metadata only, and whether their JobSets and Jobs are suspended.
// It begins when the first gate waits for pods, so that a cluster without such a
// gate pays nothing, and it has a cache of its own: where the right to watch pods
// is missing, everything else works.
type podWatch struct {
	cache   cache.Cache
	objects []client.Object
	mapJob  handler.MapFunc

	wanted chan struct{}
	want   func()
	// workloads is the controller that is to look at Workloads when something
	// changes; set before the manager starts.
	workloads controller.Controller
}

// newPodWatch makes the watch; nothing is watched yet.
func newPodWatch(mgr manager.Manager, mapJob handler.MapFunc) (*podWatch, error) {
	hasJobSet, err := labels.NewRequirement(jobset.JobSetNameKey, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting pods: %w", err)
	}
	ofJobSets := labels.NewSelector().Add(*hasJobSet)
	pods := &metav1.PartialObjectMetadata{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	share := true
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ReaderFailOnMissingInformer: true, DefaultUnsafeDisableDeepCopy: &share,
		ByObject: map[client.Object]cache.ByObject{
			pods: {Label: ofJobSets, Transform: slimPod, Field: fields.AndSelectors(
				fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
				fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))},
			&batchv1.Job{}:   {Label: ofJobSets, Transform: slimJob},
			&jobset.JobSet{}: {Transform: slimJobSet},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the cache of pods: %w", err)
	}
	w := &podWatch{cache: c, objects: []client.Object{pods, &batchv1.Job{}, &jobset.JobSet{}}, mapJob: mapJob, wanted: make(chan struct{})}
	w.want = sync.OnceFunc(func() { close(w.wanted) })
	return w, nil
}

// Start implements manager.Runnable. The manager calls it on the leader only.
func (w *podWatch) Start(ctx context.Context) error {
	select {
	case <-w.wanted:
	case <-ctx.Done():
		return nil
	}
	for _, o := range w.objects[:2] {
		if err := w.cache.IndexField(ctx, o, indexJobSet, byJobSet); err != nil {
			return fmt.Errorf("index of %T: %w", o, err)
		}
	}
	for _, o := range w.objects {
		// A pod that ends, a Job that is suspended: the gate may open.
		if err := w.workloads.Watch(source.Kind(w.cache, o, handler.TypedEnqueueRequestsFromMapFunc[client.Object, reconcile.Request](w.mapJob))); err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
	}
	return w.cache.Start(ctx)
}

// left reads what is left of the earlier starts of a TrainJob.
func (w *podWatch) left(ctx context.Context, job *trainer.TrainJob) (gate.Remains, error) {
	if !w.synced(ctx) {
		return gate.Remains{}, nil
	}
	left := gate.Remains{Known: true, Pods: map[int64]int{}}
	in, of := client.InNamespace(job.Namespace), client.MatchingFields{indexJobSet: job.Name}
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := w.cache.List(ctx, pods, in, of); err != nil {
		return left, fmt.Errorf("listing the pods: %w", err)
	}
	for i := range pods.Items {
		left.Pods[countOf(&pods.Items[i])]++
	}
	var err error
	left.Stopped, err = w.stopped(ctx, job, in, of)
	return left, err
}

// stopped tells whether the JobSet and its Jobs are suspended and their
// controllers have taken note.
func (w *podWatch) stopped(ctx context.Context, job *trainer.TrainJob, in, of client.ListOption) (bool, error) {
	var js jobset.JobSet
	switch err := w.cache.Get(ctx, client.ObjectKeyFromObject(job), &js); {
	case client.IgnoreNotFound(err) != nil:
		return false, fmt.Errorf("reading the jobset: %w", err)
	case err == nil && !jobSetStopped(&js):
		return false, nil
	}
	var jobs batchv1.JobList
	if err := w.cache.List(ctx, &jobs, in, of); err != nil {
		return false, fmt.Errorf("listing the jobs: %w", err)
	}
	for i := range jobs.Items {
		if !jobStopped(&jobs.Items[i]) {
			return false, nil
		}
	}
	return true, nil
}

// synced tells whether all three informers have their first state.
func (w *podWatch) synced(ctx context.Context) bool {
	select {
	case <-w.wanted:
	default:
		return false
	}
	for _, o := range w.objects {
		i, err := w.cache.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil || !i.HasSynced() {
			return false
		}
	}
	return true
}

// jobSetStopped tells whether a JobSet is suspended and its controller knows.
func jobSetStopped(js *jobset.JobSet) bool {
	suspended := js.Spec.Suspend != nil && *js.Spec.Suspend
	for _, c := range js.Status.Conditions {
		switch jobset.JobSetConditionType(c.Type) {
		case jobset.JobSetSuspended:
			suspended = suspended && c.Status == metav1.ConditionTrue
		case jobset.JobSetCompleted, jobset.JobSetFailed:
			if c.Status == metav1.ConditionTrue {
				return true
			}
		case jobset.JobSetRestarting, jobset.JobSetStartupPolicyInProgress, jobset.JobSetStartupPolicyCompleted:
		}
	}
	return suspended
}

// jobStopped tells whether a Job makes no pods and its controller knows: it has
// ended, or it is suspended, with no pod that it still counts.
func jobStopped(job *batchv1.Job) bool {
	noted := false
	for _, c := range job.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete, batchv1.JobFailed:
			return true
		case batchv1.JobSuspended:
			noted = true
		case batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet:
		}
	}
	return noted && job.Spec.Suspend != nil && *job.Spec.Suspend && job.Status.Active == 0
}

// countOf is the admission count that a pod carries, 0 if it carries none.
func countOf(pod *metav1.PartialObjectMetadata) int64 {
	n, err := strconv.ParseInt(pod.Annotations[v1alpha1.AdmissionCountAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func byJobSet(o client.Object) []string {
	if name := o.GetLabels()[jobset.JobSetNameKey]; name != "" {
		return []string{name}
	}
	return nil
}
