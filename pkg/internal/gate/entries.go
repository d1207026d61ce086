package gate

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// entries are the entries of ours in a Workload, in its order.
type entries struct {
	all                      []kueue.AdmissionCheckState
	pending, ready, retrying []*kueue.AdmissionCheckState
	rejected                 bool
	checks                   map[kueue.AdmissionCheckReference]Check
	// conditions are ours as they are; each write of checks repeats them.
	conditions []metav1.Condition
}

func (s Snapshot) entries() entries {
	e := entries{checks: s.Checks, conditions: ourConditions(s.Workload)}
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
		case kueue.CheckStateRetry:
			e.retrying = append(e.retrying, c)
		case kueue.CheckStateRejected:
			e.rejected = true
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
	plan := Plan{Case: c, Message: message, Conditions: e.conditions}
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
	plan := Plan{Case: c, Message: message, Conditions: e.conditions}
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
	plan := Plan{Case: CaseUsed, Message: MessageUsed, Conditions: e.conditions}
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

func same(a, b *kueue.AdmissionCheckState) bool { return equality.Semantic.DeepEqual(a, b) }

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

// evictUngated has Kueue evict a job that it started ungated, where a gate says
// so.
func (e entries) evictUngated(plan Plan, now time.Time) Plan {
	plan.Checks = e.rewrite(kueue.CheckStateReady, func(entry *kueue.AdmissionCheckState) {
		if p := e.checks[entry.Name].Policy; p != nil && p.EvictUngated {
			entry.Message, entry.PodSetUpdates = MessageUngated, nil
			retry(entry, 0, now)
		}
	})
	plan.Conditions, plan.Message = e.conditions, MessageUngated
	return plan
}

// sameEntries compares what is written of entries.
func sameEntries(a, b []kueue.AdmissionCheckState) bool {
	return slices.EqualFunc(a, b, func(a, b kueue.AdmissionCheckState) bool { return same(&a, &b) })
}
