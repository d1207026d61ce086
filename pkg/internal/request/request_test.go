package request

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

type strs = map[string]string

var noon = time.Date(2026, time.March, 2, 12, 0, 0, 0, time.UTC)

const ulidName = "dj-01j9zzzzzzzzzzzzzzzzzzzzzz-s3"

// input is that of a Workload without an owner, with the pod set "main" of one
// container.
func input(changes ...func(*Input)) Input {
	in := Input{Workload: &kueue.Workload{}, TryNumber: 1, OfferCount: 1}
	in.Workload.Name, in.Workload.Namespace, in.Workload.UID = "wl", "team", "wl-1"
	podSetOf("main", 1)(&in)
	for _, change := range changes {
		change(&in)
	}
	return in
}

func podSets(names ...string) func(*Input) {
	return func(in *Input) {
		in.Workload.Spec.PodSets = nil
		for _, name := range names {
			podSetOf(name, 1)(in)
		}
	}
}

func podSetOf(name string, count int32) func(*Input) {
	return func(in *Input) {
		ps := kueue.PodSet{Name: kueue.PodSetReference(name), Count: count}
		ps.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: name + ":1"}}
		in.Workload.Spec.PodSets = append(in.Workload.Spec.PodSets, ps)
	}
}

func owners(refs ...metav1.OwnerReference) func(*Input) {
	return func(in *Input) { in.Workload.OwnerReferences = refs }
}

func ref(apiVersion, kind, name string, controller bool) metav1.OwnerReference {
	o := metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(name + "-uid")}
	if controller {
		o.Controller = new(true)
	}
	return o
}

func trainJob(name string) func(*Input) {
	return owners(ref("trainer.kubeflow.org/v1alpha1", "TrainJob", name, true))
}

func template(change func(*corev1.PodTemplateSpec)) func(*Input) {
	return func(in *Input) { change(&in.Workload.Spec.PodSets[0].Template) }
}

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

// full is the input of dispatch's TrainJob with everything that Build reads.
func full() Input {
	in := input(trainJob(ulidName), podSets("launcher", "node"))
	in.TrainJob = &trainer.TrainJob{}
	in.TrainJob.CreationTimestamp = metav1.NewTime(noon.In(time.FixedZone("X", 3600)))
	in.TryNumber, in.OfferCount, in.HeldSince = 4, 2, noon.Add(time.Hour).In(time.FixedZone("X", 3600))
	wl := in.Workload
	wl.CreationTimestamp = metav1.NewTime(noon.Add(time.Minute))
	wl.Spec.QueueName, wl.Spec.Priority, wl.Spec.MaximumExecutionTimeSeconds = "lq", new(int32(7)), new(int32(60))
	wl.Spec.PriorityClassRef = kueue.NewWorkloadPriorityClassRef("urgent")
	wl.Status.Admission = &kueue.Admission{ClusterQueue: "cq", PodSetAssignments: []kueue.PodSetAssignment{
		{Name: "launcher", Count: new(int32(1)), Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": "on-demand"}},
		{Name: "node", Count: new(int32(2)), Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": "spot", "nvidia.com/gpu": "a100"}},
	}}
	node := &wl.Spec.PodSets[1]
	node.Count = 3
	node.Template.Labels, node.Template.Annotations = strs{"l": "1"}, strs{"a": "1"}
	node.Template.Spec = corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", Image: "init:1"}},
		Containers: []corev1.Container{{Name: "proxy", Image: "proxy:1"}, {Name: "node", Image: "train:1", Resources: corev1.ResourceRequirements{
			Requests: list("cpu", "2", "memory", "1Gi", "ephemeral-storage", "3Gi", "nvidia.com/gpu", "8"),
			Limits:   list("cpu", "4", "memory", "2Gi", "ephemeral-storage", "4Gi", "nvidia.com/gpu", "8"),
		}}},
		NodeSelector: strs{"pool": "x"}, ServiceAccountName: "robot", PriorityClassName: "high",
		Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, Value: "v", TolerationSeconds: new(int64(9))}},
	}
	return in
}

