//go:build !race

package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
)

// The race detector is left out: nothing here runs at the same time as anything
// else, and it would take minutes. make unit runs this file without it.
//
// This file explores all interleavings of Kueue's steps and ours, up to a
// bound, with the real Decide. The clock stands still: everything happens within
// one second, the worst case for telling attempts apart. What Kueue, Trainer and
// JobSet do in a step is what was observed of them; see docs/gate.md.

// mWorkload is a Workload in the model.
type mWorkload struct {
	uid, version                int8
	reserved, admitted, evicted bool
	ours, theirs                kueue.CheckState
	since, evictions            int8
	message                     string
}

// mTrainJob is a TrainJob in the model.
type mTrainJob struct {
	version, count    int8
	stamp             fence.Attempt
	suspended, active bool
}

// mState is the world, the gate's informers and what it is about to write.
type mState struct {
	wl     mWorkload
	job    mTrainJob
	events [2]mWorkload // versions of the Workload that the informer lacks
	lag    int8
	seenWl mWorkload
	seenTj mTrainJob
	loss   mLoss

	stage            mStage
	planWl           mWorkload
	planTj           mTrainJob
	planLoss         mLoss
	started          uint16 // counts that a start has had, a bit each
	crashed, ungated bool
	unseen           bool // a stranger's start that the gate has yet to see
	left             mBounds
}

type mLoss struct {
	uid, since int8
	known      bool
}

type mStage int8

const (
	idle mStage = iota
	raising
	answering
)

// mBounds limit an exploration: how often Kueue takes quota away, and how.
// strangers counts starts by somebody who unsuspends the TrainJob past Kueue. The
// gate is taken to see each before Kueue has stopped it again; if it does not, no
// state is left to tell by.
type mBounds struct{ holds, evictions, recreations, strangers int8 }

func (w mWorkload) object() *kueue.Workload {
	wl := workload(func(wl *kueue.Workload) { wl.Status = kueue.WorkloadStatus{} },
		cond(kueue.WorkloadQuotaReserved, w.reserved, 0), cond(kueue.WorkloadAdmitted, w.admitted, 0), cond(kueue.WorkloadEvicted, w.evicted, 0),
		evictions(int32(w.evictions)), check("ours", w.ours, w.message, int(w.since)), check("theirs", w.theirs, "", 0))
	wl.UID = types.UID(fmt.Sprint("wl-", w.uid))
	return wl
}

func (j mTrainJob) object() *trainer.TrainJob {
	job := trainJob()
	if j.count > 0 {
		raised(fmt.Sprint(j.count), j.stamp)(job)
	}
	*job.Spec.Suspend = j.suspended
	if j.active {
		activePods(job)
	}
	return job
}

func (l mLoss) of(wl mWorkload) Loss {
	if !l.known || l.uid != wl.uid {
		return nil
	}
	return Loss{"ours": at(int(l.since)).Unix()}
}

// mPlan is a plan in the model.
type mPlan struct {
	kind    Case
	raise   int8
	stamp   fence.Attempt
	writes  bool
	state   kueue.CheckState
	since   int8
	message string
}

type mQuestion struct {
	wl   mWorkload
	job  mTrainJob
	loss mLoss
}

type model struct {
	t     *testing.T
	plans map[mQuestion]mPlan
	// from has every state seen and how it was reached.
	from map[mState]mStep
	now  mState
	// lossy lets the informer miss versions, as it does after a watch expired.
	lossy bool
	told  map[string]bool
}

type mStep struct {
	before mState
	name   string
}

// decide asks the real Decide.
func (m *model) decide(wl mWorkload, job mTrainJob, loss mLoss) mPlan {
	wl.version, job.version = 0, 0
	q := mQuestion{wl, job, loss}
	if p, ok := m.plans[q]; ok {
		return p
	}
	snap := Snapshot{Workload: wl.object(), TrainJob: job.object(), Loss: loss.of(wl), Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}}}
	p := inModel(Decide(snap, epoch))
	m.plans[q] = p
	return p
}

// refused is the plan after Trainer's refusal.
func refused(wl mWorkload, job mTrainJob) mPlan {
	snap := Snapshot{Workload: wl.object(), TrainJob: job.object(), Checks: map[kueue.AdmissionCheckReference]Check{"ours": {}}}
	return inModel(snap.Refused(Plan{Case: CaseRaise}, "still active", epoch))
}

