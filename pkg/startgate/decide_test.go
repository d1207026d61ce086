package startgate

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

var (
	active   = condition{known: true, active: true, reason: "Ready", message: "Can admit new workloads"}
	inactive = func(reason, message string) condition {
		return condition{known: true, reason: reason, message: message}
	}
	team = target{namespace: "team", localQueue: "lq"}
)

// good is a world in which the attempts of team may start.
func good(now time.Time) snapshot {
	s := snapshot{
		leaseName:     "dispatch-system/dispatch-admission",
		lease:         leaseClock{}.observe(newLease("a", now), true, now, now),
		localQueues:   map[string]localQueue{"team/lq": {clusterQueue: "cq", stop: kueue.None, active: active}},
		clusterQueues: map[string]clusterQueue{"cq": {stop: kueue.None, active: active, rules: []rule{{check: "ours"}}, flavors: []string{"cpu", "gpu"}}},
		checks:        map[string]check{"ours": {ours: true, active: active}, "theirs": {active: active}},
	}
	for k := range s.feeds {
		s.feeds[k] = feedState{open: true, fresh: now}
	}
	return s
}

func (s *snapshot) editQueue(change func(*clusterQueue)) {
	cq := s.clusterQueues["cq"]
	change(&cq)
	s.clusterQueues["cq"] = cq
}

func (s *snapshot) editLocal(change func(*localQueue)) {
	lq := s.localQueues["team/lq"]
	change(&lq)
	s.localQueues["team/lq"] = lq
}

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "kueue.x-k8s.io", Resource: "clusterqueues"}, "", errors.New(`User "x" cannot list`))
}

