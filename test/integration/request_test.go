package integration

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// TestRequests has the stories of what a hook is asked, for every kind of job that
// the queue takes here.
func TestRequests(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	sideBySide(t, map[string]func(*testing.T){
		"Job":             requestOfJob,
		"JobSet":          requestOfJobSet,
		"Pod":             requestOfPod,
		"PodGroup":        requestOfPodGroup,
		"TrainJob":        requestOfTrainJob,
		"ForeignTrainJob": requestOfForeignTrainJob,
		"Names":           requestNames,
		"Tries":           requestTries,
		"Secrets":         requestSecrets,
	})
	quiet(gate)
}

// gpu is a resource that the nodes have and Kubernetes does not know.
const gpu corev1.ResourceName = "nvidia.com/gpu"

// fullQueue makes a queue with quota for all resources of a pod. The flavor of the
// GPUs is another one and has the name of the queue.
func fullQueue(t *testing.T, gates ...*v1alpha1.AdmissionGate) *queue {
	t.Helper()
	q := newHookedQueue(t, gates...)
	create(t, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: q.name}})
	quota := func(name corev1.ResourceName, n string) kueue.ResourceQuota {
		return kueue.ResourceQuota{Name: name, NominalQuota: resource.MustParse(n)}
	}
	q.edit(func(cq *kueue.ClusterQueueSpec) {
		cq.ResourceGroups = []kueue.ResourceGroup{{
			CoveredResources: []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage},
			Flavors: []kueue.FlavorQuotas{{Name: "default", Resources: []kueue.ResourceQuota{
				quota(corev1.ResourceCPU, "40"), quota(corev1.ResourceMemory, "40Gi"), quota(corev1.ResourceEphemeralStorage, "40Gi")}}},
		}, {
			CoveredResources: []corev1.ResourceName{gpu},
			Flavors:          []kueue.FlavorQuotas{{Name: kueue.ResourceFlavorReference(q.name), Resources: []kueue.ResourceQuota{quota(gpu, "20")}}},
		}}
	})
	return q
}

// flavors are those that fullQueue assigns to a pod with a GPU.
func (q *queue) flavors() map[string]string {
	return map[string]string{"cpu": "default", "memory": "default", "ephemeral-storage": "default", string(gpu): q.name}
}

// fullPod is a pod in which everything is set that a hook is told of. A request of
// CPU that is missing counts with its limit.
func fullPod(class string) corev1.PodTemplateSpec {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	main := corev1.ResourceRequirements{Requests: list("500m", "1Gi"), Limits: list("1", "2Gi")}
	main.Requests[gpu], main.Limits[gpu] = resource.MustParse("2"), resource.MustParse("2")
	main.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse("3Gi")
	side := corev1.ResourceRequirements{Limits: list("250m", "1Gi")}
	minute := int64(60)
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"example.com/team": "vision"},
			Annotations: map[string]string{"example.com/note": "for the hook"},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:      corev1.RestartPolicyNever,
			ServiceAccountName: chosenAccount, PriorityClassName: class,
			NodeSelector:   map[string]string{"kubernetes.io/os": "linux"},
			Tolerations:    []corev1.Toleration{{Key: "example.com/spot", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &minute}},
			InitContainers: []corev1.Container{{Name: "first", Image: "example.com/first:1"}},
			Containers: []corev1.Container{
				{Name: "main", Image: "example.com/main:1", Resources: main},
				{Name: "side", Image: "example.com/side:1", Resources: side},
			},
		},
	}
}

// fullResources are those of fullPod.
func fullResources() admission.Resources {
	return admission.Resources{
		Requests: admission.Quantity{CPU: "750m", Memory: "2Gi", EphemeralStorage: "3Gi"},
		Limits:   admission.Quantity{CPU: "1250m", Memory: "3Gi"},
		Extended: map[string]string{string(gpu): "2"},
	}
}

