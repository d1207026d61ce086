package gate

import (
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// Snapshot is everything one decision rests on.
type Snapshot struct {
	Workload *kueue.Workload
	// Checks are the AdmissionChecks of ours that exist.
	Checks map[kueue.AdmissionCheckReference]Check
	// TrainJob has the name that the Workload's owner reference gives, whatever
	// its UID; nil if there is none.
	TrainJob *trainer.TrainJob
	// Loss is the last loss of quota that was seen; nil if none was.
	Loss Loss
	// Answers are what hooks have said, by check.
	Answers map[kueue.AdmissionCheckReference]Answer
	// Flavors are the ResourceFlavors that were assigned to the Workload.
	Flavors map[kueue.ResourceFlavorReference]*kueue.ResourceFlavor
	// Crowded tells whether others wait for quota that the Workload may sit on.
	Crowded bool
	// Detached: the ClusterQueue that a held Workload gave its quota back to names
	// none of the checks that hold it any more.
	Detached bool
	// Pods is the metadata of the pods that the Workload was made for, if a hook
	// chose labels or annotations for them; PodsUnknown is why it is not known.
	Pods        []metav1.ObjectMeta
	PodsUnknown string
	// Remains are what is left of earlier starts of the TrainJob.
	Remains Remains

	// first: the TrainJob has had no earlier start.
	first bool
}

// Case names what was found.
type Case string

const (
	// CaseNone: nothing of ours, or nothing to do now.
	CaseNone Case = "None"
	// CaseNotGated: the Workload is not made for a TrainJob of dispatch.
	CaseNotGated Case = "NotGated"
	// CaseOwnerGone: the TrainJob does not exist or is another one of the same
	// name. Kueue or the garbage collector will act.
	CaseOwnerGone Case = "OwnerGone"
	// CaseRunning: the TrainJob is not suspended although its Workload still
	// waits. That must never be.
	CaseRunning Case = "Running"
	// CaseUsed: the TrainJob ran with an A that was raised for this attempt,
	// although its Workload waited. That A is used up. Once seen, this is a fact;
	// only the Workload may be further than we know, and then the write fails.
	CaseUsed Case = "Used"
	// CaseOldPods: an earlier start has not verifiably ended, and Trainer might
	// refuse the new count.
	CaseOldPods Case = "OldPods"
	// CaseBadRecord: the admission count of the TrainJob cannot be read.
	CaseBadRecord Case = "BadRecord"
	// CaseRaise: A is to be raised, then the checks are to be answered.
	CaseRaise Case = "Raise"
	// CaseRaised: A has been raised for this attempt; the checks are to be
	// answered.
	CaseRaised Case = "Raised"
	// CaseStale: an answer given for an earlier attempt is to be taken back.
	CaseStale Case = "Stale"
	// CaseLate: the check appeared when the Workload was already running.
	CaseLate Case = "Late"
	// CaseUngated: Kueue started the Workload although A was not raised for
	// the attempt.
	CaseUngated Case = "Ungated"
	// CasePark: a held Workload has given its quota back and is kept out of the
	// queue until its next offer.
	CasePark Case = "Park"
	// CaseUnpark: what a Workload without quota was held for may hold no more.
	CaseUnpark Case = "Unpark"
	// CaseReleased: the check that held the Workload is no more.
	CaseReleased Case = "Released"
)

// NeedsFreshTrainJob marks findings that a lagging informer of TrainJobs could
// fake. They are rare, so they are worth a read from the API server before
// anything is said about them.
func (c Case) NeedsFreshTrainJob() bool {
	return c == CaseRunning || c == CaseUngated || c == CaseOwnerGone
}

// Plan is what is to be asked and written: first the TrainJob or the holds, then
// the checks, at most two writes.
type Plan struct {
	Case Case
	// Raise is the write to the TrainJob; nil if there is none. The checks may
	// be written only after it succeeded.
	Raise *fence.Raise
	// Book is the write to the Workload's annotation; nil if there is none.
	Book *hold.Book
	// Checks are all entries of ours as they should be, and Conditions our
	// conditions; Checks is nil if they are so.
	Checks     []kueue.AdmissionCheckState
	Conditions []metav1.Condition
	// Opens are the checks that become Ready.
	Opens []kueue.AdmissionCheckReference
	// Unpark lets Kueue offer the Workload at once.
	Unpark bool
	// Ask are the questions to hooks. Answered are the checks whose answers the
	// plan has used.
	Ask      []Question
	Answered []kueue.AdmissionCheckReference
	// Tell is what to tell after the writes.
	Tell []Told
	// Wake is when the Workload needs another look; zero if an event will tell.
	Wake time.Time
	// Message is what the checks are to say.
	Message string
	// Attempt is the attempt that was found ungated.
	Attempt fence.Attempt
	// Retry asks for another look with backoff, because what is waited for may
	// change without an event.
	Retry bool
}

// idle tells whether there is nothing to do but perhaps to wake.
func (p Plan) idle() bool {
	return p.Raise == nil && p.Book == nil && p.Checks == nil && !p.Unpark && len(p.Ask) == 0
}

// Settled is the plan for a finding that has been confirmed and told: what is
// left of it to write.
func (p Plan) Settled() Plan {
	if p.Checks == nil {
		return Plan{Case: CaseNone}
	}
	return p
}

func (p Plan) retry() Plan {
	p.Retry = true
	return p
}
