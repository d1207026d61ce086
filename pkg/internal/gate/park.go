package gate

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// A held Workload gives its quota back in three steps, each of which leaves
// nothing that Kueue would not undo by itself if the gate were gone:
//
//  1. Retry with requeueAfterSeconds 0: Kueue evicts the Workload at once. A
//     delay given here would be spent sitting on the quota.
//  2. While it is evicted, Retry with the seconds to the next offer: Kueue
//     writes requeueState.requeueAt and keeps the Workload out of the queue
//     until then.
//  3. Pending again, as soon as requeueAt is there: Kueue's scheduler passes
//     over Workloads with a check in Retry, for ever.
//
// See docs/holds.md for what was tried instead.

const (
	// leastSit is the least time between a reservation and its return, so that
	// a race that is lost again and again is no busy loop.
	leastSit = time.Second
	// leastPark is the least time worth giving quota back for.
	leastPark = 3 * time.Second
)

// returnQuota gives the quota back if a hook has held the Workload long enough and
// others wait for it.
func (r *round) returnQuota() {
	held := r.heldChecks()
	if len(held) == 0 || !r.s.Crowded || r.refused != "" || len(r.plan.Ask) > 0 {
		return // while a hook is asked, its answer decides
	}
	due, next := r.quotaDue(held)
	switch {
	case r.now.Before(due):
		r.wake(due)
		return
	case next.Sub(r.now) < leastPark && !r.booked:
		return // the answer comes sooner
	}
	// Right after an answer the quota goes all the same, or offers that come faster
	// than this takes would keep it for ever.
	next = later(next, r.now.Add(leastPark+time.Second-1).Truncate(time.Second))
	r.book.Park, r.book.Returned, r.booked = next, r.book.Returned+1, true
	if a := r.s.Workload.Status.Admission; a != nil {
		r.book.Queue, r.book.Local = a.ClusterQueue, r.s.Workload.Spec.QueueName
	}
	for i := range r.out {
		if r.out[i].Name == held[0] {
			retry(&r.out[i], 0, r.now)
			r.tell(ToldQuota, &r.out[i], r.e.checks[held[0]].Policy, MessageQuota)
		}
	}
}

