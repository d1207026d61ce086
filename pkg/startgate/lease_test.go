package startgate

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// newLease is a Lease of 15 seconds.
func newLease(holder string, renewed time.Time) *coordinationv1.Lease {
	seconds := int32(15)
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}}
	l.Namespace, l.Name, l.UID = "dispatch-system", "dispatch-admission", "1"
	if !renewed.IsZero() {
		l.Spec.RenewTime = &metav1.MicroTime{Time: renewed}
	}
	return l
}

// event is one reading of the Lease.
type event struct {
	after   time.Duration // since the event before
	live    bool          // told by a watch, not by a list
	holder  string
	uid     types.UID
	renewed time.Duration // by the clock of the API server, which is the clock of the tables
}

// look is what the Lease must be a time after the last event.
type look struct {
	after time.Duration
	want  leaseState
}

func TestLeaseClock(t *testing.T) {
	const minute = time.Minute
	start := time.Now()
	for name, tc := range map[string]struct {
		reason string
		events []event
		looks  []look
	}{
		"fresh when first read": {
			reason: "renewed three seconds ago, so it lasts twelve more and no longer",
			events: []event{{holder: "a", renewed: -3 * time.Second}},
			looks:  []look{{0, leaseHeld}, {12*time.Second - 1, leaseHeld}, {12 * time.Second, leaseExpired}},
		},
		"old when first read": {
			reason: "no clock is as wrong as an hour",
			events: []event{{holder: "a", renewed: -time.Hour}},
			looks:  []look{{0, leaseExpired}},
		},
		"a slow clock or a dead holder": {
			reason: "for one duration nobody can tell, then it is known",
			events: []event{{holder: "a", renewed: -5 * minute}},
			looks:  []look{{0, leaseUnknown}, {15*time.Second - 1, leaseUnknown}, {15 * time.Second, leaseExpired}},
		},
		"a slow clock": {
			reason: "the first renewal tells that the holder lives",
			events: []event{{holder: "a", renewed: -5 * minute}, {after: 2 * time.Second, live: true, holder: "a", renewed: -5*minute + 2*time.Second}},
			looks:  []look{{0, leaseHeld}, {15*time.Second - 1, leaseHeld}, {15 * time.Second, leaseExpired}},
		},
		"a clock that is slow beyond reason": {
			reason: "a renewal is a renewal, whatever its date",
			events: []event{{holder: "a", renewed: -9 * time.Hour}, {after: 2 * time.Second, live: true, holder: "a", renewed: -9*time.Hour + 2*time.Second}},
			looks:  []look{{0, leaseHeld}},
		},
		"a fast clock": {
			reason: "a date in the future lasts one duration from now, not for ever",
			events: []event{{holder: "a", renewed: 5 * minute}},
			looks:  []look{{0, leaseHeld}, {15*time.Second - 1, leaseHeld}, {15 * time.Second, leaseExpired}, {5 * minute, leaseExpired}},
		},
		"a fast clock, read again": {
			reason: "reading the same again is no renewal",
			events: []event{{holder: "a", renewed: 5 * minute}, {after: 14 * time.Second, holder: "a", renewed: 5 * minute}},
			looks:  []look{{0, leaseHeld}, {time.Second, leaseExpired}},
		},
		"somebody labels it": {
			reason: "a change of something else is no renewal",
			events: []event{{holder: "a", renewed: 0}, {after: 14 * time.Second, live: true, holder: "a", renewed: 0}},
			looks:  []look{{0, leaseHeld}, {time.Second, leaseExpired}},
		},
		"labelled while waited for": {
			reason: "nor does it make anybody wait longer",
			events: []event{{holder: "a", renewed: -minute}, {after: 10 * time.Second, live: true, holder: "a", renewed: -minute}},
			looks:  []look{{0, leaseUnknown}, {5 * time.Second, leaseExpired}},
		},
		"a new leader with a slow clock": {
			reason: "a watch tells of the first renewal right after it was written",
			events: []event{{holder: "a", renewed: 0}, {after: 20 * time.Second, live: true, holder: "b", renewed: -4 * minute}},
			looks:  []look{{0, leaseHeld}, {15 * time.Second, leaseExpired}},
		},
		"a new Lease with a fast clock": {
			reason: "the same for one that was made while the gate watched",
			events: []event{{live: true, holder: "a", renewed: 4 * minute}},
			looks:  []look{{0, leaseHeld}, {15 * time.Second, leaseExpired}},
		},
		"a new Lease with an old date": {
			reason: "nobody renews with the date of an hour ago but a hand",
			events: []event{{live: true, holder: "a", renewed: -time.Hour}},
			looks:  []look{{0, leaseExpired}},
		},
		"turned back by hand": {
			reason: "the same holder renews forward",
			events: []event{{holder: "a", renewed: 0}, {after: time.Second, live: true, holder: "a", renewed: -time.Hour}},
			looks:  []look{{0, leaseExpired}},
		},
		"a clock that was set back": {
			reason: "cannot be told from a dead holder until the next renewal",
			events: []event{{holder: "a", renewed: 0}, {after: time.Second, live: true, holder: "a", renewed: -minute},
				{after: 2 * time.Second, live: true, holder: "a", renewed: -minute + 2*time.Second}},
			looks: []look{{0, leaseHeld}},
		},
		"read again after an outage": {
			reason: "a renewal that nobody saw counts from its date, not from when it was read",
			events: []event{{holder: "a", renewed: 0}, {after: 30 * time.Second, holder: "a", renewed: 20 * time.Second}},
			looks:  []look{{0, leaseHeld}, {5*time.Second - 1, leaseHeld}, {5 * time.Second, leaseExpired}},
		},
		"a slow clock, read again": {
			reason: "a short break of the watch does not make a live holder unknown",
			events: []event{{holder: "a", renewed: -minute}, {after: 2 * time.Second, live: true, holder: "a", renewed: -minute + 2*time.Second},
				{after: 2 * time.Second, holder: "a", renewed: -minute + 4*time.Second}},
			looks: []look{{0, leaseHeld}, {13*time.Second - 1, leaseHeld}, {13 * time.Second, leaseUnknown}, {15 * time.Second, leaseExpired}},
		},
		"released": {
			reason: "a leader that stops may take its name out",
			events: []event{{holder: "a", renewed: 0}, {after: time.Second, live: true, holder: "", renewed: time.Second}},
			looks:  []look{{0, leaseUnheld}, {time.Hour, leaseUnheld}},
		},
		"made again": {
			reason: "what was known of one Lease does not count for the next of its name",
			events: []event{{holder: "a", renewed: 0}, {after: time.Second, holder: "a", uid: "2", renewed: -time.Hour}},
			looks:  []look{{0, leaseExpired}},
		},
		"made again by hand": {
			reason: "an old date is later than an older one, but nobody has renewed",
			events: []event{{holder: "a", renewed: -2 * time.Hour}, {after: time.Second, live: true, holder: "a", uid: "2", renewed: -time.Hour}},
			looks:  []look{{0, leaseExpired}},
		},
		"a slow clock, read again after an outage": {
			reason: "it was renewed since, so it is worth waiting",
			events: []event{{holder: "a", renewed: -minute}, {after: 2 * time.Second, live: true, holder: "a", renewed: -minute + 2*time.Second},
				{after: time.Minute, holder: "a", renewed: -2 * time.Second}},
			looks: []look{{0, leaseUnknown}, {15 * time.Second, leaseExpired}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c leaseClock
			now := start
			for _, e := range tc.events {
				now = now.Add(e.after)
				lease := newLease(e.holder, start.Add(e.renewed))
				if e.uid != "" {
					lease.UID = e.uid
				}
				c = c.observe(lease, e.live, now, now)
			}
			for _, l := range tc.looks {
				if got := c.state(now.Add(l.after)); got != l.want {
					t.Errorf("%s after the last reading: %s, want %s: %s", l.after, got, l.want, tc.reason)
				}
			}
		})
	}
}

