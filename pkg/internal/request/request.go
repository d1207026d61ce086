// Package request says what a hook is told about an attempt.
//
// It is pure. What a hook sees depends on the objects alone, whatever kind of job
// they belong to, and tests can plant secrets everywhere in a pod and show that
// none comes out: no environment, argument, command or volume of a pod is ever
// read here. Slim cuts pod sets down to what is read, so that caches hold none of
// it either.
package request

import (
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Input is what a request is made from. Nothing in it is changed or kept.
type Input struct {
	// Workload is the one that waits for the hook; never nil.
	Workload *kueue.Workload
	// TrainJob is the owner of the Workload, nil if that is something else or not
	// known. It adds its creation time, its labels and its annotations.
	TrainJob *trainer.TrainJob
	// Names says where the names of the attempt come from.
	Names v1alpha1.AttemptNames
	// TryNumber counts the starts of the job, from 1.
	TryNumber int
	// HeldSince is when a hook first held the job; zero if none holds it.
	HeldSince time.Time
	// OfferCount counts the offers of this attempt, from 1.
	OfferCount int
}

// Build makes the request that a hook is asked with. It shares no memory with in,
// and equal inputs make equal requests.
//
// The order of the pod sets is that of the Workload, with the main one first, see
// mainPodSet. Resources are those that Kueue counts against quota: what a container
// does not request counts with its limit. What only the cluster knows, the defaults
// of a LimitRange and the overhead of a RuntimeClass that is not in the pod spec
// yet, is not included. SourceMode is always false, because no object tells.
// Annotations that may repeat a manifest, with the environment in it, are left out;
// see withholds.
func Build(in Input) *admission.Request {
	wl, job := in.Workload, jobOf(in)
	sets := mainFirst(wl.Spec.PodSets, job.isTrainJob)
	req := &admission.Request{
		TryNumber:         in.TryNumber,
		Operator:          job.operator,
		Namespace:         wl.Namespace,
		LocalQueue:        string(wl.Spec.QueueName),
		Workload:          workloadObject(wl),
		Job:               job.object,
		MaxRunTimeSeconds: int64(deref(wl.Spec.MaximumExecutionTimeSeconds)),
		CreationTime:      creationTime(in),
		HeldSince:         in.HeldSince.UTC(),
		OfferCount:        in.OfferCount,
	}
	setPriority(req, &wl.Spec)
	setPodSets(req, sets, wl.Status.Admission)
	if len(sets) > 0 {
		setMain(req, sets[0], job.isTrainJob)
	}
	setNames(req, in, job, sets)
	return req.Clone()
}

func setPriority(req *admission.Request, spec *kueue.WorkloadSpec) {
	req.WorkloadPriority = deref(spec.Priority)
	// The priority of a Workload may come from the class of its pods instead,
	// which Execution has.
	if ref := spec.PriorityClassRef; ref != nil && ref.Group == kueue.WorkloadPriorityClassGroup {
		req.WorkloadPriorityClass = ref.Name
	}
}

func setPodSets(req *admission.Request, sets []*kueue.PodSet, a *kueue.Admission) {
	var assignments []kueue.PodSetAssignment
	if a != nil {
		req.ClusterQueue, assignments = string(a.ClusterQueue), a.PodSetAssignments
	}
	for _, ps := range sets {
		set := podSet(ps)
		i := slices.IndexFunc(assignments, func(a kueue.PodSetAssignment) bool { return a.Name == ps.Name })
		if i >= 0 {
			assign(&set, &assignments[i])
		}
		req.PodSets = append(req.PodSets, set)
	}
}

// setMain describes one pod of the main pod set.
func setMain(req *admission.Request, ps *kueue.PodSet, isTrainJob bool) {
	req.Image = mainImage(&ps.Template, isTrainJob)
	req.Resources = podResources(&ps.Template.Spec)
	req.Execution = execution(&ps.Template)
	req.ServiceAccountChosen = req.Execution.ServiceAccount != defaultServiceAccount
}

// creationTime is the TrainJob's. Of other kinds only the Workload is read, which
// Kueue makes right after the job.
func creationTime(in Input) time.Time {
	if in.TrainJob != nil && !in.TrainJob.CreationTimestamp.IsZero() {
		return in.TrainJob.CreationTimestamp.UTC()
	}
	return in.Workload.CreationTimestamp.UTC()
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
