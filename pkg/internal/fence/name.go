// Package fence is the arithmetic of the admission count A: which TrainJobs
// carry one, where it is written, which attempt it was raised for and what the
// next one is.
//
// It is pure. It reads API objects and returns values, so that everything that
// decides whether two starts could share an A can be tested without a cluster.
package fence

import (
	"regexp"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// dispatchName is dj-<ULID>-s<N>. A ULID has 26 Crockford base32 characters,
// here in lower case; 130 bits hold its 128, so the first character is at most
// 7. The alphabet leaves out i, l, o and u.
var dispatchName = regexp.MustCompile(`^dj-[0-7][0-9a-hjkmnp-tv-z]{25}-s(0|[1-9][0-9]*)$`)

// IsDispatch tells whether a TrainJob belongs to dispatch: by its name, or by a
// runtime patch that dispatch's own adapter put there.
func IsDispatch(job *trainer.TrainJob) bool {
	return dispatchName.MatchString(job.Name) || slices.ContainsFunc(job.Spec.RuntimePatches,
		func(p trainer.RuntimePatch) bool { return p.Manager == v1alpha1.DispatchManager })
}