// fullRequest is what a hook is told about the first start of a job of one group of
// count fullPods. What the server or the kind of job decides is left out.
func (q *queue) fullRequest(kind string, o client.Object, podSet string, count int, class string) *admission.Request {
	minute := int64(60)
	return &admission.Request{
		TenantID: q.name, DagID: o.GetName(), RunID: string(o.GetUID()), TaskID: podSet, TryNumber: 1,
		Operator: kind, Image: "example.com/main:1", Resources: fullResources(),
		Execution: admission.Execution{
			ServiceAccount: chosenAccount, PriorityClassName: class,
			NodeSelector: map[string]string{"kubernetes.io/os": "linux"},
			Labels:       map[string]string{"example.com/team": "vision"},
			Annotations:  map[string]string{"example.com/note": "for the hook"},
			Tolerations:  []admission.Toleration{{Key: "example.com/spot", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &minute}},
		},
		ServiceAccountChosen: true,
		Namespace:            q.name, LocalQueue: "lq", ClusterQueue: q.name,
		Job:              admission.Object{Kind: kind, Name: o.GetName(), UID: string(o.GetUID())},
		WorkloadPriority: 1000, WorkloadPriorityClass: "high",
		PodSets: []admission.PodSet{{
			Name: podSet, Count: count, Resources: fullResources(), Flavors: q.flavors(),
			Images: []string{"example.com/first:1", "example.com/main:1", "example.com/side:1"},
		}},
		MaxRunTimeSeconds: 3600, OfferCount: 1,
	}
}

// wantRequest compares what the hook was asked about a job with what it should have
// been. The Workload is the job's, and so is the time of creation, to the second in
// which Kueue made the Workload.
func wantRequest(t *testing.T, got, want *admission.Request, wl *kueue.Workload, created time.Time) {
	t.Helper()
	want.Workload = admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload", Name: wl.Name, UID: string(wl.UID)}
	want.CreationTime = created.UTC()
	if g, w := asJSON(t, got), asJSON(t, want); g != w {
		t.Errorf("the hook was asked\n%s\nwant\n%s", g, w)
	}
}

// fullLabels put a job into the queue with a priority and a limit of its run time.
func fullLabels() map[string]string {
	return map[string]string{"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/priority-class": "high", "kueue.x-k8s.io/max-exec-time-seconds": "3600"}
}

// newChoices makes the service account and the priority class of fullPod, and
// returns the name of the class, whose value is 5000.
func (q *queue) newChoices() (class string) {
	q.t.Helper()
	class = unique("class")
	never := corev1.PreemptNever
	create(q.t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: chosenAccount, Namespace: q.name}})
	create(q.t, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Value: 5000, PreemptionPolicy: &never})
	return class
}

// requestOfJob: every field of a request about a plain Job.
func requestOfJob(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := fullQueue(t, newGate(t, h))
	class := q.newChoices()
	job := q.batchJob("plain", func(job *batchv1.Job) {
		job.Labels, job.Spec.Template = fullLabels(), fullPod(class)
	})
	got := h.awaitAsked(job, 1)[0]
	wl := awaitWorkload(t, job, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	want := q.fullRequest("Job", job, "main", 2, class)
	want.Job.APIVersion = "batch/v1"
	want.Execution.Labels[batchv1.JobNameLabel] = job.Name // the API server's doing
	wantRequest(t, got, want, wl, wl.CreationTimestamp.Time)
	q.awaitPods(job, 2)
}

// requestOfJobSet: a JobSet of two groups, each with its count and resources.
func requestOfJobSet(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := fullQueue(t, newGate(t, h))
	class := q.newChoices()
	js := q.jobSet("set", func(js *jobset.JobSet) {
		js.Labels = fullLabels()
		js.Spec.ReplicatedJobs[0].Template.Spec.Template = fullPod(class)
	})
	got := h.awaitAsked(js, 1)[0]
	wl := awaitWorkload(t, js, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	want := q.fullRequest("JobSet", js, "lead", 1, class)
	want.Job.APIVersion = "jobset.x-k8s.io/v1alpha2"
	worker := admission.Resources{Requests: admission.Quantity{CPU: "1"}}
	want.PodSets = append(want.PodSets, admission.PodSet{
		Name: "work", Count: 4, Resources: worker, Images: []string{"example.com/job:1"}, Flavors: map[string]string{"cpu": "default"}})
	wantRequest(t, got, want, wl, wl.CreationTimestamp.Time)
	q.awaitPods(js, 5)
}

// jobSet creates a JobSet of one pod "lead" and twice two pods "work".
func (q *queue) jobSet(name string, change func(*jobset.JobSet)) *jobset.JobSet {
	q.t.Helper()
	one, two, suspend := int32(1), int32(2), true
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
		Name: "main", Image: "example.com/job:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}}}
	js := &jobset.JobSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: q.name, Labels: map[string]string{"kueue.x-k8s.io/queue-name": "lq"}},
		Spec: jobset.JobSetSpec{Suspend: &suspend, ReplicatedJobs: []jobset.ReplicatedJob{
			{Name: "lead", Replicas: 1, Template: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Parallelism: &one, Completions: &one, Template: pod}}},
			{Name: "work", Replicas: 2, Template: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Parallelism: &two, Completions: &two, Template: pod}}},
		}},
	}
	change(js)
	create(q.t, js)
	return js
}