func inModel(plan Plan) mPlan {
	p := mPlan{kind: plan.Case}
	if plan.Raise != nil {
		p.raise, p.stamp = int8(plan.Raise.Count), plan.Raise.Attempt
	}
	if plan.Checks != nil {
		c := plan.Checks[0]
		p.writes, p.state, p.message = true, c.State, c.Message
		p.since = int8(c.LastTransitionTime.Sub(epoch) / time.Second)
	}
	return p
}

func TestModel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		bounds mBounds
		lossy  bool
	}{
		"held and evicted":             {bounds: mBounds{holds: 1, evictions: 1}},
		"held twice":                   {bounds: mBounds{holds: 2}},
		"evicted twice":                {bounds: mBounds{evictions: 2}},
		"recreated":                    {bounds: mBounds{evictions: 1, recreations: 1}},
		"started past Kueue":           {bounds: mBounds{strangers: 1, evictions: 1}},
		"held, versions are missed":    {bounds: mBounds{holds: 1, evictions: 1}, lossy: true},
		"evicted, versions are missed": {bounds: mBounds{evictions: 1, recreations: 1}, lossy: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &model{t: t, plans: map[mQuestion]mPlan{}, from: map[mState]mStep{}, lossy: tc.lossy, told: map[string]bool{}}
			first := mState{wl: mWorkload{ours: pending, theirs: pending}, job: mTrainJob{suspended: true}, left: tc.bounds}
			first.seenWl, first.seenTj = first.wl, first.job
			m.explore(first.normal())
			t.Logf("%d states, %d different questions to Decide", len(m.from), len(m.plans))
		})
	}
}

// mMost is well above the states of the largest exploration.
const mMost = 1_000_000

// explore visits every state that can be reached.
func (m *model) explore(first mState) {
	m.from[first] = mStep{}
	for queue := []mState{first}; len(queue) > 0; {
		s := queue[0]
		queue = queue[1:]
		m.now = s
		m.live(s)
		if len(m.from) > mMost {
			m.t.Fatalf("more than %d states: something changes for ever", mMost)
		}
		m.steps(s, func(step string, next mState) {
			next = next.normal()
			if _, ok := m.from[next]; ok {
				return
			}
			m.from[next] = mStep{s, step}
			queue = append(queue, next)
		})
	}
}

// normal renumbers versions, of which only the order matters, so that states that
// differ in nothing else are one.
func (s mState) normal() mState {
	versions := []*int8{&s.wl.version, &s.seenWl.version, &s.planWl.version}
	for i := range s.events {
		versions = append(versions, &s.events[i].version)
	}
	rank(versions)
	rank([]*int8{&s.job.version, &s.seenTj.version, &s.planTj.version})
	return s
}

// rank replaces numbers by their order.
func rank(numbers []*int8) {
	sorted := make([]int8, 0, len(numbers))
	for _, n := range numbers {
		sorted = append(sorted, *n)
	}
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	for _, n := range numbers {
		*n = int8(slices.Index(sorted, *n))
	}
}

func (m *model) steps(s mState, to func(string, mState)) {
	m.kueueSteps(s, to)
	m.gateSteps(s, to)
}

// set makes a new version of the Workload, which the informer will learn.
func (s mState) set(change func(*mWorkload)) (mState, bool) {
	if int(s.lag) == len(s.events) {
		return s, false
	}
	change(&s.wl)
	s.wl.version++
	s.events[s.lag] = s.wl
	s.lag++
	return s, true
}