func TestBuildFull(t *testing.T) {
	resources := admission.Resources{
		Requests: admission.Quantity{CPU: "2", Memory: "1Gi", EphemeralStorage: "3Gi"},
		Limits:   admission.Quantity{CPU: "4", Memory: "2Gi", EphemeralStorage: "4Gi"},
		Extended: strs{"nvidia.com/gpu": "8"},
	}
	want := &admission.Request{
		TenantID: "team", DagID: "dj-01j9zzzzzzzzzzzzzzzzzzzzzz", RunID: "s3", TaskID: "node", TryNumber: 4,
		Operator: "TrainJob", Image: "train:1", Resources: resources,
		Execution: admission.Execution{
			ServiceAccount: "robot", PriorityClassName: "high", NodeSelector: strs{"pool": "x"}, Labels: strs{"l": "1"}, Annotations: strs{"a": "1"},
			Tolerations: []admission.Toleration{{Key: "gpu", Operator: "Exists", Effect: "NoExecute", Value: "v", TolerationSeconds: new(int64(9))}},
		},
		ServiceAccountChosen: true, Namespace: "team", LocalQueue: "lq", ClusterQueue: "cq",
		Workload:         admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload", Name: "wl", UID: "wl-1"},
		Job:              admission.Object{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: ulidName, UID: ulidName + "-uid"},
		WorkloadPriority: 7, WorkloadPriorityClass: "urgent",
		PodSets: []admission.PodSet{
			{Name: "node", Count: 2, Resources: resources, Images: []string{"init:1", "proxy:1", "train:1"}, Flavors: strs{"cpu": "spot", "nvidia.com/gpu": "a100"}},
			{Name: "launcher", Count: 1, Images: []string{"launcher:1"}, Flavors: strs{"cpu": "on-demand"}},
		},
		MaxRunTimeSeconds: 60, CreationTime: noon, HeldSince: noon.Add(time.Hour), OfferCount: 2,
	}
	got := Build(full())
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A field that is new in the contract must not be forgotten here.
	for field, value := range reflect.ValueOf(*got).Fields() {
		if value.IsZero() && field.Name != "SourceMode" {
			t.Errorf("nothing fills %s", field.Name)
		}
	}
}

