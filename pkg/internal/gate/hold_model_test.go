//go:build !race

package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// This file explores all interleavings of Kueue's steps and ours while a hook holds
// a job that others wait to take the quota of, with the real Decide, a crash of the
// gate at any point, and an edit of the AdmissionGate at any time. What Kueue does in
// a step is what its reconciler of v0.19.2 does and what was observed of it, see
// docs/holds.md. Time goes by in seconds.

const (
	// hLast is how far time goes while steps interleave.
	hLast = 4
	// hAdmits is from when on the hook admits.
	hAdmits = 4
	// hPatience is how long afterwards a job may take to start.
	hPatience = 30
	hReoffer  = 3
)

// hWorkload is a Workload in the model.
type hWorkload struct {
	version                               int8
	reserved, evicted, admitted, requeued bool
	check                                 kueue.CheckState
	since, after                          int8 // of the check
	requeueAt                             int8 // 0: none
	reservedAt, evictions                 int8
	held                                  bool
	gate, offers, next, park              int8
}

// hState is the world.
type hState struct {
	wl, seen, known hWorkload // known is what Kueue's queue has of it
	now             int8
	gate            int8 // version of the AdmissionGate
	// plan is what the gate is about to write to the status of seen's version.
	plan   hWorkload
	writes bool
}

func (w hWorkload) object() *kueue.Workload {
	wl := workload(func(wl *kueue.Workload) { wl.Status, wl.OwnerReferences = kueue.WorkloadStatus{}, nil },
		cond(kueue.WorkloadQuotaReserved, w.reserved, int(w.reservedAt)), cond(kueue.WorkloadEvicted, w.evicted, 0), cond(kueue.WorkloadAdmitted, w.admitted, 0),
		check("ours", w.check, "", int(w.since)), evictions(int32(w.evictions)))
	if w.check == kueue.CheckStateRetry {
		wl.Status.AdmissionChecks[0].RequeueAfterSeconds = new(int32(w.after))
	}
	if w.requeueAt != 0 {
		wl.Status.RequeueState = &kueue.RequeueState{RequeueAt: new(at(int(w.requeueAt)))}
	}
	s := Snapshot{Workload: wl}
	if w.offers > 0 && w.held {
		e := hold.Entry{Gate: fmt.Sprint(w.gate), Since: at(1).Time, Held: at(1).Time, Offers: int(w.offers), Next: at(int(w.next)).Time}
		b := bookOf(e)
		if w.park != 0 {
			b.Park = at(int(w.park)).Time
		}
		heldAs(b)(&s)
	}
	return wl
}

// hPlans are the plans for what the gate has seen, and when.
var hPlans = map[hState]Plan{}

// decide asks the real Decide, with the hook's answer at hand.
func (s hState) decide() Plan {
	q := hState{seen: s.seen, now: s.now, gate: s.gate}
	q.seen.version = 0
	p, ok := hPlans[q]
	if !ok {
		p = q.ask()
		hPlans[q] = p
	}
	return p
}

func (s hState) ask() Plan {
	p := policy(atOnce, func(p *Policy) {
		p.Version = fmt.Sprint(s.gate)
		p.Hook.Terms = hold.Terms{Reoffer: hReoffer * time.Second}
	})
	snap := Snapshot{
		Workload: s.seen.object(), Crowded: true, Checks: map[kueue.AdmissionCheckReference]Check{"ours": {Policy: p}},
		Answers: map[kueue.AdmissionCheckReference]Answer{},
	}
	d := admission.Hold("freeze")
	if s.now >= hAdmits {
		d = admission.Admit()
	}
	says(int(s.now), decided(d))(&snap)
	return Decide(snap, at(int(s.now)).Time)
}

func second(t time.Time) int8 {
	if t.IsZero() {
		return 0
	}
	return int8(t.Sub(epoch) / time.Second)
}

// hMove is a step and what it leads to.
type hMove struct {
	name string
	to   hState
}

