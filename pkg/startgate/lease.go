package startgate

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxSkew is how far apart the clocks of two machines may be.
	maxSkew = 5 * time.Minute

	// defaultLeaseDuration is that of the controller, for a Lease that does not
	// say, and before one has been read.
	defaultLeaseDuration = 15 * time.Second
)

// leaseClock is what is known of the Lease, and since when.
//
// The Lease carries the time of the last renewal by the clock of its holder. The
// gate runs elsewhere, by another clock, and a Lease lasts for seconds where
// clocks differ by minutes. So expiry is not read off the Lease: it is measured,
// as candidates of the election do. Each time the holder is seen to renew, a
// monotonic clock of this process starts anew, and the Lease has expired when
// that has run for the duration that the Lease names. No two clocks are compared.
//
// What that cannot tell is how old a renewal was that happened before anybody
// looked: at the start, or while a watch was broken. There, and only there, the
// renewal is dated by the clock of the API server, which it sends along with
// every answer. If that says that the Lease has not expired, it is taken to be
// held for what is left of its duration. If it says that it has, the clock of
// the holder may as well be slow: within maxSkew nothing is known until the next
// renewal is seen, which comes in seconds, or until one duration has passed
// without any.
//
// What can go wrong is bounded. A dead controller, whose clock was fast, is taken
// to live for one duration after the Lease was first read. A live one, whose clock
// is slow, is waited for until its next renewal.
type leaseClock struct {
	found    bool
	uid      types.UID
	holder   string
	renewed  time.Time // by the clock of the holder
	duration time.Duration

	// seen is when the Lease was renewed, by the clock of this process; zero when
	// no renewal has been seen or could be dated.
	seen time.Time
	// waiting is since when the next renewal is waited for, because the last one
	// could not be dated; zero when there is no need to.
	waiting time.Time
}

// leaseState is what a Lease says about its holder.
type leaseState int

const (
	leaseMissing leaseState = iota
	leaseUnheld
	leaseUnknown // not read long enough to tell
	leaseExpired
	leaseHeld
)

// observe is what is known after the Lease was read. Live says that it was told
// by a watch right after it was written; else it may have been written at any
// time before. Server is the time by the clock of the API server, zero when that
// is not known.
func (c leaseClock) observe(lease *coordinationv1.Lease, live bool, now, server time.Time) leaseClock {
	next := readLease(lease)
	same := c.found && c.uid == next.uid && c.holder == next.holder
	forward := same && next.renewed.After(c.renewed)
	switch {
	case live && forward, live && !same && next.near(server):
		next.seen = now
		return next
	case same && next.renewed.Equal(c.renewed): // it was read again, or something else about it was changed
		next.seen, next.waiting = c.seen, c.waiting
		return next
	case forward: // while nobody looked
		next.seen = c.seen
	}
	next.date(now, server)
	return next
}

// near tells whether a renewal that was just told of has the date of now, as far
// as clocks agree. If not, a hand has written an old one.
func (c leaseClock) near(server time.Time) bool {
	return !server.IsZero() && server.Sub(c.renewed).Abs() <= maxSkew
}

func readLease(lease *coordinationv1.Lease) leaseClock {
	c := leaseClock{found: true, uid: lease.UID, duration: defaultLeaseDuration}
	if lease.Spec.HolderIdentity != nil {
		c.holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.RenewTime != nil {
		c.renewed = lease.Spec.RenewTime.Time
	}
	if s := lease.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		c.duration = time.Duration(*s) * time.Second
	}
	return c
}

// date dates a renewal that nobody saw by the clock of the API server.
func (c *leaseClock) date(now, server time.Time) {
	age := max(0, server.Sub(c.renewed))
	known := !server.IsZero()
	switch {
	case known && age < c.duration:
		if at := now.Add(-age); at.After(c.seen) {
			c.seen = at
		}
	case !known || age < c.duration+maxSkew: // no clock is more wrong
		c.waiting = now
	}
}

// state is what the Lease says at a time.
func (c leaseClock) state(now time.Time) leaseState {
	switch {
	case !c.found:
		return leaseMissing
	case c.holder == "":
		return leaseUnheld
	case !c.seen.IsZero() && now.Sub(c.seen) < c.duration:
		return leaseHeld
	case !c.waiting.IsZero() && now.Sub(c.waiting) < c.duration:
		return leaseUnknown
	}
	return leaseExpired
}

// length is the duration of the Lease.
func (c leaseClock) length() time.Duration {
	if !c.found {
		return defaultLeaseDuration
	}
	return c.duration
}