func (m *model) kueueSteps(s mState, to func(string, mState)) {
	step := func(name string, on bool, change func(*mWorkload), then func(*mState)) {
		if !on {
			return
		}
		next, ok := s.set(change)
		if !ok {
			return
		}
		if then != nil {
			then(&next)
		}
		to(name, next)
	}
	wl, job := s.wl, s.job
	step("reserve", !wl.reserved, func(w *mWorkload) {
		w.reserved, w.evicted = true, false
		w.admitted = w.ours == ready && w.theirs == ready
	}, func(next *mState) { next.ungated = next.wl.admitted })
	step("admit", wl.reserved && !wl.admitted && !wl.evicted && wl.ours == ready && wl.theirs == ready, func(w *mWorkload) { w.admitted = true }, nil)
	step("their check is ready", wl.reserved && !wl.evicted && wl.theirs == pending, func(w *mWorkload) { w.theirs = ready }, nil)
	step("evict", wl.reserved && !wl.evicted && s.left.evictions > 0, func(w *mWorkload) {
		w.evicted, w.evictions, w.theirs = true, w.evictions+1, pending
		if w.ours == ready {
			w.ours, w.since, w.message = pending, 0, "Reset to Pending after eviction. Previously: Ready"
		}
	}, func(next *mState) { next.left.evictions-- })
	step("release", wl.reserved && wl.evicted && job.suspended && !job.active, func(w *mWorkload) { w.reserved, w.admitted = false, false }, nil)
	step("hold", wl.reserved && !wl.admitted && !wl.evicted && s.left.holds > 0, func(w *mWorkload) { w.reserved = false }, func(next *mState) { next.left.holds-- })
	step("recreate", !wl.reserved && job.suspended && s.left.recreations > 0, func(w *mWorkload) {
		*w = mWorkload{uid: w.uid + 1, version: w.version, ours: pending, theirs: pending}
	}, func(next *mState) { next.left.recreations-- })
	m.jobSteps(s, to)
}

// jobSteps are Kueue's and JobSet's doings with the TrainJob. Kueue may start it
// although it has just evicted the Workload.
func (m *model) jobSteps(s mState, to func(string, mState)) {
	next := s
	next.job.version++
	switch wl, job := s.wl, s.job; {
	case wl.admitted && job.suspended && !job.active && s.startable():
		next.job.suspended, next.job.active = false, true
		m.start(&next)
		to("start", next)
	case (wl.evicted || !wl.admitted) && !job.suspended && !s.unseen:
		next.job.suspended = true
		to("suspend", next)
	case job.suspended && job.active:
		next.job.active = false
		to("pods stop", next)
	}
	if s.left.strangers > 0 && s.wl.reserved && s.job.suspended && !s.job.active && !s.wl.admitted {
		next := s
		next.job.version++
		next.job.suspended, next.job.active = false, true
		next.started |= 1 << s.job.count
		next.left.strangers--
		next.unseen = true
		to("a stranger starts it", next)
	}
}

// startable: one start per attempt; Kueue does not start an evicted job whose
// pods it has already stopped.
func (s mState) startable() bool {
	return !s.wl.evicted || s.started&(1<<s.job.count) == 0
}

// start checks the two invariants of a start.
func (m *model) start(s *mState) {
	a := s.job.count
	if s.started&(1<<a) != 0 || s.started>>(a+1) != 0 {
		m.fail(*s, fmt.Sprintf("a start with A = %d after starts with %b", a, s.started))
	}
	s.started |= 1 << a
	if !s.ungated {
		return
	}
	// Kueue reserved and admitted in one write. It must be found out, unless
	// what the informer had seen went with a crash.
	wl, loss := s.caughtUp()
	if p := m.decide(wl, s.job, loss); p.kind != CaseUngated && wl.admitted && !wl.evicted && !s.crashed && !m.lossy {
		m.fail(*s, fmt.Sprintf("an ungated start is not found: %s", p.kind))
	}
}

// caughtUp is what the informer will have and know.
func (s mState) caughtUp() (mWorkload, mLoss) {
	for s.lag > 0 {
		s = s.learn()
	}
	return s.seenWl, s.loss
}

// learn brings the informer one version further, as its handler does.
func (s mState) learn() mState {
	before, after := s.seenWl, s.events[0]
	if before.uid == after.uid && LossBetween(before.object(), after.object()) != nil {
		s.loss = mLoss{uid: before.uid, since: before.since, known: before.ours == ready}
	}
	copy(s.events[:], s.events[1:])
	s.lag--
	s.events[s.lag] = mWorkload{}
	s.seenWl = after
	return s
}

func (m *model) gateSteps(s mState, to func(string, mState)) {
	if s.lag > 0 {
		to("learn the workload", s.learn())
	}
	if m.lossy && s.lag > 1 {
		next := s
		for next.lag > 1 {
			copy(next.events[:], next.events[1:])
			next.lag--
			next.events[next.lag] = mWorkload{}
		}
		to("relist", next.learn())
	}
	if s.seenTj != s.job {
		next := s
		next.seenTj = s.job
		to("learn the trainjob", next)
	}
	if !s.crashed && s.stage != idle {
		next := s
		next.crashed, next.stage, next.loss = true, idle, mLoss{}
		next.planWl, next.planTj, next.planLoss = mWorkload{}, mTrainJob{}, mLoss{}
		next.events, next.lag, next.seenWl, next.seenTj = [2]mWorkload{}, 0, s.wl, s.job
		to("crash, next leader", next)
	}
	m.write(s, to)
}

