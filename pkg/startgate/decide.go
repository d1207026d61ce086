package startgate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// This file decides from what is known, without reading or waiting.

// target is the queue of one attempt.
type target struct{ namespace, localQueue string }

func (t target) String() string { return t.namespace + "/" + t.localQueue }

// condition is the condition Active of an object. Unknown means that nobody has
// set it yet.
type condition struct {
	known, active   bool
	reason, message string
}

type localQueue struct {
	clusterQueue string
	stop         kueue.StopPolicy
	deleting     bool
	active       condition
}

type clusterQueue struct {
	stop     kueue.StopPolicy
	deleting bool
	active   condition
	rules    []rule
	flavors  []string
}

// rule names a check that a ClusterQueue wants, and the flavors that it wants it
// for; none stands for all.
type rule struct {
	check     string
	onFlavors []string
}

type check struct {
	ours     bool
	deleting bool
	active   condition
}

// snapshot is all that a decision depends on, but the time.
type snapshot struct {
	leaseName     string // namespace/name
	lease         leaseClock
	localQueues   map[string]localQueue // by namespace/name
	clusterQueues map[string]clusterQueue
	checks        map[string]check
	feeds         [kinds]feedState
}

// reasons are why an attempt in a queue must wait, all of them, in an order that
// depends on their text alone. None means that it may start.
func (s *snapshot) reasons(t target, now time.Time) []string {
	stale := func(f feedState) bool { return f.stale(now, s.lease.length()) }
	all := unseen(s.feeds, stale)
	var blind [kinds]bool
	for k, f := range s.feeds {
		blind[k] = stale(f)
	}
	if !blind[leases] {
		all = append(all, s.ofLease(now)...)
	}
	if !blind[localQueues] {
		all = append(all, s.ofQueues(t, blind)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *snapshot) ofLease(now time.Time) []string {
	var problem string
	switch s.lease.state(now) {
	case leaseHeld:
		return nil
	case leaseMissing:
		problem = "does not exist: install or start the admission controller, or make kueue.admissionLease name the Lease that it uses"
	case leaseUnheld:
		problem = "has no holder: wait until the admission controller leads, or start it"
	case leaseUnknown:
		problem = fmt.Sprintf("has not been seen renewed yet: wait, within %s it is clear whether the admission controller runs", s.lease.duration)
	case leaseExpired:
		problem = fmt.Sprintf("has expired, nobody was seen to renew it for %s: start the admission controller, or see in its log why it cannot renew", s.lease.duration)
	}
	return []string{"Lease " + s.leaseName + " " + problem}
}

func (s *snapshot) ofQueues(t target, blind [kinds]bool) []string {
	lq, found := s.localQueues[t.String()]
	name := "LocalQueue " + t.String()
	switch {
	case !found:
		return []string{name + " does not exist: create it, or name another queue"}
	case lq.clusterQueue == "":
		return []string{name + " belongs to no ClusterQueue: create it again with spec.clusterQueue"}
	case blind[clusterQueues]:
		return ofQueue(name, lq.stop, lq.deleting, lq.active)
	}
	all := s.ofClusterQueue(lq.clusterQueue, blind)
	if derived := lq.active.reason == "ClusterQueueIsInactive" || lq.active.reason == "ClusterQueueDoesNotExist"; derived && len(all) > 0 {
		lq.active.active = true // the cause is told already
	}
	return append(all, ofQueue(name, lq.stop, lq.deleting, lq.active)...)
}

func (s *snapshot) ofClusterQueue(name string, blind [kinds]bool) []string {
	cq, found := s.clusterQueues[name]
	if !found {
		return []string{"ClusterQueue " + name + " does not exist: create it, or name another queue"}
	}
	all := ofQueue("ClusterQueue "+name, cq.stop, cq.deleting, cq.active)
	if blind[checks] {
		return all
	}
	return append(all, s.ofChecks(name, cq)...)
}

// ofQueue is why a queue cannot admit, in one reason, with what Kueue says of it.
func ofQueue(name string, stop kueue.StopPolicy, deleting bool, active condition) []string {
	said := ""
	if active.known && !active.active {
		said = kueueSays(active)
	}
	switch {
	case deleting:
		return []string{name + " is being deleted" + said + ": name another queue, or wait and create it again"}
	case stop != "" && stop != kueue.None:
		return []string{name + " is stopped by stopPolicy " + string(stop) + said + ": set its spec.stopPolicy to None"}
	case !active.known:
		return []string{name + " is not known to Kueue yet: wait, or see whether Kueue runs"}
	case !active.active:
		return []string{name + " is not active" + said + ": mend what Kueue names"}
	}
	return nil
}

// ofChecks is about the checks that a ClusterQueue names: those of ours must be
// able to answer, and there must be one.
func (s *snapshot) ofChecks(queue string, cq clusterQueue) []string {
	var all []string
	wired := false
	for _, r := range cq.rules {
		c, found := s.checks[r.check]
		name := "AdmissionCheck " + r.check
		switch {
		case !found:
			// It may be ours or not. Kueue does not admit without it in any case.
			wired = true
			all = append(all, name+" does not exist, but ClusterQueue "+queue+" names it: create it, or take it out of the queue")
		case c.ours:
			wired = wired || r.covers(cq.flavors)
			all = append(all, ofCheck(name, c)...)
		}
	}
	if !wired {
		all = append(all, "ClusterQueue "+queue+" names no AdmissionCheck of "+v1alpha1.ControllerName+": "+s.wiring())
	}
	return all
}

// covers tells whether a check counts for any flavor that the queue has.
func (r rule) covers(flavors []string) bool {
	return len(r.onFlavors) == 0 ||
		slices.ContainsFunc(r.onFlavors, func(f string) bool { return slices.Contains(flavors, f) })
}

func ofCheck(name string, c check) []string {
	switch {
	case c.deleting:
		return []string{name + " is being deleted: take it out of every ClusterQueue, then create it again"}
	case !c.active.known:
		return []string{name + " has not been made active: wait for the admission controller, or see its log"}
	case !c.active.active:
		return []string{name + " is not active (" + words(c.active) + "): mend what its status says"}
	}
	return nil
}

// wiring is what to do for a queue that names no check of ours.
func (s *snapshot) wiring() string {
	const most = 5 // names, to keep room for other reasons
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.checks)) {
		if c := s.checks[name]; c.ours && !c.deleting {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "there is none, so install the admission controller, which brings one, and add it to spec.admissionChecksStrategy"
	}
	return "add one to spec.admissionChecksStrategy, for all flavors: " + strings.Join(names[:min(len(names), most)], ", ")
}

func kueueSays(c condition) string { return " (Kueue: " + words(c) + ")" }

// words are the reason and the message of a condition.
func words(c condition) string {
	const most = 240 // bytes, to keep room for other reasons
	said := strings.TrimRight(strings.TrimSpace(c.reason+": "+c.message), ".: ")
	if len(said) <= most {
		return said
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(said[cut]) {
		cut--
	}
	return said[:cut] + "…"
}

// hold holds for reasons, as many as a decision has room for.
func hold(reasons []string) admission.Decision {
	text := strings.Join(reasons, "; ")
	for n := len(reasons) - 1; n > 0 && len(text) > admission.MaxReasonBytes; n-- {
		text = fmt.Sprintf("%s; and %d more", strings.Join(reasons[:n], "; "), len(reasons)-n)
	}
	return admission.Hold(text)
}
