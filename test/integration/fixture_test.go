package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// queue is a ClusterQueue of one test with its LocalQueue in a namespace of the
// same name. Quota is for one job of two nodes.
type queue struct {
	t    testing.TB
	name string
	pods *podWatch
}

// foreignController names checks that a test answers itself.
const foreignController = "example.com/manual"

// unique is a name that no other test has.
func unique(prefix string) string {
	return fmt.Sprintf("%s-%s", prefix, strings.ToLower(rand.Text()[:6]))
}

// newQueue makes a queue whose Workloads need the checks, all of ours unless
// their name ends in "-foreign".
func newQueue(tb testing.TB, checks ...string) *queue {
	tb.Helper()
	for _, c := range checks {
		if strings.HasSuffix(c, "-foreign") {
			newForeignCheck(tb, c)
		} else {
			newCheck(tb, c)
		}
	}
	return newQueueOf(tb, checks...)
}

// newQueueOf makes a queue whose Workloads need checks that exist.
func newQueueOf(tb testing.TB, checks ...string) *queue {
	tb.Helper()
	q := &queue{t: tb, name: unique("q")}
	create(tb, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: q.name}})
	create(tb, clusterQueue(q.name, checks...))
	create(tb, &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Name: "lq", Namespace: q.name},
		Spec: kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(q.name)}})
	q.pods = watchPods(tb, q.name)
	return q
}

func clusterQueue(name string, checks ...string) *kueue.ClusterQueue {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kueue.ClusterQueueSpec{
		NamespaceSelector: &metav1.LabelSelector{},
		Preemption:        &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority},
		ResourceGroups: []kueue.ResourceGroup{{
			CoveredResources: []corev1.ResourceName{corev1.ResourceCPU},
			Flavors: []kueue.FlavorQuotas{{Name: "default", Resources: []kueue.ResourceQuota{
				{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("2")}}}},
		}},
	}}
	if len(checks) > 0 {
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
	}
	for _, c := range checks {
		cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks,
			kueue.AdmissionCheckStrategyRule{Name: kueue.AdmissionCheckReference(c)})
	}
	return cq
}

// newCheck makes an AdmissionCheck of ours.
func newCheck(tb testing.TB, name string) {
	tb.Helper()
	newCheckWith(tb, name, nil)
}

func newCheckWith(tb testing.TB, name string, parameters *kueue.AdmissionCheckParametersReference) {
	tb.Helper()
	create(tb, &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kueue.AdmissionCheckSpec{ControllerName: v1alpha1.ControllerName, Parameters: parameters}})
}

// newForeignCheck makes a check that only the test answers, and makes it active.
func newForeignCheck(tb testing.TB, name string) {
	tb.Helper()
	check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kueue.AdmissionCheckSpec{ControllerName: foreignController}}
	create(tb, check)
	activate(tb, check)
}

// activate makes a check active as its controller would.
func activate(tb testing.TB, check *kueue.AdmissionCheck) {
	tb.Helper()
	eventually(tb, 10*time.Second, "the check is active", func() error {
		if err := shared.admin.Get(tb.Context(), client.ObjectKeyFromObject(check), check); err != nil {
			return err
		}
		meta.SetStatusCondition(&check.Status.Conditions, metav1.Condition{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Test", ObservedGeneration: check.Generation})
		return shared.admin.Status().Update(tb.Context(), check)
	})
}

// create makes an object that goes with the test.
func create(tb testing.TB, o client.Object) {
	tb.Helper()
	if err := shared.admin.Create(tb.Context(), o); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = client.IgnoreNotFound(shared.admin.Delete(ctx, o))
	})
}

// dispatchName is a name that dispatch gives a TrainJob.
func dispatchName() string {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	ulid := []byte("01")
	random := make([]byte, 24)
	_, _ = rand.Read(random)
	for _, b := range random {
		ulid = append(ulid, alphabet[b%32])
	}
	return "dj-" + string(ulid) + "-s1"
}

// trainJob builds a TrainJob of two nodes in the queue.
func (q *queue) trainJob(name string, changes ...func(*trainer.TrainJob)) *trainer.TrainJob {
	job := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: q.name, Labels: map[string]string{
			"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/priority-class": "low"}},
		Spec: trainer.TrainJobSpec{RuntimeRef: trainer.RuntimeRef{Name: "two-nodes"}},
	}
	for _, change := range changes {
		change(job)
	}
	return job
}