func (s leaseState) String() string {
	names := []string{"missing", "unheld", "unknown", "expired", "held"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprint(int(s))
}

// TestLeaseClockWithoutServer: an API server that tells no time leaves only what
// is seen.
func TestLeaseClockWithoutServer(t *testing.T) {
	now := time.Now()
	c := leaseClock{}.observe(newLease("a", now), false, now, time.Time{})
	if got := c.state(now); got != leaseUnknown {
		t.Errorf("%s, want unknown", got)
	}
	if got := c.state(now.Add(15 * time.Second)); got != leaseExpired {
		t.Errorf("%s, want expired", got)
	}
	now = now.Add(2 * time.Second)
	if got := c.observe(newLease("a", now), true, now, time.Time{}).state(now); got != leaseHeld {
		t.Errorf("%s, want held", got)
	}
}

// TestOddLeases: what a Lease leaves out is never taken for life.
func TestOddLeases(t *testing.T) {
	now := time.Now()
	none := leaseClock{}
	if got := none.state(now); got != leaseMissing {
		t.Errorf("no Lease: %s", got)
	}
	if none.length() != defaultLeaseDuration {
		t.Errorf("no Lease lasts %s", none.length())
	}
	bare := newLease("a", time.Time{})
	bare.Spec.LeaseDurationSeconds = nil
	c := none.observe(bare, true, now, now)
	if got := c.state(now); got != leaseExpired || c.length() != defaultLeaseDuration {
		t.Errorf("never renewed: %s, lasts %s", got, c.length())
	}
	empty := &coordinationv1.Lease{}
	if got := none.observe(empty, true, now, now).state(now); got != leaseUnheld {
		t.Errorf("empty: %s", got)
	}
}

// TestLeaseClockSkew: a holder that renews is held and one that has died is not,
// however its clock goes, within the bounds that the documentation gives.
func TestLeaseClockSkew(t *testing.T) {
	start := time.Now()
	for skew := -2 * maxSkew; skew <= 2*maxSkew; skew += 17 * time.Second {
		var c leaseClock
		now := start
		c = c.observe(newLease("a", now.Add(skew)), false, now, now)
		for i := range 100 {
			now = now.Add(2 * time.Second)
			c = c.observe(newLease("a", now.Add(skew)), true, now, now)
			for _, later := range []time.Duration{0, 2 * time.Second, 15*time.Second - 1} {
				if got := c.state(now.Add(later)); got != leaseHeld {
					t.Fatalf("skew %s, renewal %d: %s after %s", skew, i, got, later)
				}
			}
		}
		if got := c.state(now.Add(15 * time.Second)); got != leaseExpired {
			t.Fatalf("skew %s: %s when its duration is over", skew, got)
		}
		dead := leaseClock{}.observe(newLease("a", start.Add(skew-20*time.Second)), false, start, start)
		if got := dead.state(start.Add(15 * time.Second)); got != leaseExpired {
			t.Fatalf("skew %s: a holder that died before the first reading is %s one duration later", skew, got)
		}
	}
}