// kueueMoves are the steps of Kueue.
func (s hState) kueueMoves() []hMove {
	var moves []hMove
	add := func(name string, ok bool, change func(*hState)) {
		if ok {
			to := s
			change(&to)
			to.wl.version++
			moves = append(moves, hMove{name, to})
		}
	}
	w := s.wl
	delayed := w.requeueAt > s.now
	waits := !w.reserved && !w.admitted
	add("Kueue notes the delay", w.check == kueue.CheckStateRetry && w.since+w.after > s.now && w.requeueAt < w.since+w.after,
		func(to *hState) { to.wl.requeueAt = w.since + w.after })
	add("Kueue evicts", w.reserved && !w.evicted && w.check == kueue.CheckStateRetry && w.since+w.after <= s.now && !delayed, func(to *hState) {
		to.wl.evicted, to.wl.check, to.wl.since, to.wl.evictions = true, pending, s.now, w.evictions+1
	})
	add("Kueue releases the quota", w.reserved && w.evicted, func(to *hState) { to.wl.reserved, to.wl.requeued = false, false })
	add("the delay is over", waits && w.requeueAt != 0 && !delayed, func(to *hState) { to.wl.requeueAt = 0 })
	add("Kueue requeues", waits && !w.requeued && w.requeueAt == 0, func(to *hState) { to.wl.requeued = true })
	add("Kueue reserves", waits && w.requeued && !delayed && w.check != kueue.CheckStateRetry,
		func(to *hState) { to.wl.reserved, to.wl.evicted, to.wl.reservedAt = true, false, s.now })
	// The scheduler goes by what it knew, and writes the checks as it knew them.
	k := s.known
	add("Kueue reserves on old knowledge", waits && !k.reserved && k.requeued && k.requeueAt <= s.now && k.check == pending && k.version != w.version,
		func(to *hState) {
			to.wl.reserved, to.wl.evicted, to.wl.reservedAt, to.wl.check, to.wl.requeued = true, false, s.now, pending, true
			to.known = to.wl
		})
	add("Kueue starts the job", w.reserved && !w.evicted && w.check == ready && !delayed, func(to *hState) { to.wl.admitted = true })
	return moves
}

// gateMoves are the steps of the gate.
func (s hState) gateMoves() []hMove {
	if s.writes {
		to := s
		to.writes = false
		crash := to
		if s.wl.version == s.plan.version {
			to.wl = s.plan
			to.wl.version++
		}
		return []hMove{{"the gate writes the checks", to}, {"the gate dies between its writes", crash}}
	}
	if s.seen.version != s.wl.version {
		to := s
		to.seen = s.wl
		return []hMove{{"the informer catches up", to}}
	}
	return s.act()
}

// act carries a plan out, as far as its first write.
func (s hState) act() []hMove {
	plan := s.decide()
	to := s
	switch {
	case plan.Unpark:
		to.wl.requeueAt = 0
		to.wl.version++
		to.plan = to.wl
	case plan.Book != nil:
		e := plan.Book.Checks["ours"]
		to.wl.gate, to.wl.offers, to.wl.next, to.wl.park = s.gate, min(int8(e.Offers), 3), second(e.Next), second(plan.Book.Park)
		to.wl.version++
		to.plan = to.wl
	case plan.Checks != nil:
		to.plan = to.wl
	default:
		return nil
	}
	if plan.Checks != nil {
		c := plan.Checks[0]
		to.plan.check, to.plan.since = c.State, second(c.LastTransitionTime.Time)
		if c.State == kueue.CheckStateRetry {
			to.plan.after = int8(*c.RequeueAfterSeconds)
		}
		to.plan.held = slices.ContainsFunc(plan.Conditions, func(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue })
		to.writes = to.plan != to.wl
	}
	if to == s || !to.writes && to.wl == s.wl {
		return nil // texts are all that it would write, and they are not modeled
	}
	return []hMove{{fmt.Sprintf("the gate acts: %s %s", plan.Case, to.plan.check), to}}
}

// others are the steps of the rest of the world.
func (s hState) others() []hMove {
	var moves []hMove
	if s.now < hLast {
		to := s
		to.now++
		moves = append(moves, hMove{"a second passes", to})
	}
	if s.gate == 1 {
		to := s
		to.gate++
		moves = append(moves, hMove{"somebody edits the gate", to})
	}
	if s.known.version != s.wl.version {
		to := s
		to.known = s.wl
		moves = append(moves, hMove{"Kueue's queue catches up", to})
	}
	return moves
}

