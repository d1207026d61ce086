package gate

import (
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
)

// ran tells whether pods of the TrainJob run, or may.
func ran(job *trainer.TrainJob) bool {
	return !suspended(job) || active(job)
}

// ended tells whether an earlier start has verifiably ended. That no pod is
// active proves nothing: right after a start, none is counted yet. Trainer must
// have taken note of the suspension, and JobSet must count suspended Jobs; else
// the next start may come so soon that the old Jobs are never stopped and their
// pods go on with the old A.
func ended(job *trainer.TrainJob, record fence.Record) bool {
	if record.Count == 0 || elsewhere(job) {
		return !active(job)
	}
	var paused int32
	for _, j := range job.Status.JobsStatus {
		if j.Suspended != nil {
			paused += *j.Suspended
		}
	}
	return !active(job) && paused > 0 && meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobSuspended)
}

// elsewhere tells whether another cluster runs the TrainJob, so that no Trainer
// here reports on it.
func elsewhere(job *trainer.TrainJob) bool {
	return job.Spec.ManagedBy != nil && *job.Spec.ManagedBy != ownController
}

// ownController is the managedBy of TrainJobs that Trainer runs itself.
const ownController = "trainer.kubeflow.org/trainjob-controller"

func suspended(job *trainer.TrainJob) bool {
	return job.Spec.Suspend != nil && *job.Spec.Suspend
}

// active tells whether Trainer counts active pods of the TrainJob.
func active(job *trainer.TrainJob) bool {
	for _, j := range job.Status.JobsStatus {
		if j.Active != nil && *j.Active > 0 {
			return true
		}
	}
	return false
}