// pod creates a pod in the queue.
func (q *queue) pod(name string, labels map[string]string, template corev1.PodTemplateSpec, changes ...func(*corev1.Pod)) *corev1.Pod {
	q.t.Helper()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace, pod.Labels = name, q.name, maps.Clone(template.Labels)
	maps.Copy(pod.Labels, labels)
	for _, change := range changes {
		change(pod)
	}
	// The API server has to know the account that was made a moment ago.
	eventually(q.t, patience, "the pod is created", func() error { return shared.admin.Create(q.t.Context(), pod.DeepCopy()) })
	eventually(q.t, patience, "the pod is there", func() error {
		return shared.admin.Get(q.t.Context(), client.ObjectKeyFromObject(pod), pod)
	})
	q.t.Cleanup(func() { _ = shared.admin.Delete(context.Background(), pod) })
	return pod
}

// podRequest is what a hook is told about fullPods that are a job by themselves.
// Kueue copies neither their labels nor their annotations into the Workload, and
// the API server has given them tolerations.
func (q *queue) podRequest(o client.Object, podSet string, count int, class string) *admission.Request {
	want := q.fullRequest("Pod", o, podSet, count, class)
	want.Execution.Labels, want.Execution.Annotations = nil, nil
	long := int64(300)
	for _, key := range []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} {
		want.Execution.Tolerations = append(want.Execution.Tolerations,
			admission.Toleration{Key: key, Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &long})
	}
	return want
}

// requestOfPod: a plain pod is a job of its own.
func requestOfPod(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := fullQueue(t, newGate(t, h))
	class := q.newChoices()
	pod := q.pod("alone", fullLabels(), fullPod(class))
	got := h.awaitAsked(pod, 1)[0]
	wl := awaitWorkload(t, pod, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	want := q.podRequest(pod, "main", 1, class)
	want.Job.APIVersion = "v1"
	wantRequest(t, got, want, wl, wl.CreationTimestamp.Time)
	awaitReleased(t, pod)
}

// awaitReleased waits until Kueue lets pods be scheduled.
func awaitReleased(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		eventually(t, patience, "pod "+pod.Name+" may be scheduled", func() error {
			if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if len(pod.Spec.SchedulingGates) > 0 {
				return errNotYet
			}
			return nil
		})
	}
}

// requestOfPodGroup: pods of a group start together, and the group is the job. It
// has no object but its Workload.
func requestOfPodGroup(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := fullQueue(t, newGate(t, h))
	class := q.newChoices()
	labels := fullLabels()
	labels["kueue.x-k8s.io/pod-group-name"] = "group"
	var pods []*corev1.Pod
	for _, name := range []string{"member-a", "member-b"} {
		pods = append(pods, q.pod(name, labels, fullPod(class), func(pod *corev1.Pod) {
			pod.Annotations["kueue.x-k8s.io/pod-group-total-count"] = "2"
		}))
	}
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: q.name, Name: "group"}}
	eventually(t, patience, "the group has a workload", func() error { return shared.admin.Get(t.Context(), client.ObjectKeyFromObject(wl), wl) })
	got := h.awaitAsked(wl, 1)[0]
	if got.TaskID == "" || got.TaskID != got.PodSets[0].Name {
		t.Errorf("the task is %q, want Kueue's name for the role of the pods, %q", got.TaskID, got.PodSets[0].Name)
	}
	want := q.podRequest(wl, got.TaskID, 2, class)
	want.Job = admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload", Name: wl.Name, UID: string(wl.UID)}
	wantRequest(t, got, want, wl, wl.CreationTimestamp.Time)
	awaitReleased(t, pods...)
}

