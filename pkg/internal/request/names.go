package request

import (
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
)

// componentIndexAnnotation numbers the Workloads of a job that has several, such as
// the groups of a LeaderWorkerSet.
const componentIndexAnnotation = "kueue.x-k8s.io/component-workload-index"

// setNames names the attempt: as the operator mapped the names, with the defaults of
// v1alpha1.AttemptNames for what is not mapped and for what the job does not have.
// Hooks book under these names, so they must tell any two attempts apart.
func setNames(req *admission.Request, in Input, j job, sets []*kueue.PodSet) {
	places := places(in, sets)
	dag, run := runOf(in.Workload, j)
	task := ""
	if len(sets) > 0 {
		task = string(sets[0].Name)
	}
	req.TenantID = find(in.Names.TenantID, places, in.Workload.Namespace)
	req.DagID = find(in.Names.DagID, places, dag)
	req.RunID = find(in.Names.RunID, places, run)
	req.TaskID = find(in.Names.TaskID, places, task)
}

// runOf splits the name of dispatch's TrainJob, dj-<ULID>-s<N>. Any other job is
// known by its name and UID. Where a job has several Workloads, their number goes
// with the UID; else they would be one attempt.
func runOf(wl *kueue.Workload, j job) (dag, run string) {
	name := j.object.Name
	if j.isTrainJob && hasDispatchName(name) {
		cut := strings.LastIndexByte(name, '-')
		return name[:cut], name[cut+1:]
	}
	if index := wl.Annotations[componentIndexAnnotation]; index != "" {
		return name, j.object.UID + "-" + index
	}
	return name, j.object.UID
}

func hasDispatchName(name string) bool {
	job := &trainer.TrainJob{}
	job.Name = name
	return fence.IsDispatch(job)
}

// place is where a name may be found.
type place struct{ labels, annotations map[string]string }

// name is what a place has, and empty if it has nothing.
func (p place) name(source *v1alpha1.NameSource) string {
	if source.Label != "" {
		return p.labels[source.Label]
	}
	value := p.annotations[source.Annotation]
	if source.Annotation == "" || withholds(source.Annotation, value) {
		return ""
	}
	return value
}

// places are the main pod set's template, the TrainJob and the Workload, the
// nearest to the pods first.
func places(in Input, sets []*kueue.PodSet) []place {
	var all []place
	if len(sets) > 0 {
		all = append(all, place{sets[0].Template.Labels, sets[0].Template.Annotations})
	}
	if in.TrainJob != nil {
		all = append(all, place{in.TrainJob.Labels, in.TrainJob.Annotations})
	}
	return append(all, place{in.Workload.Labels, in.Workload.Annotations})
}

// find looks for a name. An empty value is no name.
func find(source *v1alpha1.NameSource, places []place, fallback string) string {
	if source == nil {
		return fallback
	}
	for _, p := range places {
		if name := p.name(source); name != "" {
			return name
		}
	}
	return fallback
}