func highPriority(job *trainer.TrainJob) { job.Labels["kueue.x-k8s.io/priority-class"] = "high" }

func neverReady(job *trainer.TrainJob) { job.Spec.RuntimeRef.Name = "never-ready" }

// submit creates a TrainJob.
func (q *queue) submit(name string, changes ...func(*trainer.TrainJob)) *trainer.TrainJob {
	q.t.Helper()
	job := q.trainJob(name, changes...)
	create(q.t, job)
	return job
}

// batchJob creates a plain Job in the queue, suspended as Kueue's users do.
func (q *queue) batchJob(name string, changes ...func(*batchv1.Job)) *batchv1.Job {
	q.t.Helper()
	suspend, two := true, int32(2)
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: q.name, Labels: map[string]string{"kueue.x-k8s.io/queue-name": "lq"}},
		Spec: batchv1.JobSpec{Suspend: &suspend, Parallelism: &two, Completions: &two, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "example.com/job:1", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
		}}},
	}
	for _, change := range changes {
		change(job)
	}
	create(q.t, job)
	return job
}

// workload finds the Workload of an owner; the youngest if there are two.
func workloadOf(ctx context.Context, namespace string, owner types.UID) (*kueue.Workload, error) {
	var list kueue.WorkloadList
	if err := shared.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		wl := &list.Items[i]
		if o := metav1.GetControllerOf(wl); o != nil && o.UID == owner && wl.DeletionTimestamp == nil {
			return wl, nil
		}
	}
	return nil, fmt.Errorf("no workload of %s in %s", owner, namespace)
}

// editWorkload changes a Workload's spec until it sticks.
func editWorkload(tb testing.TB, job client.Object, change func(*kueue.Workload)) {
	tb.Helper()
	eventually(tb, 10*time.Second, "the workload is edited", func() error {
		wl, err := workloadOf(tb.Context(), job.GetNamespace(), job.GetUID())
		if err != nil {
			return err
		}
		change(wl)
		return shared.admin.Update(tb.Context(), wl)
	})
}

// setActive sets spec.active of a job's Workload.
func setActive(tb testing.TB, job client.Object, active bool) {
	tb.Helper()
	editWorkload(tb, job, func(wl *kueue.Workload) { wl.Spec.Active = &active })
}

// setStopPolicy stops or opens the queue.
func (q *queue) setStopPolicy(policy kueue.StopPolicy) {
	q.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"stopPolicy":%q}}`, policy))
	if err := shared.admin.Patch(q.t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: q.name}}, patch); err != nil {
		q.t.Fatal(err)
	}
}

// answer gives a foreign check of a job's Workload a state. Kueue's scheduler
// writes all checks again when it reserves quota, as it knew them before, so an
// answer given at that very time can be lost.
func answer(tb testing.TB, job client.Object, check string, state kueue.CheckState) {
	tb.Helper()
	eventually(tb, 10*time.Second, "the foreign check is answered", func() error {
		wl, err := workloadOf(tb.Context(), job.GetNamespace(), job.GetUID())
		if err != nil {
			return err
		}
		for i := range wl.Status.AdmissionChecks {
			if c := &wl.Status.AdmissionChecks[i]; string(c.Name) == check && c.State == state {
				return nil
			} else if string(c.Name) == check {
				c.State, c.Message, c.LastTransitionTime = state, "by the test", metav1.Now()
				return shared.admin.Status().Update(tb.Context(), wl)
			}
		}
		return fmt.Errorf("the workload has no check %s", check)
	})
}

// ownedWorkload builds a Workload by hand whose owner is a TrainJob of the given
// name and of no existing UID.
func ownedWorkload(namespace, name, owner string) *kueue.Workload {
	yes := true
	return &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: owner, UID: "6d6f1a52-0000-4000-8000-000000000000", Controller: &yes}}},
		Spec: kueue.WorkloadSpec{QueueName: "lq", PodSets: []kueue.PodSet{{Name: "node", Count: 1, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "node", Image: "example.com/train:1", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
		}}}}},
	}
}