// normal forgets versions, of which only the differences matter.
func (s hState) normal() hState {
	seen, known := s.seen.version != s.wl.version, s.known.version != s.wl.version
	planned := s.plan.version == s.wl.version
	if !s.writes {
		s.plan = hWorkload{}
	}
	s.wl.version, s.seen.version, s.known.version, s.plan.version = 2, 2, 2, 1
	if seen {
		s.seen.version = 0
	} else {
		s.seen = s.wl
	}
	if known {
		s.known.version = 1
	} else {
		s.known = s.wl
	}
	if planned && s.writes {
		s.plan.version = 2
	}
	s.wl.evictions = min(s.wl.evictions, 2) // its number tells attempts apart, and nothing else
	return s
}

// settle lets the given steps happen, in turn, and time go by between them, until
// done, and tells how that went. good has the states of which it is known.
func (s hState) settle(good map[hState]bool, moves func(hState) []hMove, done func(hState) bool) (hState, bool) {
	var path []hState
	for range 200 {
		if done(s) || good[s] {
			for _, p := range path {
				good[p] = true
			}
			return s, true
		}
		path = append(path, s)
		if next := moves(s); len(next) > 0 {
			s = next[0].to.normal()
			continue
		}
		if s.now > hLast+hPatience {
			break
		}
		s.now++
	}
	return s, done(s)
}

// TestHoldModel: whatever happens in whatever order, a held job is never stuck, not
// even if the gate is gone for good, and it starts once the hook admits it.
func TestHoldModel(t *testing.T) {
	t.Parallel()
	first := hState{wl: hWorkload{requeued: true, check: pending}, now: 1, gate: 1}
	first = first.normal()
	from := map[hState]hMove{first: {}}
	queue := []hState{first}
	trace := func(s hState) string {
		var steps []string
		for s != first && len(steps) < 60 {
			m := from[s]
			steps = append(steps, m.name)
			s = m.to
		}
		slices.Reverse(steps)
		return strings.Join(steps, "\n  ")
	}
	check := &hCheck{t: t, alone: map[hState]bool{}, first: map[hState]bool{}, last: map[hState]bool{}}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		check.state(s, trace)
		if t.Failed() {
			return
		}
		for _, m := range slices.Concat(s.kueueMoves(), s.gateMoves(), s.others()) {
			to := m.to.normal()
			if _, ok := from[to]; !ok {
				from[to] = hMove{m.name, s}
				queue = append(queue, to)
			}
		}
	}
	t.Logf("%d states; in %d of them the gate keeps a Workload out of the queue by a check in Retry", len(from), check.windows)
}

// hCheck checks what must hold in every state.
type hCheck struct {
	t *testing.T
	// alone, first and last have the states from which it is known to go well:
	// without the gate, with the gate before Kueue, and after it.
	alone, first, last map[hState]bool
	windows            int
}

func (c *hCheck) state(s hState, trace func(hState) string) {
	c.t.Helper()
	w := s.wl
	if w.check == ready && (!w.reserved || w.evicted) && !w.admitted {
		c.t.Errorf("Ready without quota: %+v after\n  %s", w, trace(s))
	}
	if w.check == kueue.CheckStateRetry && (w.evicted || !w.reserved) {
		c.windows++
	} else if end, ok := s.settle(c.alone, hState.kueueMoves, func(s hState) bool { return s.wl.reserved && !s.wl.evicted }); !ok {
		c.t.Errorf("without the gate it is stuck: %+v in the end, after\n  %s", end.wl, trace(s))
	}
	admitted := func(s hState) bool { return s.wl.admitted }
	if end, ok := s.settle(c.first, func(s hState) []hMove { return slices.Concat(s.gateMoves(), s.kueueMoves()) }, admitted); !ok {
		c.t.Errorf("with the gate before Kueue it never starts: %+v in the end, after\n  %s", end, trace(s))
	}
	if end, ok := s.settle(c.last, func(s hState) []hMove { return slices.Concat(s.kueueMoves(), s.gateMoves()) }, admitted); !ok {
		c.t.Errorf("with the gate after Kueue it never starts: %+v in the end, after\n  %s", end, trace(s))
	}
}
