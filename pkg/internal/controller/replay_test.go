package controller

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// replay is a cluster too large for a real control plane on one machine: it streams
// objects to whoever watches, and never changes. It takes no write.
type replay struct {
	// workloads is how many Workloads there are, waiting how many of them, the first,
	// wait with quota for the check. Those have a TrainJob; the rest run.
	workloads, waiting int
}

// start serves the cluster until the benchmark ends and returns its address.
func (r replay) start(b *testing.B) string {
	b.Helper()
	server := httptest.NewServer(r)
	b.Cleanup(server.Close)
	return server.URL
}

// ServeHTTP answers a watch from the beginning, as informers ask for it: all objects,
// a bookmark, then silence.
func (r replay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet || req.URL.Query().Get("sendInitialEvents") != "true" {
		http.Error(w, "only watches that begin with all objects are served here", http.StatusBadRequest)
		return
	}
	_, plural, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/apis/"), "/")
	_, plural, _ = strings.Cut(plural, "/")
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	out := json.NewEncoder(w)
	send := func(kind string, object any) bool {
		return out.Encode(map[string]any{"type": kind, "object": object}) == nil
	}
	version, kind := "", ""
	for o := range r.objects(plural) {
		version, kind = o.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
		if !send("ADDED", o) {
			return
		}
	}
	if kind == "" {
		version, kind = strings.TrimSuffix(strings.TrimPrefix(req.URL.Path, "/apis/"), "/"+plural), kinds[plural]
	}
	send("BOOKMARK", map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{
		"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	_ = http.NewResponseController(w).Flush()
	<-req.Context().Done()
}

// kinds are those of which there may be no object.
var kinds = map[string]string{"clusterqueues": "ClusterQueue", "resourceflavors": "ResourceFlavor", "admissiongates": "AdmissionGate",
	"workloads": "Workload", "trainjobs": "TrainJob"}

func (r replay) objects(plural string) iter.Seq[client.Object] {
	return func(yield func(client.Object) bool) {
		switch plural {
		case "admissionchecks":
			yield(replayedCheck())
		case "workloads":
			for i := range r.workloads {
				if !yield(replayedWorkload(i, i < r.waiting)) {
					return
				}
			}
		case "trainjobs":
			for i := range r.waiting {
				if !yield(replayedTrainJob(i)) {
					return
				}
			}
		}
	}
}

func replayedMeta(kind string, i int) metav1.ObjectMeta {
	name := fmt.Sprintf("dj-%026d-s1", i)
	return metav1.ObjectMeta{
		Name: name, Namespace: fmt.Sprintf("team-%d", i%50), UID: types.UID(fmt.Sprintf("%s-%08x-0000-4000-8000-000000000000", kind, i)),
		ResourceVersion: "1", Generation: 1, CreationTimestamp: metav1.Unix(1, 0),
		Labels:      map[string]string{"kueue.x-k8s.io/queue-name": "lq", "team": "vision", "project": "night-runs"},
		Annotations: map[string]string{"example.com/submitted-by": "somebody@example.com"},
	}
}

func replayedCheck() *kueue.AdmissionCheck {
	check := &kueue.AdmissionCheck{Spec: kueue.AdmissionCheckSpec{ControllerName: v1alpha1.ControllerName}}
	check.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("AdmissionCheck"))
	check.Name, check.UID, check.ResourceVersion, check.Generation = "ours", "check-1", "1", 1
	want, _ := activeCondition(check, "")
	want.LastTransitionTime = metav1.Unix(1, 0)
	check.Status.Conditions = []metav1.Condition{want}
	return check
}

// replayedWorkload runs, or waits with quota until an earlier start has stopped, as
// the gate has told.
func replayedWorkload(i int, waits bool) *kueue.Workload {
	yes := true
	owner := replayedMeta("trainjob", i)
	wl := &kueue.Workload{ObjectMeta: replayedMeta("workload", i)}
	wl.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("Workload"))
	wl.OwnerReferences = []metav1.OwnerReference{{APIVersion: trainer.GroupVersion.String(), Kind: "TrainJob", Name: owner.Name, UID: owner.UID, Controller: &yes}}
	wl.ManagedFields = replayedManagers()
	wl.Spec = kueue.WorkloadSpec{QueueName: "lq", PodSets: []kueue.PodSet{{Name: "node", Count: 4, Template: replayedPods()}}}
	state, message := kueue.CheckStateReady, gate.MessageRaised
	conditions := []string{kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted, kueue.WorkloadPodsReady}
	if waits {
		state, message, conditions = kueue.CheckStatePending, gate.MessageOldPods, conditions[:1]
	}
	for _, kind := range conditions {
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: kind, LastTransitionTime: metav1.Unix(10, 0),
			Message: "Quota reserved in ClusterQueue training", ObservedGeneration: 1})
	}
	wl.Status.Admission = &kueue.Admission{ClusterQueue: "training", PodSetAssignments: []kueue.PodSetAssignment{{
		Name: "node", Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{corev1.ResourceCPU: "default", "nvidia.com/gpu": "h100"},
		ResourceUsage: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), "nvidia.com/gpu": resource.MustParse("32")}}}}
	wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "ours", State: state, Message: message, LastTransitionTime: metav1.Unix(9, 0)}}
	return wl
}

func replayedTrainJob(i int) *trainer.TrainJob {
	yes, one, none := true, int32(1), int32(0)
	job := &trainer.TrainJob{ObjectMeta: replayedMeta("trainjob", i)}
	job.SetGroupVersionKind(trainer.GroupVersion.WithKind("TrainJob"))
	job.ManagedFields = replayedManagers()
	job.Spec = trainer.TrainJobSpec{RuntimeRef: trainer.RuntimeRef{Name: "torch"}, Suspend: &yes, Trainer: &trainer.Trainer{Env: replayedEnv()}}
	job.Status.JobsStatus = []trainer.JobStatus{{Name: "node", Ready: &one, Succeeded: &none, Failed: &none, Active: &one, Suspended: &none}}
	return job
}

// replayedPods are the pods of a training job as people write them.
func replayedPods() corev1.PodTemplateSpec {
	resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("256Gi"), "nvidia.com/gpu": resource.MustParse("8")}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "vision"}, Annotations: map[string]string{"example.com/note": strings.Repeat("n", 200)}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "trainer", PriorityClassName: "batch", NodeSelector: map[string]string{"pool": "h100"},
			Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "node", Image: "example.com/train:1", Command: []string{"torchrun"}, Args: strings.Fields(strings.Repeat("--flag=value ", 40)),
				Env: replayedEnv(), Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
			}},
		},
	}
}

func replayedEnv() []corev1.EnvVar {
	var env []corev1.EnvVar
	for i := range 60 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", i), Value: strings.Repeat("v", 40)})
	}
	return env
}

func replayedManagers() []metav1.ManagedFieldsEntry {
	var managers []metav1.ManagedFieldsEntry
	for _, name := range []string{"kueue", "kueue-admission", "dispatch-admission"} {
		managers = append(managers, metav1.ManagedFieldsEntry{Manager: name, Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:x":{` + strings.TrimSuffix(strings.Repeat(`"f:yyyyyyyyyyyyyyyy":{},`, 40), ",") + `}}}`)})
	}
	return managers
}
