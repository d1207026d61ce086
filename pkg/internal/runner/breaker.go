package runner

import (
	"sync"
	"time"
)

// BreakerConfig says when a failing hook is skipped.
type BreakerConfig struct {
	// Failures in a row open the breaker; 0 means 5, negative means never.
	Failures int

	// Cooldown is how long the hook is skipped before one probe; 0 means 30s.
	Cooldown time.Duration
}

// BreakerState is the state of a [Breaker].
type BreakerState string

// The states of a [Breaker].
const (
	BreakerClosed BreakerState = "Closed" // the hook is asked
	BreakerOpen   BreakerState = "Open"   // the hook is skipped
	BreakerProbe  BreakerState = "Probe"  // one call is on its way, others are skipped
)

// Breaker counts failures in a row and says whether a hook may be asked. Time
// is an argument, and each call of Allow that returns true needs one call of
// Done. It may be used by many goroutines.
type Breaker struct {
	config BreakerConfig

	mu       sync.Mutex
	state    BreakerState
	failures int       // in a row, while closed
	until    time.Time // when the cool-down ends, while open
	epoch    uint64    // rises with every change of state
}

// NewBreaker returns a closed breaker.
func NewBreaker(c BreakerConfig) *Breaker {
	if c.Failures == 0 {
		c.Failures = 5
	}
	if c.Cooldown == 0 {
		c.Cooldown = 30 * time.Second
	}
	return &Breaker{config: c, state: BreakerClosed}
}

// Result is what a call says about the health of a hook.
type Result uint8

// The results of a call.
const (
	Success Result = iota // it answered, whatever the answer
	Failure               // it did not
	Neither               // nothing can be said: the caller gave up, or only this request is to blame
)

// Ticket is handed out by Allow and handed back to Done.
type Ticket uint64

// Allow reports whether the hook may be asked at now. After the cool-down the
// first caller gets the probe.
func (b *Breaker) Allow(now time.Time) (Ticket, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cap(now)
	if b.state == BreakerOpen && !now.Before(b.until) {
		b.enter(BreakerProbe)
		return Ticket(b.epoch), true
	}
	return Ticket(b.epoch), b.state == BreakerClosed
}

// Done takes the result of a call. Results of calls that began before the
// state changed are ignored, so that a call that hung through the cool-down
// neither closes nor opens the breaker.
func (b *Breaker) Done(t Ticket, r Result, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t != Ticket(b.epoch) {
		return
	}
	switch {
	case r == Success:
		b.close()
	case r == Neither:
		b.release(now)
	default:
		b.fail(now)
	}
}

// State returns the state, and for how long the breaker stays open.
func (b *Breaker) State(now time.Time) (BreakerState, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != BreakerOpen {
		return b.state, 0
	}
	b.cap(now)
	return b.state, max(0, b.until.Sub(now))
}

// cap keeps a clock that went back from making the cool-down longer.
func (b *Breaker) cap(now time.Time) {
	if latest := now.Add(b.config.Cooldown); b.until.After(latest) {
		b.until = latest
	}
}

func (b *Breaker) close() {
	b.failures = 0
	if b.state != BreakerClosed {
		b.enter(BreakerClosed)
	}
}

// release gives a probe that said nothing to the next caller.
func (b *Breaker) release(now time.Time) {
	if b.state == BreakerProbe {
		b.until = now
		b.enter(BreakerOpen)
	}
}

func (b *Breaker) fail(now time.Time) {
	b.failures++
	if b.state == BreakerProbe || b.config.Failures > 0 && b.failures >= b.config.Failures {
		b.failures = 0
		b.until = now.Add(b.config.Cooldown)
		b.enter(BreakerOpen)
	}
}

func (b *Breaker) enter(s BreakerState) {
	b.state = s
	b.epoch++
}