func TestBuildKinds(t *testing.T) {
	pod := func(name string) metav1.OwnerReference { return ref("v1", "Pod", name, false) }
	workload := admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload", Name: "wl", UID: "wl-1"}
	cases := map[string]struct {
		reason   string
		in       Input
		operator string
		job      admission.Object
		dag, run string
		main     string
	}{
		"Job": {
			reason: "one pod set, known by name and UID", in: input(owners(ref("batch/v1", "Job", "j", true))),
			operator: "Job", job: admission.Object{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "j-uid"}, dag: "j", run: "j-uid", main: "main",
		},
		"JobSet": {
			reason: "the first of several pod sets is the main one", in: input(owners(ref("jobset.x-k8s.io/v1alpha2", "JobSet", "js", true)), podSets("leader", "node")),
			operator: "JobSet", job: admission.Object{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "js", UID: "js-uid"}, dag: "js", run: "js-uid", main: "leader",
		},
		"RayJob": {
			reason: "the head comes first", in: input(owners(ref("ray.io/v1", "RayJob", "r", true)), podSets("head", "workers", "submitter")),
			operator: "RayJob", job: admission.Object{APIVersion: "ray.io/v1", Kind: "RayJob", Name: "r", UID: "r-uid"}, dag: "r", run: "r-uid", main: "head",
		},
		"TrainJobOfDispatch": {
			reason: "its name has both parts", in: input(trainJob(ulidName), podSets("dataset-initializer", "model-initializer", "node")),
			operator: "TrainJob", job: admission.Object{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: ulidName, UID: ulidName + "-uid"},
			dag: "dj-01j9zzzzzzzzzzzzzzzzzzzzzz", run: "s3", main: "node",
		},
		"TrainJob": {
			reason: "any other is known by name and UID", in: input(trainJob("tj"), podSets("launcher", "node")),
			operator: "TrainJob", job: admission.Object{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "tj", UID: "tj-uid"}, dag: "tj", run: "tj-uid", main: "node",
		},
		"JobWithDispatchName": {
			reason: "dispatch makes nothing but TrainJobs", in: input(owners(ref("batch/v1", "Job", ulidName, true))),
			operator: "Job", job: admission.Object{APIVersion: "batch/v1", Kind: "Job", Name: ulidName, UID: ulidName + "-uid"}, dag: ulidName, run: ulidName + "-uid", main: "main",
		},
		"ForeignTrainJob": {
			reason: "a namesake in another group", in: input(owners(ref("example.com/v1", "TrainJob", ulidName, true)), podSets("launcher", "node")),
			operator: "TrainJob", job: admission.Object{APIVersion: "example.com/v1", Kind: "TrainJob", Name: ulidName, UID: ulidName + "-uid"}, dag: ulidName, run: ulidName + "-uid", main: "launcher",
		},
		"BadAPIVersion": {
			reason: "a version that cannot be read is Trainer's least of all", in: input(owners(ref("a/b/c", "TrainJob", ulidName, true))),
			operator: "TrainJob", job: admission.Object{APIVersion: "a/b/c", Kind: "TrainJob", Name: ulidName, UID: ulidName + "-uid"}, dag: ulidName, run: ulidName + "-uid", main: "main",
		},
		"Pod": {
			reason: "one pod, also of a Deployment, is the controller", in: input(owners(ref("v1", "Pod", "p", true))),
			operator: "Pod", job: admission.Object{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p-uid"}, dag: "p", run: "p-uid", main: "main",
		},
		"PodGroup": {
			reason: "no pod stands for the group, and each may be replaced", in: input(owners(pod("p1"), pod("p2")), podSets("0a1b", "2c3d")),
			operator: "Pod", job: workload, dag: "wl", run: "wl-1", main: "0a1b",
		},
		"PodGroupOfOne": {
			reason: "the same", in: input(owners(pod("p1"))), operator: "Pod", job: workload, dag: "wl", run: "wl-1", main: "main",
		},
		"StatefulSet": {
			reason: "it owns the Workload beside its pods", in: input(owners(pod("s-0"), ref("apps/v1", "StatefulSet", "s", false), pod("s-1"))),
			operator: "StatefulSet", job: admission.Object{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "s", UID: "s-uid"}, dag: "s", run: "s-uid", main: "main",
		},
		"LeaderWorkerSet": {
			reason: "each of its groups is a Workload and an attempt of its own",
			in: input(owners(ref("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "l", false)), podSets("leader", "worker"),
				func(in *Input) { in.Workload.Annotations = strs{componentIndexAnnotation: "3"} }),
			operator: "LeaderWorkerSet", job: admission.Object{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "l", UID: "l-uid"}, dag: "l", run: "l-uid-3", main: "leader",
		},
		"ForeignPod": {
			reason: "a namesake in another group is an owner like any other", in: input(owners(ref("example.com/v1", "Pod", "p", false))),
			operator: "Pod", job: admission.Object{APIVersion: "example.com/v1", Kind: "Pod", Name: "p", UID: "p-uid"}, dag: "p", run: "p-uid", main: "main",
		},
		"Unowned": {reason: "made by hand, the Workload is the job", in: input(), operator: "Workload", job: workload, dag: "wl", run: "wl-1", main: "main"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := Build(tc.in)
			type facts struct {
				Operator, Tenant, Dag, Run, Task, Image, Main string
				Job, Workload                                 admission.Object
			}
			have := facts{got.Operator, got.TenantID, got.DagID, got.RunID, got.TaskID, got.Image, got.PodSets[0].Name, got.Job, got.Workload}
			want := facts{tc.operator, "team", tc.dag, tc.run, tc.main, tc.main + ":1", tc.main, tc.job, workload}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestBuildSmall: what is not there is empty, and nothing breaks.
func TestBuildSmall(t *testing.T) {
	got := Build(Input{Workload: &kueue.Workload{}})
	want := &admission.Request{
		Operator: "Workload",
		Workload: admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload"},
		Job:      admission.Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestBuildDetails(t *testing.T) {
	admitted := func(assignments ...kueue.PodSetAssignment) func(*Input) {
		return func(in *Input) { in.Workload.Status.Admission = &kueue.Admission{PodSetAssignments: assignments} }
	}
	spec := func(change func(*kueue.WorkloadSpec)) func(*Input) {
		return func(in *Input) { change(&in.Workload.Spec) }
	}
	cases := map[string]struct {
		reason string
		in     Input
		get    func(*admission.Request) any
		want   any
	}{
		"CountOfSpec": {
			reason: "before quota is reserved", in: input(spec(func(s *kueue.WorkloadSpec) { s.PodSets[0].Count = 5 })),
			get: func(r *admission.Request) any { return r.PodSets[0].Count }, want: 5,
		},
		"CountWithoutAssignment": {
			reason: "another pod set's assignment says nothing", in: input(spec(func(s *kueue.WorkloadSpec) { s.PodSets[0].Count = 5 }), admitted(kueue.PodSetAssignment{Name: "other", Count: new(int32(2))})),
			get: func(r *admission.Request) any { return r.PodSets[0].Count }, want: 5,
		},
		"CountOfOldAssignment": {
			reason: "an assignment need not have a count", in: input(spec(func(s *kueue.WorkloadSpec) { s.PodSets[0].Count = 5 }), admitted(kueue.PodSetAssignment{Name: "main"})),
			get: func(r *admission.Request) any { return r.PodSets[0].Count }, want: 5,
		},
		"PartialAdmission": {
			reason: "fewer pods than wanted", in: input(spec(func(s *kueue.WorkloadSpec) { s.PodSets[0].Count = 5 }), admitted(kueue.PodSetAssignment{Name: "main", Count: new(int32(2))})),
			get: func(r *admission.Request) any { return r.PodSets[0].Count }, want: 2,
		},
		"ScaledToZero": {
			reason: "zero is a count", in: input(admitted(kueue.PodSetAssignment{Name: "main", Count: new(int32(0))})),
			get: func(r *admission.Request) any { return r.PodSets[0].Count }, want: 0,
		},
		"PodPriorityClass": {
			reason: "the priority counts, but its class is one of pods",
			in: input(spec(func(s *kueue.WorkloadSpec) {
				s.Priority, s.PriorityClassRef = new(int32(9)), kueue.NewPodPriorityClassRef("pods")
			})),
			get: func(r *admission.Request) any { return [2]any{r.WorkloadPriority, r.WorkloadPriorityClass} }, want: [2]any{int32(9), ""},
		},
		"NoServiceAccount": {
			reason: "Kubernetes gives the default", in: input(),
			get: func(r *admission.Request) any { return [2]any{r.Execution.ServiceAccount, r.ServiceAccountChosen} }, want: [2]any{"default", false},
		},
		"DefaultServiceAccount": {
			reason: "the API server writes it into pods, so that it proves no choice",
			in:     input(template(func(t *corev1.PodTemplateSpec) { t.Spec.ServiceAccountName = "default" })),
			get:    func(r *admission.Request) any { return [2]any{r.Execution.ServiceAccount, r.ServiceAccountChosen} }, want: [2]any{"default", false},
		},
		"OldServiceAccount": {
			reason: "the old field alone will do", in: input(template(func(t *corev1.PodTemplateSpec) { t.Spec.DeprecatedServiceAccount = "old" })),
			get: func(r *admission.Request) any { return [2]any{r.Execution.ServiceAccount, r.ServiceAccountChosen} }, want: [2]any{"old", true},
		},
		"BothServiceAccounts": {
			reason: "the new field wins", in: input(template(func(t *corev1.PodTemplateSpec) {
				t.Spec.ServiceAccountName, t.Spec.DeprecatedServiceAccount = "new", "old"
			})),
			get: func(r *admission.Request) any { return [2]any{r.Execution.ServiceAccount, r.ServiceAccountChosen} }, want: [2]any{"new", true},
		},
		"WorkloadCreation": {
			reason: "of other kinds only the Workload is read", in: input(func(in *Input) { in.Workload.CreationTimestamp = metav1.NewTime(noon) }),
			get: func(r *admission.Request) any { return r.CreationTime }, want: noon,
		},
		"TrainJobWithoutTime": {
			reason: "the next best", in: input(trainJob("tj"), func(in *Input) {
				in.TrainJob, in.Workload.CreationTimestamp = &trainer.TrainJob{}, metav1.NewTime(noon)
			}),
			get: func(r *admission.Request) any { return r.CreationTime }, want: noon,
		},
		"AncestorLabel": {
			reason: "a runtime may call its trainer otherwise", in: input(trainJob("tj"), podSets("a", "b"), func(in *Input) {
				in.Workload.Spec.PodSets[1].Template.Labels = strs{ancestorLabel: ancestorTrainer}
			}),
			get: func(r *admission.Request) any { return r.TaskID }, want: "b",
		},
		"NodeFirst": {
			reason: "the name counts more than the label, which an MPI launcher may have", in: input(trainJob("tj"), podSets("node", "launcher"), func(in *Input) {
				in.Workload.Spec.PodSets[1].Template.Labels = strs{ancestorLabel: ancestorTrainer}
			}),
			get: func(r *admission.Request) any { return r.TaskID }, want: "node",
		},
		"NoTrainer": {
			reason: "then the first", in: input(trainJob("tj"), podSets("a", "b")),
			get: func(r *admission.Request) any { return r.TaskID }, want: "a",
		},
		"OwnerUnknown": {
			reason: "who gives a TrainJob says what it is", in: input(owners(ref("x/v9", "Alias", ulidName, true)), podSets("a", "node"), func(in *Input) { in.TrainJob = &trainer.TrainJob{} }),
			get: func(r *admission.Request) any { return r.TaskID + " " + r.RunID }, want: "node s3",
		},
		"DefaultContainer": {
			reason: "the annotation names the main container", in: input(template(func(t *corev1.PodTemplateSpec) {
				t.Annotations = strs{defaultContainerAnnotation: "main"}
				t.Spec.Containers = []corev1.Container{{Name: "sidecar", Image: "s"}, {Name: "main", Image: "m"}}
			})),
			get: func(r *admission.Request) any { return r.Image }, want: "m",
		},
		"DefaultContainerOfTrainJob": {
			reason: "more than Trainer's name", in: input(trainJob("tj"), template(func(t *corev1.PodTemplateSpec) {
				t.Annotations = strs{defaultContainerAnnotation: "main"}
				t.Spec.Containers = []corev1.Container{{Name: "node", Image: "n"}, {Name: "main", Image: "m"}}
			})),
			get: func(r *admission.Request) any { return r.Image }, want: "m",
		},
		"MissingDefaultContainer": {
			reason: "an annotation that names none is none", in: input(template(func(t *corev1.PodTemplateSpec) {
				t.Annotations = strs{defaultContainerAnnotation: "gone"}
				t.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}, {Name: "node", Image: "n"}}
			})),
			get: func(r *admission.Request) any { return r.Image }, want: "a",
		},
		"NoContainer": {
			reason: "nothing to name", in: input(template(func(t *corev1.PodTemplateSpec) { t.Spec.Containers = nil })),
			get: func(r *admission.Request) any { return r.Image }, want: "",
		},
		"Annotations": {
			reason: "all but the manifests", in: input(template(func(t *corev1.PodTemplateSpec) {
				t.Annotations = strs{"note": "n", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
			})),
			get: func(r *admission.Request) any {
				return r.Execution.Annotations["note"] + r.Execution.Annotations["kubectl.kubernetes.io/last-applied-configuration"]
			}, want: "n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.get(Build(tc.in))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestBuildTwice: equal inputs give equal bytes, the input is left alone, and a hook
// that scribbles in its request spoils no cache.
func TestBuildTwice(t *testing.T) {
	in, untouched := full(), full()
	first := Build(in)
	want, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	first.Execution.Labels["l"], first.Execution.NodeSelector["pool"], first.Execution.Annotations["a"] = "x", "y", "z"
	first.PodSets[0].Flavors["cpu"], first.PodSets[0].Images[0], *first.Execution.Tolerations[0].TolerationSeconds = "x", "y", 0
	for range 20 {
		got, err := json.Marshal(Build(in))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Fatalf("-first +again:\n%s", diff)
		}
	}
	if diff := cmp.Diff(untouched, in); diff != "" {
		t.Errorf("the input was changed (-want +got):\n%s", diff)
	}
}
