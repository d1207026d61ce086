package gate

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/placement"
)

func itoa(n int) string { return strconv.Itoa(n) }

// round is one look at a Workload with quota: what each of our pending checks
// gets, and what comes with it.
type round struct {
	s   Snapshot
	now time.Time
	e   entries
	// out are the entries as they will be.
	out []kueue.AdmissionCheckState
	// opens are the checks that become Ready.
	opens []kueue.AdmissionCheckReference
	// plain is what a check without a hook gets.
	plain string
	// attempt and try are what the hooks are asked about.
	attempt fence.Attempt
	try     int
	// book has the holds as they will be; booked says that they have changed.
	book   hold.Book
	booked bool
	// refused is why the job is refused; empty unless it is.
	refused string
	plan    Plan
}

// serve looks at every pending check. Those without a hook become Ready and say
// plain.
func (s Snapshot) serve(e entries, c Case, plain string, attempt fence.Attempt, try int, now time.Time) Plan {
	r := &round{s: s, now: now, e: e, plain: plain, attempt: attempt, try: try, book: hold.Read(s.Workload), plan: Plan{Case: c, Message: plain}}
	for i := range e.all {
		r.out = append(r.out, *e.all[i].DeepCopy())
	}
	for i := range r.out {
		if r.out[i].State == kueue.CheckStatePending {
			r.look(&r.out[i])
		}
	}
	r.returnQuota()
	return r.finish()
}

// look gives one pending check what it gets.
func (r *round) look(entry *kueue.AdmissionCheckState) {
	check := r.e.checks[entry.Name]
	switch {
	case check.Broken != "":
		set(entry, kueue.CheckStatePending, Message(check.Broken), r.now)
	case r.waitsForPods(entry, check.Policy):
	case check.hook() == nil:
		r.open(entry, r.plain, nil)
	default:
		r.hooked(entry, check.Policy)
	}
}

// open makes a check Ready.
func (r *round) open(entry *kueue.AdmissionCheckState, message string, updates []kueue.PodSetUpdate) {
	set(entry, kueue.CheckStateReady, Message(message), r.now)
	entry.PodSetUpdates = updates
	r.opens = append(r.opens, entry.Name)
}

// hooked gives a check what its hook says, asks the hook, or waits for the time to
// ask it.
func (r *round) hooked(entry *kueue.AdmissionCheckState, p *Policy) {
	held := r.book.Checks[entry.Name]
	q := Question{
		Check: entry.Name, Policy: p, Offer: offer(r.attempt, p, held.Offers+1), TryNumber: r.try,
		HeldSince: held.Held, OfferCount: held.Offers + 1,
	}
	a := r.s.Answers[entry.Name]
	switch {
	case a.Offer == q.Offer && !a.Slow:
		r.answered(entry, p, held, a)
		return
	case held.Gate == p.Version && r.now.Before(held.Next):
		set(entry, kueue.CheckStatePending, held.Message, r.now)
		r.wake(held.Next)
		return
	case a.Offer == q.Offer:
		set(entry, kueue.CheckStatePending, cmp.Or(held.Message, messageAsking(p)), r.now)
	default:
		r.wake(r.now.Add(SlowAnswer))
	}
	r.plan.Ask = append(r.plan.Ask, q)
}

// answered gives a check what its hook said.
func (r *round) answered(entry *kueue.AdmissionCheckState, p *Policy, held hold.Entry, a Answer) {
	updates, err := r.updates(entry.Name, p, a)
	if err != nil {
		a.Verdict, a.Problem = false, err.Error()
	}
	refusal, refused := a.Decision.Refused()
	_, isHold := a.Decision.Held()
	switch {
	case p.Hook.Audit:
		r.audit(entry, p, a)
	case !a.Verdict:
		r.noVerdict(entry, p, held, a)
	case isHold:
		r.held(entry, p, held, a.Decision)
	case refused:
		r.refuse(entry, p, messageHookRefused(p, refusal))
	default:
		r.admit(entry, p, held, updates)
	}
}

// noVerdict handles a hook that did not decide, or not so that it can be done.
func (r *round) noVerdict(entry *kueue.AdmissionCheckState, p *Policy, held hold.Entry, a Answer) {
	if p.Hook.FailOpen {
		r.tell(ToldFailedOpen, entry, p, messageFailedOpen(p, a.Problem))
		r.open(entry, messageFailedOpen(p, a.Problem), nil)
		return
	}
	message := messageNoVerdict(p, a.Problem)
	r.hold(entry, p, held, held.NoVerdict(p.Hook.Terms, r.s.Workload.UID, p.Version, message, r.now), ToldNoVerdict)
}

// held handles a hook that said "not now".
func (r *round) held(entry *kueue.AdmissionCheckState, p *Policy, held hold.Entry, d admission.Decision) {
	reason, _ := d.Held()
	if held.Spent(p.Hook.Terms, r.now) {
		r.refuse(entry, p, messageSpent(p, reason))
		return
	}
	until, _ := d.Until()
	r.hold(entry, p, held, held.Hold(p.Hook.Terms, r.s.Workload.UID, p.Version, messageHeld(p, reason), until, r.now), ToldHeld)
}