func TestReasons(t *testing.T) {
	const lease = "Lease dispatch-system/dispatch-admission "
	const wiringOfCQ = "ClusterQueue cq names no AdmissionCheck of dispatch.phpboyscout.uk/admission: "
	later := func(s *snapshot) { s.lease.seen = s.lease.seen.Add(-15 * time.Second) }
	for name, tc := range map[string]struct {
		reason string
		change func(*snapshot)
		want   []string
	}{
		"all is well":    {reason: "nothing holds", change: func(*snapshot) {}},
		"no Lease":       {"", func(s *snapshot) { s.lease = leaseClock{} }, []string{lease + "does not exist: install or start the admission controller, or make kueue.admissionLease name the Lease that it uses"}},
		"no holder":      {"", func(s *snapshot) { s.lease.holder = "" }, []string{lease + "has no holder: wait until the admission controller leads, or start it"}},
		"expired":        {"", later, []string{lease + "has expired, nobody was seen to renew it for 15s: start the admission controller, or see in its log why it cannot renew"}},
		"not seen yet":   {"", func(s *snapshot) { s.lease.waiting, s.lease.seen = s.lease.seen, time.Time{} }, []string{lease + "has not been seen renewed yet: wait, within 15s it is clear whether the admission controller runs"}},
		"no local queue": {"", func(s *snapshot) { delete(s.localQueues, "team/lq") }, []string{"LocalQueue team/lq does not exist: create it, or name another queue"}},
		"namesake elsewhere": {"a LocalQueue is one of a namespace", func(s *snapshot) {
			s.localQueues["other/lq"] = s.localQueues["team/lq"]
			delete(s.localQueues, "team/lq")
		}, []string{"LocalQueue team/lq does not exist: create it, or name another queue"}},
		"local queue of none":  {"", func(s *snapshot) { s.editLocal(func(q *localQueue) { q.clusterQueue = "" }) }, []string{"LocalQueue team/lq belongs to no ClusterQueue: create it again with spec.clusterQueue"}},
		"local queue stopped":  {"at once, before Kueue has said so", func(s *snapshot) { s.editLocal(func(q *localQueue) { q.stop = kueue.Hold }) }, []string{"LocalQueue team/lq is stopped by stopPolicy Hold: set its spec.stopPolicy to None"}},
		"local queue inactive": {"", func(s *snapshot) { s.editLocal(func(q *localQueue) { q.active = inactive("Odd", "For a reason.") }) }, []string{"LocalQueue team/lq is not active (Kueue: Odd: For a reason): mend what Kueue names"}},
		"local queue new":      {"", func(s *snapshot) { s.editLocal(func(q *localQueue) { q.active = condition{} }) }, []string{"LocalQueue team/lq is not known to Kueue yet: wait, or see whether Kueue runs"}},
		"local queue going":    {"", func(s *snapshot) { s.editLocal(func(q *localQueue) { q.deleting = true }) }, []string{"LocalQueue team/lq is being deleted: name another queue, or wait and create it again"}},
		"local queue lags": {"Kueue has opened the ClusterQueue, but not yet said so of the LocalQueue",
			func(s *snapshot) {
				s.editLocal(func(q *localQueue) { q.active = inactive("ClusterQueueIsInactive", "Can't submit") })
			},
			[]string{"LocalQueue team/lq is not active (Kueue: ClusterQueueIsInactive: Can't submit): mend what Kueue names"}},
		"no queue": {"the LocalQueue repeats it, which helps nobody", func(s *snapshot) {
			delete(s.clusterQueues, "cq")
			s.editLocal(func(q *localQueue) { q.active = inactive("ClusterQueueDoesNotExist", "Can't submit") })
		}, []string{"ClusterQueue cq does not exist: create it, or name another queue"}},
		"queue drained": {"", func(s *snapshot) {
			s.editQueue(func(q *clusterQueue) {
				q.stop, q.active = kueue.HoldAndDrain, inactive("Stopped", "Can't admit new workloads: is stopped.")
			})
			s.editLocal(func(q *localQueue) { q.active = inactive("ClusterQueueIsInactive", "Can't submit") })
		}, []string{"ClusterQueue cq is stopped by stopPolicy HoldAndDrain (Kueue: Stopped: Can't admit new workloads: is stopped): set its spec.stopPolicy to None"}},
		"queue inactive": {"Kueue's words are passed on", func(s *snapshot) {
			s.editQueue(func(q *clusterQueue) {
				q.active = inactive("FlavorNotFound", "references missing ResourceFlavor(s): x.")
			})
		}, []string{"ClusterQueue cq is not active (Kueue: FlavorNotFound: references missing ResourceFlavor(s): x): mend what Kueue names"}},
		"queue going": {"", func(s *snapshot) { s.editQueue(func(q *clusterQueue) { q.deleting = true }) }, []string{"ClusterQueue cq is being deleted: name another queue, or wait and create it again"}},
		"check gone": {"whose it was nobody can tell", func(s *snapshot) { delete(s.checks, "ours") },
			[]string{"AdmissionCheck ours does not exist, but ClusterQueue cq names it: create it, or take it out of the queue"}},
		"check going": {"Kueue does not notice, so the queue stays active", func(s *snapshot) { s.checks["ours"] = check{ours: true, deleting: true, active: active} },
			[]string{"AdmissionCheck ours is being deleted: take it out of every ClusterQueue, then create it again"}},
		"check broken": {"", func(s *snapshot) { s.checks["ours"] = check{ours: true, active: inactive("BadParameters", "no gate")} },
			[]string{"AdmissionCheck ours is not active (BadParameters: no gate): mend what its status says"}},
		"check not served": {"", func(s *snapshot) { s.checks["ours"] = check{ours: true} },
			[]string{"AdmissionCheck ours has not been made active: wait for the admission controller, or see its log"}},
		"one of two broken": {"each of ours must answer", func(s *snapshot) {
			s.checks["second"] = check{ours: true}
			s.editQueue(func(q *clusterQueue) { q.rules = append(q.rules, rule{check: "second"}) })
		}, []string{"AdmissionCheck second has not been made active: wait for the admission controller, or see its log"}},
		"broken elsewhere": {"a check that the queue does not name is not its business", func(s *snapshot) { s.checks["second"] = check{ours: true, deleting: true} }, nil},
		"theirs broken": {"is Kueue's to judge", func(s *snapshot) {
			s.checks["theirs"] = check{}
			s.editQueue(func(q *clusterQueue) { q.rules = append(q.rules, rule{check: "theirs"}) })
		}, nil},
		"not wired": {"", func(s *snapshot) {
			s.checks["again"] = check{ours: true, active: active}
			s.checks["old"] = check{ours: true, deleting: true}
			s.editQueue(func(q *clusterQueue) { q.rules = []rule{{check: "theirs"}} })
		}, []string{wiringOfCQ + "add one to spec.admissionChecksStrategy, for all flavors: again, ours"}},
		"no check at all": {"", func(s *snapshot) {
			delete(s.checks, "ours")
			s.editQueue(func(q *clusterQueue) { q.rules = nil })
		}, []string{wiringOfCQ + "there is none, so install the admission controller, which brings one, and add it to spec.admissionChecksStrategy"}},
		"for some flavors": {"the operator wants the others ungated", func(s *snapshot) {
			s.editQueue(func(q *clusterQueue) { q.rules = []rule{{check: "ours", onFlavors: []string{"gpu"}}} })
		}, nil},
		"for no flavor": {"a limit to flavors that the queue does not have is no wiring", func(s *snapshot) {
			s.editQueue(func(q *clusterQueue) { q.rules = []rule{{check: "ours", onFlavors: []string{"tpu"}}} })
		}, []string{wiringOfCQ + "add one to spec.admissionChecksStrategy, for all flavors: ours"}},
		"everything at once": {"nobody should mend one thing to learn of the next", func(s *snapshot) {
			s.lease = leaseClock{}
			s.editLocal(func(q *localQueue) { q.stop = kueue.Hold })
			s.editQueue(func(q *clusterQueue) { q.stop = kueue.Hold })
			s.checks["ours"] = check{ours: true}
		}, []string{
			"AdmissionCheck ours has not been made active: wait for the admission controller, or see its log",
			"ClusterQueue cq is stopped by stopPolicy Hold: set its spec.stopPolicy to None",
			lease + "does not exist: install or start the admission controller, or make kueue.admissionLease name the Lease that it uses",
			"LocalQueue team/lq is stopped by stopPolicy Hold: set its spec.stopPolicy to None",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			s := good(now)
			tc.change(&s)
			if diff := cmp.Diff(tc.want, s.reasons(team, now)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestBlind: what cannot be seen holds, and is not guessed at.
func TestBlind(t *testing.T) {
	const seeLog = " cannot be watched: wait until the API server answers, or see the log of the start gate"
	for name, tc := range map[string]struct {
		change func(*snapshot, time.Time)
		want   []string
	}{
		"nothing read": {func(s *snapshot, _ time.Time) { *s = snapshot{leaseName: s.leaseName} }, []string{
			"AdmissionChecks, ClusterQueues, Leases, LocalQueues not read yet: wait, or see the log of the start gate",
		}},
		"broken for a moment": {func(s *snapshot, now time.Time) {
			s.feeds[clusterQueues] = feedState{fresh: now.Add(-15*time.Second + 1), fault: errors.New("refused")}
		}, nil},
		"broken too long": {func(s *snapshot, now time.Time) {
			s.feeds[clusterQueues] = feedState{fresh: now.Add(-15 * time.Second), fault: errors.New("dial tcp 127.0.0.1:4711: refused")}
			s.editQueue(func(q *clusterQueue) { q.stop = kueue.Hold })
		}, []string{"ClusterQueues" + seeLog}},
		"open for long": {func(s *snapshot, now time.Time) {
			s.feeds[clusterQueues] = feedState{open: true, fresh: now.Add(-time.Hour)}
		}, nil},
		"a longer Lease": {func(s *snapshot, now time.Time) {
			s.lease.duration = time.Minute
			s.feeds[checks] = feedState{fresh: now.Add(-time.Minute + 1)}
		}, nil},
		"the Lease": {func(s *snapshot, now time.Time) {
			s.feeds[leases] = feedState{fresh: now.Add(-time.Minute)}
			s.lease.seen = now.Add(-time.Minute)
		}, []string{"Leases" + seeLog}},
		"local queues": {func(s *snapshot, now time.Time) {
			s.feeds[localQueues] = feedState{fresh: now.Add(-time.Minute)}
			clear(s.localQueues)
		}, []string{"LocalQueues" + seeLog}},
		"checks": {func(s *snapshot, now time.Time) {
			s.feeds[checks] = feedState{fresh: now.Add(-time.Minute)}
			clear(s.checks)
		}, []string{"AdmissionChecks" + seeLog}},
		"no right": {func(s *snapshot, _ time.Time) { s.feeds[clusterQueues] = feedState{fault: forbidden()} },
			[]string{"ClusterQueues cannot be watched, the API server forbids it: let the start gate list and watch them"}},
		"an outage": {func(s *snapshot, now time.Time) {
			for k := range s.feeds {
				s.feeds[k] = feedState{fresh: now.Add(-time.Minute), fault: errors.New("refused")}
			}
		}, []string{"AdmissionChecks, ClusterQueues, Leases, LocalQueues" + seeLog}},
		"two kinds of trouble": {func(s *snapshot, now time.Time) {
			s.feeds[leases] = feedState{fresh: now.Add(-time.Minute)}
			s.feeds[clusterQueues] = feedState{fault: forbidden()}
		}, []string{"ClusterQueues cannot be watched, the API server forbids it: let the start gate list and watch them", "Leases" + seeLog}},
		"no Kueue": {func(s *snapshot, _ time.Time) {
			s.feeds[checks] = feedState{fault: apierrors.NewNotFound(schema.GroupResource{}, "")}
		}, []string{"AdmissionChecks cannot be watched, the API server does not have them: install Kueue v0.17 or newer"}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			s := good(now)
			tc.change(&s, now)
			if diff := cmp.Diff(tc.want, s.reasons(team, now)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestReasonsAreStable: the same world gives the same words, again and later.
func TestReasonsAreStable(t *testing.T) {
	now := time.Now()
	s := good(now)
	s.lease.seen = now.Add(-time.Minute)
	s.editQueue(func(q *clusterQueue) { q.rules = nil })
	for name := range strings.SplitSeq("jihgfedcba", "") {
		s.checks[name] = check{ours: true}
	}
	want := s.reasons(team, now)
	for i := range 50 {
		if diff := cmp.Diff(want, s.reasons(team, now.Add(time.Duration(i)*time.Minute))); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	}
	if !slices.IsSorted(want) || !strings.Contains(want[0], ": a, b, c, d, e") {
		t.Errorf("%q", want)
	}
}

func TestHoldFits(t *testing.T) {
	var reasons []string
	for name := range strings.SplitSeq("abcdefgh", "") {
		reasons = append(reasons, ofQueue("ClusterQueue "+name, kueue.None, false, inactive("Odd", strings.Repeat("é", 400)))...)
	}
	for n := 1; n <= len(reasons); n++ {
		got, held := hold(reasons[:n]).Held()
		if !held || len(got) > admission.MaxReasonBytes || !utf8.ValidString(got) {
			t.Fatalf("%d reasons: held %v, %d bytes, %q", n, held, len(got), got)
		}
		if whole := strings.Join(reasons[:n], "; "); len(whole) > admission.MaxReasonBytes && !strings.Contains(got, " more") {
			t.Errorf("%d reasons: %q does not say that there are more", n, got)
		} else if len(whole) <= admission.MaxReasonBytes && got != whole {
			t.Errorf("%d reasons: %q, want %q", n, got, whole)
		}
	}
}
