package gate

import (
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
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
}

// Check is what the gate knows of one AdmissionCheck of ours.
type Check struct {
	// Broken says why Workloads cannot be served through this check; empty if
	// they can.
	Broken string
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
)

// NeedsFreshTrainJob marks findings that a lagging informer of TrainJobs could
// fake. They are rare, so they are worth a read from the API server before
// anything is said about them.
func (c Case) NeedsFreshTrainJob() bool {
	return c == CaseRunning || c == CaseUngated || c == CaseOwnerGone
}

// Plan is what is to be written: first the TrainJob, then the Workload.
type Plan struct {
	Case Case
	// Raise is the write to the TrainJob; nil if there is none. The checks may
	// be written only after it succeeded.
	Raise *fence.Raise
	// Checks are all entries of ours as they should be; nil if they are so.
	Checks []kueue.AdmissionCheckState
	// Message is what the checks are to say.
	Message string
	// Attempt is the attempt that was found ungated.
	Attempt fence.Attempt
	// Retry asks for another look with backoff, because what is waited for may
	// change without an event.
	Retry bool
}

// Decide says what to do with a Workload. Time in the result comes from now
// and from the snapshot alone; an unchanged world gives an equal plan.
func Decide(s Snapshot, now time.Time) Plan {
	e := s.entries()
	if len(e.all) == 0 {
		return Plan{Case: CaseNone}
	}
	switch PhaseOf(s.Workload) {
	case PhaseQueued:
		return e.takeBack(CaseStale, MessageTakenBack, now)
	case PhaseReserved:
		return s.reserved(e, now)
	case PhaseAdmitted:
		return s.admitted(e, now)
	case PhaseEnded:
	}
	return Plan{Case: CaseNone}
}

// reserved handles a Workload that has quota and waits for its checks.
func (s Snapshot) reserved(e entries, now time.Time) Plan {
	owner := TrainJobOwner(s.Workload)
	switch {
	case owner == nil:
		return e.answer(CaseNotGated, kueue.CheckStateReady, MessageNotGated, now)
	case s.TrainJob == nil, s.TrainJob.UID != owner.UID:
		// An answer that stands needs no owner.
		if len(e.pending) == 0 {
			return Plan{Case: CaseNone}
		}
		return Plan{Case: CaseOwnerGone}
	case !fence.IsDispatch(s.TrainJob):
		return e.answer(CaseNotGated, kueue.CheckStateReady, MessageNotGated, now)
	}
	return s.dispatch(e, now)
}

// dispatch handles a reserved Workload of one of dispatch's TrainJobs.
func (s Snapshot) dispatch(e entries, now time.Time) Plan {
	attempt, jobs := attemptOf(s.Workload, e.pending), replicatedJobs(s.Workload)
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
		return e.answer(CaseRaised, kueue.CheckStateReady, MessageRaised, now)
	case !ended(s.TrainJob, record):
		return e.answer(CaseOldPods, kueue.CheckStatePending, MessageOldPods, now).retry()
	}
	return e.raise(record, attempt, jobs, now)
}

// raise plans a new A, and the answers that rest on it.
func (e entries) raise(record fence.Record, attempt fence.Attempt, jobs []string, now time.Time) Plan {
	next, err := record.Next()
	if err != nil {
		return e.answer(CaseBadRecord, kueue.CheckStatePending, messageBadRecord(err), now)
	}
	plan := e.answer(CaseRaise, kueue.CheckStateReady, MessageRaised, now)
	plan.Raise = &fence.Raise{Count: next, Attempt: attempt, Jobs: jobs}
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
	if err == nil && record.Match(replicatedJobs(s.Workload), attempt) && !s.Loss.hits(e.ready) {
		return Plan{Case: CaseNone}
	}
	return Plan{Case: CaseUngated, Attempt: attempt}
}

// Refused is the plan after the TrainJob write of p was refused: the checks
// stay Pending and say why.
func (s Snapshot) Refused(p Plan, reason string, now time.Time) Plan {
	return s.entries().answer(p.Case, kueue.CheckStatePending, messageRefused(reason), now).retry()
}