// wideRuntime is a runtime whose first group of pods is not the one that trains.
const wideRuntime = `---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: %s
  labels: {trainer.kubeflow.org/framework: torch}
spec:
  mlPolicy: {numNodes: 2, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: helper
        template:
          spec:
            template:
              spec:
                containers:
                - name: helper
                  image: example.com/helper:1
                  resources: {requests: {cpu: 250m}}
      - name: node
        template:
          metadata:
            labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}
          spec:
            template:
              metadata:
                labels: {example.com/team: vision}
                annotations: {example.com/note: for the hook}
              spec:
                serviceAccountName: chosen
                priorityClassName: %s
                nodeSelector: {kubernetes.io/os: linux}
                tolerations: [{key: example.com/spot, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]
                initContainers:
                - {name: first, image: "example.com/first:1"}
                containers:
                - name: side
                  image: example.com/side:1
                  resources: {limits: {cpu: 250m, memory: 1Gi}}
                - name: node
                  image: example.com/train:1
                  resources:
                    requests: {cpu: 500m, memory: 1Gi, ephemeral-storage: 3Gi, nvidia.com/gpu: 2}
                    limits: {cpu: "1", memory: 2Gi, nvidia.com/gpu: 2}
`

// wideJob creates a TrainJob of wideRuntime.
func (q *queue) wideJob(name, class string) *trainer.TrainJob {
	q.t.Helper()
	q.newRuntime(fmt.Sprintf(wideRuntime, q.name, class))
	return q.submit(name, func(job *trainer.TrainJob) {
		job.Labels, job.Spec.RuntimeRef.Name = fullLabels(), q.name
	})
}

// newRuntime makes a ClusterTrainingRuntime that has the name of the queue.
func (q *queue) newRuntime(manifest string) {
	q.t.Helper()
	if err := shared.cluster.Apply(q.t.Context(), manifest); err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() {
		_ = shared.admin.Delete(context.Background(), &trainer.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: q.name}})
	})
}

// wideRequest is what a hook is told about the first start of a wideJob.
func (q *queue) wideRequest(job *trainer.TrainJob, class string) *admission.Request {
	want := q.fullRequest("TrainJob", job, "node", 2, class)
	want.Job.APIVersion = "trainer.kubeflow.org/v1alpha1"
	want.Image = "example.com/train:1"
	want.PodSets[0].Images = []string{"example.com/first:1", "example.com/side:1", "example.com/train:1"}
	want.PodSets = append(want.PodSets, admission.PodSet{Name: "helper", Count: 1, Resources: admission.Resources{Requests: admission.Quantity{CPU: "250m"}},
		Images: []string{"example.com/helper:1"}, Flavors: map[string]string{"cpu": "default"}})
	return want
}

// requestOfTrainJob: dispatch's TrainJob tells by its name which run and step it
// is, and the group that trains comes first.
func requestOfTrainJob(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := fullQueue(t, newGate(t, h))
	class := q.newChoices()
	job := q.wideJob(dispatchName(), class)
	got := h.awaitAsked(job, 1)[0]
	wl := awaitWorkload(t, job, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	want := q.wideRequest(job, class)
	want.DagID, want.RunID = strings.TrimSuffix(job.Name, "-s1"), "s1"
	wantRequest(t, got, want, wl, job.CreationTimestamp.Time)
	wantCount(t, job, "1")
	q.awaitPods(job, 3)
}

// requestOfForeignTrainJob: any other TrainJob is known by its name and UID.
func requestOfForeignTrainJob(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := fullQueue(t, newGate(t, h))
	class := q.newChoices()
	job := q.wideJob("somebody-elses", class)
	got := h.awaitAsked(job, 1)[0]
	wl := awaitWorkload(t, job, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	wantRequest(t, got, q.wideRequest(job, class), wl, job.CreationTimestamp.Time)
	wantCount(t, job, "")
	q.awaitPods(job, 3)
}