// updates are what the changes of an answer make of the Workload; an error says
// why that cannot be.
func (r *round) updates(check kueue.AdmissionCheckReference, p *Policy, a Answer) ([]kueue.PodSetUpdate, error) {
	changes, ok := a.Decision.Changes()
	if !ok || !a.Verdict || p.Hook.Audit {
		return nil, nil
	}
	if r.s.PodsUnknown != "" && a.ChoosesMetadata() {
		return nil, errors.New(r.s.PodsUnknown)
	}
	// What other checks of ours are about to get counts, and what is left of an
	// earlier answer does not.
	wl := *r.s.Workload
	wl.Status.AdmissionChecks = slices.Clone(wl.Status.AdmissionChecks)
	for _, ours := range r.out {
		if ours.State == kueue.CheckStatePending {
			ours.PodSetUpdates = nil
		}
		for i := range wl.Status.AdmissionChecks {
			if wl.Status.AdmissionChecks[i].Name == ours.Name {
				wl.Status.AdmissionChecks[i] = ours
			}
		}
	}
	return placement.Updates(changes, placement.Facts{
		Workload: &wl, Check: check, Flavors: r.s.Flavors, TrainJob: TrainJobOwner(&wl) != nil, Pods: r.s.Pods,
	})
}

func (r *round) admit(entry *kueue.AdmissionCheckState, p *Policy, held hold.Entry, updates []kueue.PodSetUpdate) {
	if held.Offers > 0 {
		r.tell(ToldReleased, entry, p, messageReleased(p))
	}
	message := messageAdmitted(p)
	if len(updates) > 0 {
		message = messageAdmittedWith(p)
	}
	r.open(entry, message, updates)
}

func (r *round) audit(entry *kueue.AdmissionCheckState, p *Policy, a Answer) {
	message, decision := messageAudited(p, a)
	r.plan.Tell = append(r.plan.Tell, Told{Topic: ToldAudited, Check: entry.Name, Gate: p.Name, Text: message, Decision: decision})
	r.open(entry, message, nil)
}

// hold keeps a check Pending until its next offer.
func (r *round) hold(entry *kueue.AdmissionCheckState, p *Policy, before, after hold.Entry, topic Topic) {
	r.book = r.book.With(entry.Name, after)
	r.booked = true
	r.plan.Answered = append(r.plan.Answered, entry.Name)
	set(entry, kueue.CheckStatePending, after.Message, r.now)
	r.wake(after.Next)
	if before.Message != after.Message {
		r.tell(topic, entry, p, describe(after, p))
	}
}

// refuse rejects the job for good.
func (r *round) refuse(entry *kueue.AdmissionCheckState, p *Policy, message string) {
	set(entry, kueue.CheckStateRejected, message, r.now)
	r.plan.Answered = append(r.plan.Answered, entry.Name)
	r.refused = message
	r.tell(ToldRefused, entry, p, message)
}

func (r *round) tell(topic Topic, entry *kueue.AdmissionCheckState, p *Policy, text string) {
	r.plan.Tell = append(r.plan.Tell, Told{Topic: topic, Check: entry.Name, Gate: p.Name, Text: text})
}

// wake asks for another look at t, or sooner.
func (r *round) wake(t time.Time) {
	if r.plan.Wake.IsZero() || t.Before(r.plan.Wake) {
		r.plan.Wake = t
	}
}

// finish turns the round into a plan.
func (r *round) finish() Plan {
	if r.booked || r.refused != "" {
		// Two writes are the most, and they are for the holds; the event of the
		// write brings the Workload back for the rest. Of a job that is refused
		// nothing opens at all.
		r.close()
	}
	// A timeout of pods is told when the gate opens in spite of them.
	r.plan.Tell = slices.DeleteFunc(r.plan.Tell, func(t Told) bool {
		return t.Topic == ToldPodTimeout && !slices.Contains(r.opens, t.Check)
	})
	plan := r.plan
	plan.Opens = r.opens
	plan.Answered = append(plan.Answered, r.opens...)
	plan.Conditions = r.conditions()
	if r.booked {
		plan.Book = &r.book
		for _, c := range r.out {
			if c.State == kueue.CheckStateReady {
				r.book = r.book.Without(c.Name)
			}
		}
	}
	if !sameEntries(r.out, r.e.all) || !sameConditions(plan.Conditions, ourConditions(r.s.Workload)) {
		plan.Checks = r.out
	}
	plan.Message = r.message()
	if plan.idle() {
		plan.Case = CaseNone
	}
	return plan
}

// close leaves the checks that were to become Ready as they are.
func (r *round) close() {
	for i := range r.out {
		if slices.Contains(r.opens, r.out[i].Name) {
			r.out[i] = *r.e.all[i].DeepCopy()
		}
	}
	r.plan.Tell = slices.DeleteFunc(r.plan.Tell, func(t Told) bool { return slices.Contains(r.opens, t.Check) })
	r.opens = nil
}

// message is what is logged of the round.
func (r *round) message() string {
	for i := range r.out {
		if r.out[i].Message != r.e.all[i].Message {
			return r.out[i].Message
		}
	}
	return ""
}