// write is what the gate does next: decide, raise, or answer.
func (m *model) write(s mState, to func(string, mState)) {
	switch s.stage {
	case idle:
		p := m.decide(s.seenWl, s.seenTj, s.loss)
		if p.kind.NeedsFreshTrainJob() || !p.writes && p.raise == 0 {
			if s.unseen && s.lag == 0 && s.seenTj == s.job {
				next := s
				next.unseen = false
				to("see the stranger's start", next)
			}
			return
		}
		next := s
		next.planWl, next.planTj, next.planLoss, next.stage = s.seenWl, s.seenTj, s.loss, answering
		if p.raise > 0 {
			next.stage = raising
		}
		to("decide "+string(p.kind), next)
	case raising:
		to("raise", m.raise(s))
	case answering:
		to("answer", m.answer(s, m.decide(s.planWl, s.planTj, s.planLoss)))
	}
}

func (m *model) raise(s mState) mState {
	p := m.decide(s.planWl, s.planTj, s.planLoss)
	switch {
	case s.planTj.version != s.job.version:
		return s.done() // conflict
	case !s.job.suspended || s.job.active:
		return m.answer(s, refused(s.planWl, s.planTj))
	}
	s.job.count, s.job.stamp = p.raise, p.stamp
	s.job.version++
	s.planTj, s.stage = s.job, answering
	return s
}

func (m *model) answer(s mState, p mPlan) mState {
	if s.planWl.version != s.wl.version || s.planWl.uid != s.wl.uid {
		// A conflict: decide anew on the Workload as it is, with the TrainJob as
		// written.
		s.planWl = s.wl
		next := m.decide(s.planWl, s.planTj, s.planLoss)
		switch {
		case next.kind.NeedsFreshTrainJob(), !next.writes && next.raise == 0:
			return s.done()
		case next.raise > 0:
			s.stage = raising
		default:
			s.stage = answering
		}
		return s
	}
	if !p.writes {
		return s.done()
	}
	if s.wl.evicted || s.wl.admitted && p.kind != CaseLate || p.state == ready && !s.wl.reserved {
		m.fail(s, fmt.Sprintf("a check written %s by %s", p.state, p.kind))
	}
	next, ok := s.set(func(w *mWorkload) { w.ours, w.since, w.message = p.state, p.since, p.message })
	if !ok {
		return s // the informer is as far behind as this model lets it be
	}
	next.unseen = next.unseen && p.kind != CaseUsed
	return next.done()
}

func (s mState) done() mState {
	s.stage, s.planWl, s.planTj, s.planLoss = idle, mWorkload{}, mTrainJob{}, mLoss{}
	return s
}

// live sees that from a state in which our answer is awaited, the gate gives it
// by itself.
func (m *model) live(s mState) {
	if !s.wl.reserved || s.wl.evicted || s.wl.admitted || s.job.active || !s.job.suspended {
		return
	}
	s = s.done()
	for range 4 {
		s.seenWl, s.loss = s.caughtUp()
		s.events, s.lag, s.seenTj = [2]mWorkload{}, 0, s.job
		if s.wl.ours == ready && s.started&(1<<s.job.count) == 0 {
			return
		}
		p := m.decide(s.seenWl, s.seenTj, s.loss)
		if p.raise > 0 {
			s.job.count, s.job.stamp = p.raise, p.stamp
		}
		if !p.writes {
			break
		}
		s, _ = s.set(func(w *mWorkload) { w.ours, w.since, w.message = p.state, p.since, p.message })
	}
	if s.wl.ours != ready {
		m.fail(s, "nobody answers")
	}
}

// fail tells one kind of failure once, with the steps that lead to it.
func (m *model) fail(s mState, why string) {
	if m.told[why] {
		return
	}
	m.told[why] = true
	var path []string
	for at := m.from[m.now]; at.name != ""; at = m.from[at.before] {
		path = append([]string{at.name}, path...)
	}
	m.t.Errorf("%s\n  in %+v\n  after %s", why, s, strings.Join(path, ", "))
}