// quotaDue is when the quota is to be given back, and until when: no hold of them
// all ends before.
func (r *round) quotaDue(held []kueue.AdmissionCheckReference) (due, next time.Time) {
	for _, name := range held {
		e := r.book.Checks[name]
		if q := e.QuotaDue(r.e.checks[name].hook().Terms); due.IsZero() || q.Before(due) {
			due = q
		}
		next = later(next, e.Next)
	}
	return later(due, r.reserved().Add(leastSit)), next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reserved is the second of the reservation.
func (r *round) reserved() time.Time { return time.Unix(r.attempt.Reserved, 0) }

// retry asks Kueue to evict the Workload, or to keep it out of the queue.
func retry(entry *kueue.AdmissionCheckState, after time.Duration, now time.Time) {
	seconds := int32(max(0, (after+time.Second-1)/time.Second)) //nolint:gosec // a year has fewer seconds than an int32
	entry.State, entry.RequeueAfterSeconds = kueue.CheckStateRetry, &seconds
	entry.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
}

// park handles a Workload that was evicted and has no new quota yet.
func (s Snapshot) park(e entries, now time.Time) Plan {
	book := hold.Read(s.Workload)
	current, parked := s.current(book, e), s.parkedUntil()
	switch {
	case !current && len(e.retrying) == 0 && s.parkedFor(book, now):
		// What it was held for may hold no more: it is to be offered at once. A
		// check in Retry has to go first, or Kueue would note the delay again.
		return Plan{Case: CaseUnpark, Unpark: true}
	case !current, !book.Park.After(now):
		return s.unretry(e, book, Plan{Case: CasePark}, now)
	case !parked.Before(book.Park.Add(-leastPark)):
		return s.unretry(e, book, Plan{Case: CasePark, Wake: book.Park}, now)
	case len(e.retrying) > 0:
		return Plan{Case: CaseNone} // Kueue is about to write requeueAt
	}
	plan := Plan{Case: CasePark}
	plan.Checks = e.rewrite(kueue.CheckStatePending, func(entry *kueue.AdmissionCheckState) {
		if held, ok := book.Checks[entry.Name]; ok {
			entry.Message, entry.PodSetUpdates = held.Message, nil
			retry(entry, book.Park.Sub(now.Truncate(time.Second)), now)
		}
	})
	plan.Conditions = ourConditions(s.Workload)
	return plan
}

// parkedUntil is until when Kueue keeps the Workload out of the queue.
func (s Snapshot) parkedUntil() time.Time {
	if st := s.Workload.Status.RequeueState; st != nil && st.RequeueAt != nil {
		return st.RequeueAt.Time
	}
	return time.Time{}
}

// parkedFor tells whether Kueue still keeps the Workload out of the queue, and does so
// for its hold.
func (s Snapshot) parkedFor(book hold.Book, now time.Time) bool {
	parked := s.parkedUntil()
	return parked.After(now) && parked.Equal(book.Park)
}

// current tells whether the holds of a Workload rest on what its gates say now, and
// its queue still asks for them.
func (s Snapshot) current(book hold.Book, e entries) bool {
	if s.Detached || book.Local != "" && book.Local != s.Workload.Spec.QueueName {
		return false
	}
	n := 0
	for _, c := range e.all {
		held, ok := book.Checks[c.Name]
		if !ok {
			continue
		}
		n++
		if check := s.Checks[c.Name]; check.Broken != "" || check.hook() == nil || check.Policy.Version != held.Gate {
			return false
		}
	}
	return n > 0
}

// unretry plans entries in Retry to be Pending again, with the message of their
// hold, which Kueue has overwritten.
func (s Snapshot) unretry(e entries, book hold.Book, plan Plan, now time.Time) Plan {
	out := make([]kueue.AdmissionCheckState, len(e.all))
	for i, before := range e.all {
		out[i] = *before.DeepCopy()
		message := before.Message
		if held, ok := book.Checks[before.Name]; ok {
			message = held.Message
		}
		if before.State == kueue.CheckStateRetry || before.State == kueue.CheckStatePending {
			set(&out[i], kueue.CheckStatePending, message, now)
		}
	}
	if !sameEntries(out, e.all) {
		plan.Checks, plan.Conditions = out, e.conditions
	}
	if len(e.retrying) > 0 && s.passedOver() {
		plan.Conditions = append(slices.Clone(e.conditions), requeue(now))
	}
	if plan.idle() {
		plan.Case = CaseNone
	}
	return plan
}

// passedOver tells whether Kueue has the Workload in its queue. Its scheduler passes
// over a Workload with a check in Retry and then waits for a change of the spec or of
// the conditions Evicted and Requeued; a change of the check is none.
func (s Snapshot) passedOver() bool {
	conditions := s.Workload.Status.Conditions
	return PhaseOf(s.Workload) != PhaseEnded && !meta.IsStatusConditionTrue(conditions, kueue.WorkloadQuotaReserved) &&
		!meta.IsStatusConditionFalse(conditions, kueue.WorkloadRequeued)
}

// requeue is what Kueue makes of a Workload that a check has had evicted. Kueue turns
// it True by itself, and that is the change it waits for.
func requeue(now time.Time) metav1.Condition {
	return metav1.Condition{
		Type: kueue.WorkloadRequeued, Status: metav1.ConditionFalse, Reason: kueue.WorkloadEvictedByAdmissionCheck,
		Message: MessageRequeue, LastTransitionTime: metav1.NewTime(now.UTC().Truncate(time.Second)),
	}
}

// stuckInactive tells whether a Workload was made inactive while a check of ours was
// in Retry. Kueue would note the delay and remove it again, in turn, and keep the
// quota until the delay is over.
func (s Snapshot) stuckInactive(e entries) bool {
	return inactive(s.Workload) && len(e.retrying) > 0 && meta.IsStatusConditionTrue(s.Workload.Status.Conditions, v1alpha1.WorkloadHeld)
}