// Faulted is the plan while the writes of p keep failing: the checks stay
// Pending and say that it is not the job's fault.
func (s Snapshot) Faulted(p Plan, now time.Time) Plan {
	return s.entries().answer(p.Case, kueue.CheckStatePending, MessageFault, now).retry()
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

// entries are the entries of ours in a Workload, in its order.
type entries struct {
	all            []kueue.AdmissionCheckState
	pending, ready []*kueue.AdmissionCheckState
	checks         map[kueue.AdmissionCheckReference]Check
}

func (s Snapshot) entries() entries {
	e := entries{checks: s.Checks}
	seen := sets.New[kueue.AdmissionCheckReference]()
	for i := range s.Workload.Status.AdmissionChecks {
		c := &s.Workload.Status.AdmissionChecks[i]
		if _, ours := s.Checks[c.Name]; !ours || seen.Has(c.Name) {
			continue
		}
		seen.Insert(c.Name)
		e.all = append(e.all, *c)
		switch c.State {
		case kueue.CheckStatePending:
			e.pending = append(e.pending, c)
		case kueue.CheckStateReady:
			e.ready = append(e.ready, c)
		case kueue.CheckStateRetry, kueue.CheckStateRejected:
		}
	}
	return e
}

// answer plans one state and message for all pending entries. A check that
// cannot serve stays Pending and says so.
func (e entries) answer(c Case, state kueue.CheckState, message string, now time.Time) Plan {
	if len(e.pending) == 0 {
		return Plan{Case: CaseNone}
	}
	plan := Plan{Case: c, Message: message}
	plan.Checks = e.rewrite(kueue.CheckStatePending, func(entry *kueue.AdmissionCheckState) {
		state, message := state, message
		if broken := e.checks[entry.Name].Broken; broken != "" {
			state, message = kueue.CheckStatePending, Message(broken)
		}
		set(entry, state, message, now)
	})
	return plan
}

// takeBack plans all answered entries Pending again. Their transition time
// moves forward by a second at least, so that the attempt that follows differs
// from the one whose answer is taken back.
func (e entries) takeBack(c Case, message string, now time.Time) Plan {
	plan := Plan{Case: c, Message: message}
	plan.Checks = e.rewrite(kueue.CheckStateReady, func(entry *kueue.AdmissionCheckState) { renew(entry, message, now) })
	if plan.Checks == nil {
		plan.Case = CaseNone
	}
	return plan
}

// void plans that the A of this attempt, which pods have carried, counts for
// nothing: answers are taken back, and what is Pending becomes so anew.
func (e entries) void(now time.Time) Plan {
	from := kueue.CheckStateReady
	if len(e.ready) == 0 {
		from = kueue.CheckStatePending
	}
	plan := Plan{Case: CaseUsed, Message: MessageUsed}
	plan.Checks = e.rewrite(from, func(entry *kueue.AdmissionCheckState) { renew(entry, MessageUsed, now) })
	return plan
}

// rewrite returns all entries with change applied to those in state from, or
// nil if that changes nothing.
func (e entries) rewrite(from kueue.CheckState, change func(*kueue.AdmissionCheckState)) []kueue.AdmissionCheckState {
	out := make([]kueue.AdmissionCheckState, len(e.all))
	changed := false
	for i, before := range e.all {
		out[i] = *before.DeepCopy()
		if before.State != from {
			continue
		}
		change(&out[i])
		changed = changed || !same(&out[i], &before)
	}
	if !changed {
		return nil
	}
	return out
}

// servable tells whether any pending entry can be answered.
func (e entries) servable() bool {
	return slices.ContainsFunc(e.pending, func(c *kueue.AdmissionCheckState) bool { return e.checks[c.Name].Broken == "" })
}

func same(a, b *kueue.AdmissionCheckState) bool {
	return a.State == b.State && a.Message == b.Message && len(a.PodSetUpdates) == len(b.PodSetUpdates) &&
		a.LastTransitionTime.Equal(&b.LastTransitionTime)
}

// gated tells whether a running Workload came through the gate: one of our
// entries was answered, and not merely because it appeared too late.
func (e entries) gated() bool {
	for _, c := range e.ready {
		if c.Message != MessageLate {
			return true
		}
	}
	return false
}

// set gives an entry a state and a message and drops what an earlier answer
// attached. The transition time changes with the state only and never runs
// backwards, even if this replica's clock is behind.
func set(entry *kueue.AdmissionCheckState, state kueue.CheckState, message string, now time.Time) {
	if entry.State != state && entry.LastTransitionTime.Time.Before(now) {
		entry.LastTransitionTime.Time = now.Truncate(time.Second)
	}
	entry.State, entry.Message, entry.PodSetUpdates = state, message, nil
}

// renew makes an entry Pending since now, and later than it was anything else.
func renew(entry *kueue.AdmissionCheckState, message string, now time.Time) {
	if later := entry.LastTransitionTime.Add(time.Second); now.Before(later) {
		now = later
	}
	entry.LastTransitionTime.Time = now.Truncate(time.Second)
	set(entry, kueue.CheckStatePending, message, now)
}
