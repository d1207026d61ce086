package gate

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// Decide says what to do with a Workload. Time in the result comes from now
// and from the snapshot alone; an unchanged world gives an equal plan.
func Decide(s Snapshot, now time.Time) Plan {
	e := s.entries()
	phase := PhaseOf(s.Workload)
	if len(e.all) == 0 {
		return s.released(phase, now)
	}
	switch phase {
	case PhaseQueued:
		if len(e.retrying) > 0 {
			return s.unretry(e, hold.Read(s.Workload), Plan{Case: CasePark}, now)
		}
		return e.takeBack(CaseStale, MessageTakenBack, now)
	case PhaseEvicted:
		if !meta.IsStatusConditionTrue(s.Workload.Status.Conditions, v1alpha1.WorkloadHeld) {
			return Plan{Case: CaseNone}
		}
		return s.park(e, now)
	case PhaseReserved:
		return s.reserved(e, now)
	case PhaseAdmitted:
		return s.admitted(e, now)
	case PhaseEnded:
		if s.stuckInactive(e) {
			return s.unretry(e, hold.Read(s.Workload), Plan{Case: CasePark}, now)
		}
	}
	return Plan{Case: CaseNone}
}

// released handles a Workload that has no check of ours, or none any more.
func (s Snapshot) released(phase Phase, now time.Time) Plan {
	conditions := ourConditions(s.Workload)
	if phase == PhaseEnded || !meta.IsStatusConditionTrue(conditions, v1alpha1.WorkloadHeld) {
		return Plan{Case: CaseNone}
	}
	if phase == PhaseEvicted && s.parkedFor(hold.Read(s.Workload), now) {
		return Plan{Case: CaseUnpark, Unpark: true} // or Kueue would not look at it until then
	}
	setCondition(&conditions, v1alpha1.WorkloadHeld, metav1.ConditionFalse, reasonReleased, MessageReleased, now)
	return Plan{Case: CaseReleased, Checks: []kueue.AdmissionCheckState{}, Conditions: conditions, Message: MessageReleased}
}

// reserved handles a Workload that has quota and waits for its checks.
func (s Snapshot) reserved(e entries, now time.Time) Plan {
	owner := TrainJobOwner(s.Workload)
	book := hold.Read(s.Workload)
	switch {
	case len(e.retrying) > 0 || e.rejected:
		return Plan{Case: CaseNone} // it is Kueue's turn
	case !book.Park.IsZero() && s.parkedUntil().After(now):
		// It took quota while it was being parked, and Kueue would neither admit
		// nor evict it before that time.
		return Plan{Case: CaseUnpark, Unpark: true}
	case owner != nil && (s.TrainJob == nil || s.TrainJob.UID != owner.UID):
		// An answer that stands needs no owner.
		if len(e.pending) == 0 {
			return Plan{Case: CaseNone}
		}
		return Plan{Case: CaseOwnerGone}
	case owner == nil || !fence.IsDispatch(s.TrainJob):
		attempt := attemptOf(s.Workload, e.pending)
		return s.plain().serve(e, CaseNotGated, MessageNotGated, attempt, 1+max(0, int(attempt.Evictions)-book.Returned), now)
	}
	return s.dispatch(e, now)
}

// plain is the snapshot of a job whose pods are not waited for.
func (s Snapshot) plain() Snapshot {
	s.TrainJob = nil
	return s
}

// dispatch handles a reserved Workload of one of dispatch's TrainJobs.
func (s Snapshot) dispatch(e entries, now time.Time) Plan {
	attempt, jobs := attemptOf(s.Workload, e.pending), ReplicatedJobs(s.Workload)
	// A record that cannot be read matches no attempt.
	record, err := fence.Read(s.TrainJob)
	raised := record.MatchPending(jobs, attempt)
	if len(e.ready) > 0 {
		if raised = record.Match(jobs, attempt) && !s.Loss.hits(e.ready); !raised {
			return e.takeBack(CaseStale, MessageTakenBack, now)
		}
	}
	if raised && ran(s.TrainJob) {
		return e.void(now)
	}
	switch {
	case !e.servable():
		return e.answer(CaseNone, kueue.CheckStatePending, "", now)
	case !suspended(s.TrainJob):
		return e.answer(CaseRunning, kueue.CheckStatePending, MessageRunning, now)
	case err != nil:
		return e.answer(CaseBadRecord, kueue.CheckStatePending, messageBadRecord(err), now)
	case raised:
		s.first = record.Count == 1
		return s.serve(e, CaseRaised, MessageRaised, attempt, int(record.Count), now)
	}
	return s.raise(e, record, attempt, jobs, now)
}

// raise serves a Workload whose start needs a new A.
func (s Snapshot) raise(e entries, record fence.Record, attempt fence.Attempt, jobs []string, now time.Time) Plan {
	if !ended(s.TrainJob, record) {
		return e.answer(CaseOldPods, kueue.CheckStatePending, MessageOldPods, now).retry()
	}
	next, err := record.Next()
	if err != nil {
		return e.answer(CaseBadRecord, kueue.CheckStatePending, messageBadRecord(err), now)
	}
	s.first = record.Count == 0
	plan := s.serve(e, CaseRaise, MessageRaised, attempt, int(next), now)
	if len(plan.Opens) > 0 {
		plan.Raise = &fence.Raise{Count: next, Attempt: attempt, Jobs: jobs}
	}
	return plan
}

// admitted handles a Workload that runs.
func (s Snapshot) admitted(e entries, now time.Time) Plan {
	if len(e.pending) > 0 {
		return e.answer(CaseLate, kueue.CheckStateReady, MessageLate, now)
	}
	owner := TrainJobOwner(s.Workload)
	if owner == nil || s.TrainJob == nil || s.TrainJob.UID != owner.UID || !fence.IsDispatch(s.TrainJob) || !e.gated() {
		return Plan{Case: CaseNone}
	}
	attempt := attemptOf(s.Workload, nil)
	record, err := fence.Read(s.TrainJob)
	if err == nil && record.Match(ReplicatedJobs(s.Workload), attempt) && !s.Loss.hits(e.ready) {
		return Plan{Case: CaseNone}
	}
	return e.evictUngated(Plan{Case: CaseUngated, Attempt: attempt}, now)
}

// Refused is the plan after the TrainJob write of p was refused: the checks that
// were to open stay Pending and say why.
func (s Snapshot) Refused(p Plan, reason string, now time.Time) Plan {
	return s.closed(p, messageRefused(reason), now)
}

// Faulted is the plan while the writes of p keep failing: the checks that were to
// open stay Pending and say that it is not the job's fault.
func (s Snapshot) Faulted(p Plan, now time.Time) Plan {
	return s.closed(p, MessageFault, now)
}

func (s Snapshot) closed(p Plan, message string, now time.Time) Plan {
	e := s.entries()
	plan := Plan{Case: p.Case, Message: message, Wake: p.Wake, Conditions: e.conditions}
	plan.Checks = e.rewrite(kueue.CheckStatePending, func(entry *kueue.AdmissionCheckState) {
		if slices.Contains(p.Opens, entry.Name) {
			set(entry, kueue.CheckStatePending, message, now)
		}
	})
	return plan.retry()
}
