package admission

import (
	"slices"
	"time"
)

// Request describes one attempt: one offer of a job to start.
//
// Image, Resources and Execution describe one pod of the main pod set, which
// is the first of PodSets. Text that is not known is empty.
type Request struct {
	// TenantID, DagID, RunID and TaskID name the attempt. For a job that no
	// workflow server made they are its namespace, job name, job UID and main
	// pod set, unless the operator mapped them otherwise.
	TenantID string `json:"tenantID"`
	DagID    string `json:"dagID"`
	RunID    string `json:"runID"`
	TaskID   string `json:"taskID"`

	// TryNumber counts the starts of the job, from 1.
	TryNumber int `json:"tryNumber"`

	// Operator is the kind of task, in the words of the server that made it.
	Operator string `json:"operator,omitempty"`

	// Image is the image of the main container.
	Image string `json:"image,omitempty"`

	// SourceMode says that the task's source travels beside the image instead
	// of inside it.
	SourceMode bool `json:"sourceMode"`

	// Resources are those of one pod.
	Resources Resources `json:"resources"`

	// Execution says where and as whom the pods run.
	Execution Execution `json:"execution"`

	// ServiceAccountChosen is false when Execution.ServiceAccount is the
	// default of the server and not the choice of the task.
	ServiceAccountChosen bool `json:"serviceAccountChosen"`

	// Namespace is the Kubernetes namespace of the job.
	Namespace string `json:"namespace,omitempty"`

	// LocalQueue and ClusterQueue are the queues that the job waits in.
	LocalQueue   string `json:"localQueue,omitempty"`
	ClusterQueue string `json:"clusterQueue,omitempty"`

	// Workload is the queue's object for the job. Kueue may delete it and
	// make another one for the same Job.
	Workload Object `json:"workload"`

	// Job is the object that the owner of the job created.
	Job Object `json:"job"`

	// WorkloadPriority orders jobs in the queue, higher first; 0 when no
	// class was chosen. It is not the priority of the pods.
	WorkloadPriority int32 `json:"workloadPriority"`

	// WorkloadPriorityClass is the class that WorkloadPriority came from.
	WorkloadPriorityClass string `json:"workloadPriorityClass,omitempty"`

	// PodSets are all groups of equal pods of the job, the main one first.
	PodSets []PodSet `json:"podSets,omitempty"`

	// MaxRunTimeSeconds is the limit of the job's run time; 0 means no limit.
	MaxRunTimeSeconds int64 `json:"maxRunTimeSeconds,omitempty"`

	// CreationTime is when the job was created; zero when not known. For kinds
	// of job that the caller does not read, it is when Workload was created:
	// right after the job, or later if the queue had to make another one.
	CreationTime time.Time `json:"creationTime,omitzero"`

	// HeldSince is when a hook first held this job without having admitted it
	// since; zero when it is not held.
	HeldSince time.Time `json:"heldSince,omitzero"`

	// OfferCount counts how often this attempt has been offered, this time
	// included: 1 at the first offer, 2 after one Hold. It is a lower bound,
	// because a restart of the caller may forget some.
	OfferCount int `json:"offerCount,omitempty"`
}

// Object names a Kubernetes object. UID is unique for ever, Name is not.
type Object struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name,omitempty"`
	UID        string `json:"uid,omitempty"`
}

// PodSet is a group of equal pods of one job.
type PodSet struct {
	// Name is unique within the job.
	Name string `json:"name"`

	// Count is the number of pods.
	Count int `json:"count"`

	// Resources are those of one pod.
	Resources Resources `json:"resources"`

	// Images are those of all containers of one pod, in the order of the
	// template: init containers first, then containers. Equal images repeat.
	Images []string `json:"images,omitempty"`

	// Flavors maps a resource name, such as "cpu" or "nvidia.com/gpu", to the
	// ResourceFlavor whose quota was reserved for it. Empty before that.
	Flavors map[string]string `json:"flavors,omitempty"`
}

// Resources are the requests and limits of one pod.
type Resources struct {
	Requests Quantity `json:"requests"`
	Limits   Quantity `json:"limits"`

	// Extended maps every other resource, such as "nvidia.com/gpu", to the
	// quantity one pod requests. Kubernetes wants their limits to be equal.
	Extended map[string]string `json:"extended,omitempty"`
}

// Quantity holds Kubernetes quantities, such as "500m", "8" or "16Gi"; empty
// means not set. [Units] and [MilliUnits] read one.
type Quantity struct {
	CPU              string `json:"cpu,omitempty"`
	Memory           string `json:"memory,omitempty"`
	EphemeralStorage string `json:"ephemeralStorage,omitempty"`
}

// Execution says where and as whom the pods run. The server's default service
// account is applied already; Request.ServiceAccountChosen tells.
type Execution struct {
	ServiceAccount    string            `json:"serviceAccount,omitempty"`
	PriorityClassName string            `json:"priorityClassName,omitempty"`
	NodeSelector      map[string]string `json:"nodeSelector,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	Tolerations       []Toleration      `json:"tolerations,omitempty"`
}

// Clone returns a copy of r that shares no map, slice or pointer with it.
func (r *Request) Clone() *Request {
	c := *r
	c.Resources = r.Resources.clone()
	c.Execution = r.Execution.clone()
	c.PodSets = clonePodSets(r.PodSets)
	return &c
}

func (r Resources) clone() Resources {
	r.Extended = cloneMap(r.Extended)
	return r
}

func (e Execution) clone() Execution {
	e.NodeSelector = cloneMap(e.NodeSelector)
	e.Labels = cloneMap(e.Labels)
	e.Annotations = cloneMap(e.Annotations)
	e.Tolerations = cloneTolerations(e.Tolerations)
	return e
}

func clonePodSets(sets []PodSet) []PodSet {
	if len(sets) == 0 {
		return nil
	}
	out := slices.Clone(sets)
	cloneImages(out)
	for i := range out {
		out[i].Resources = out[i].Resources.clone()
		out[i].Flavors = cloneMap(out[i].Flavors)
	}
	return out
}

// cloneImages gives the sets images of their own, all from one array. None can
// grow into those of the next.
func cloneImages(sets []PodSet) {
	n := 0
	for _, s := range sets {
		n += len(s.Images)
	}
	all := make([]string, 0, n)
	for i := range sets {
		start := len(all)
		all = append(all, sets[i].Images...)
		sets[i].Images = nil
		if start < len(all) {
			sets[i].Images = slices.Clip(all[start:])
		}
	}
}
