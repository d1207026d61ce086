package fence

import (
	"fmt"
	"iter"
	"math"
	"strconv"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// Record is what a TrainJob says of its admission count.
type Record struct {
	// Count is the highest A found, 0 where there is none.
	Count int64
	// jobs has the count and the attempt of each replicated job that carries
	// both.
	jobs map[string]stamp
}

type stamp struct {
	count   int64
	attempt Attempt
}

// Read finds the record of a TrainJob.
//
// A count that is no positive integer is an error: guessing would risk a
// repeated A. An attempt that cannot be read is not: the count is then raised
// once more, and a gap is harmless. It is an error, too, if a later runtime
// patch sets the annotation, because Trainer lets the later patch win and the
// pods would carry a foreign A.
func Read(job *trainer.TrainJob) (Record, error) {
	rec := Record{jobs: map[string]stamp{}}
	found := false
	for _, patch := range job.Spec.RuntimePatches {
		ours := patch.Manager == v1alpha1.AdmissionManager
		found = found || ours
		for name, annotations := range podAnnotations(patch) {
			value, ok := annotations[v1alpha1.AdmissionCountAnnotation]
			if !ok {
				continue
			}
			switch {
			case ours:
				if err := rec.add(name, value, annotations[v1alpha1.AdmissionAttemptAnnotation]); err != nil {
					return Record{}, err
				}
			case found:
				return Record{}, fmt.Errorf("the runtime patch of manager %q sets the annotation %s of replicated job %q and would hide the admission count; remove it there",
					patch.Manager, v1alpha1.AdmissionCountAnnotation, name)
			}
		}
	}
	return rec, nil
}

func (r *Record) add(job, value, attempt string) error {
	count, err := strconv.ParseInt(value, 10, 64)
	if err != nil || count < 1 {
		return fmt.Errorf("the annotation %s of replicated job %q is %q, not a positive integer; restore it to the last admission count that its pods carried",
			v1alpha1.AdmissionCountAnnotation, job, value)
	}
	r.Count = max(r.Count, count)
	// An attempt that cannot be read matches none.
	a, _ := ParseAttempt(attempt)
	r.jobs[job] = stamp{count: count, attempt: a}
	return nil
}

// Match tells whether every replicated job carries the highest A, raised for
// the same reservation. It is the question to ask when one of our checks has
// been answered for that reservation.
func (r Record) Match(jobs []string, a Attempt) bool {
	return r.all(jobs, func(s stamp) bool { return s.attempt.SameReservation(a) })
}

// MatchPending is Match while all our checks are Pending. An A that was handed
// out with an answer since taken back is used up, so the attempt must also
// agree in how long the checks have been Pending.
func (r Record) MatchPending(jobs []string, a Attempt) bool {
	return r.all(jobs, func(s stamp) bool { return s.attempt == a })
}

func (r Record) all(jobs []string, ok func(stamp) bool) bool {
	for _, job := range jobs {
		s, found := r.jobs[job]
		if !found || s.count != r.Count || !ok(s) {
			return false
		}
	}
	return len(jobs) > 0
}

// Next is the A after this record's.
func (r Record) Next() (int64, error) {
	if r.Count == math.MaxInt64 {
		return 0, fmt.Errorf("the admission count %d cannot be raised any further", r.Count)
	}
	return r.Count + 1, nil
}

// Raise is one raise of A, ready to be written.
type Raise struct {
	// Count is the new A.
	Count int64
	// Attempt is what it is raised for.
	Attempt Attempt
	// Jobs are the replicated jobs whose pods carry it.
	Jobs []string
}

// Patch is the server-side apply that raises A in job. It has our own runtime
// patch and nothing else, so that every other field, known to these types or
// not, stays as it is. The API server refuses it if the TrainJob is not as it
// was read, or is another one of the same name.
func (r Raise) Patch(job *trainer.TrainJob) *unstructured.Unstructured {
	annotations := map[string]any{
		v1alpha1.AdmissionCountAnnotation:   strconv.FormatInt(r.Count, 10),
		v1alpha1.AdmissionAttemptAnnotation: r.Attempt.String(),
	}
	replicated := make([]any, 0, len(r.Jobs))
	for _, name := range r.Jobs {
		replicated = append(replicated, nest(map[string]any{"name": name},
			map[string]any{"annotations": annotations}, "template", "spec", "template", "metadata"))
	}
	patch := nest(map[string]any{"manager": v1alpha1.AdmissionManager},
		map[string]any{"replicatedJobs": replicated}, "trainingRuntimeSpec", "template", "spec")
	u := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"runtimePatches": []any{patch}},
	}}
	u.SetGroupVersionKind(trainer.SchemeGroupVersion.WithKind("TrainJob"))
	u.SetNamespace(job.Namespace)
	u.SetName(job.Name)
	u.SetUID(job.UID)
	u.SetResourceVersion(job.ResourceVersion)
	return u
}

// nest puts value below base at the given path and returns base.
func nest(base map[string]any, value any, path ...string) map[string]any {
	at := base
	for _, key := range path[:len(path)-1] {
		next := map[string]any{}
		at[key] = next
		at = next
	}
	at[path[len(path)-1]] = value
	return base
}

// podAnnotations yields, per replicated job and in their order, the pod template
// annotations that a runtime patch sets.
func podAnnotations(patch trainer.RuntimePatch) iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		spec := patch.TrainingRuntimeSpec
		if spec == nil || spec.Template == nil || spec.Template.Spec == nil {
			return
		}
		for _, job := range spec.Template.Spec.ReplicatedJobs {
			t := job.Template
			if t == nil || t.Spec == nil || t.Spec.Template == nil || t.Spec.Template.Metadata == nil {
				continue
			}
			if !yield(job.Name, t.Spec.Template.Metadata.Annotations) {
				return
			}
		}
	}
}
