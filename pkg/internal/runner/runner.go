package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// The limits of Config.Timeout, and its default.
const (
	MinTimeout     = 100 * time.Millisecond
	MaxTimeout     = 30 * time.Second
	DefaultTimeout = 2 * time.Second
)

// defaultMaxLate bounds the memory that a hook which never returns can take.
const defaultMaxLate = 100

// Config says how a hook is asked.
type Config struct {
	// Timeout is the deadline of one call, MinTimeout to MaxTimeout; 0 means
	// DefaultTimeout.
	Timeout time.Duration

	// Breaker says when a failing hook is skipped.
	Breaker BreakerConfig

	// Allowlist limits what the hook may choose.
	Allowlist Allowlist

	// MaxLate is how many calls may run on past their end before the hook is
	// not called any more; 0 means 100. It is looked at before a call, so the
	// calls that are on their way when it is reached may come on top.
	MaxLate int

	// Now is the clock of the breaker and of Outcome.Took; nil means time.Now.
	Now func() time.Time
}

// Runner asks one hook. It may be used by many goroutines.
type Runner struct {
	hook    admission.Hook
	config  Config
	breaker *Breaker
	late    atomic.Int64
	timers  sync.Pool // of *time.Timer, stopped; of this runner alone
}

// New returns a runner for hook. The error names the field of c that is wrong.
func New(hook admission.Hook, c Config) (*Runner, error) {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxLate == 0 {
		c.MaxLate = defaultMaxLate
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	switch {
	case hook == nil:
		return nil, errors.New("hook: must not be nil")
	case c.Timeout < MinTimeout || c.Timeout > MaxTimeout:
		return nil, fmt.Errorf("timeout: %v is not between %v and %v", c.Timeout, MinTimeout, MaxTimeout)
	case c.Breaker.Cooldown < 0:
		return nil, fmt.Errorf("breaker.cooldown: %v is negative", c.Breaker.Cooldown)
	case c.MaxLate < 0:
		return nil, fmt.Errorf("maxLate: %d is negative", c.MaxLate)
	}
	c.Allowlist = c.Allowlist.clone()
	return &Runner{hook: hook, config: c, breaker: NewBreaker(c.Breaker)}, nil
}

// Ask asks the hook about req and returns when it has answered, when its
// deadline has passed, or when ctx is done, whichever is first. The hook gets
// a deep copy of req. An answer that comes later is dropped.
func (r *Runner) Ask(ctx context.Context, req *admission.Request) Outcome {
	start := r.config.Now()
	o := r.ask(ctx, req, start)
	o.Took = max(0, r.config.Now().Sub(start)) // a clock may go back
	return o
}

func (r *Runner) ask(ctx context.Context, req *admission.Request, start time.Time) Outcome {
	if err := context.Cause(ctx); err != nil {
		return Outcome{Cause: CauseCanceled, Err: fmt.Errorf("not asked: %w", err)}
	}
	if late := r.Late(); late >= r.config.MaxLate {
		return Outcome{Cause: CauseBusy, Err: fmt.Errorf("not asked: %d calls have not returned", late)}
	}
	copied := req.Clone() // before the breaker, which must hear of each call that it allows
	ticket, ok := r.breaker.Allow(start)
	if !ok {
		return Outcome{Cause: CauseBreakerOpen, Err: errors.New("not asked: skipped after too many failures")}
	}
	o := r.check(r.call(ctx, copied))
	r.breaker.Done(ticket, health(o.Cause), r.config.Now())
	return o
}

// Late returns how many calls run on now although nobody waits for them. It
// is the value of a gauge.
func (r *Runner) Late() int { return int(r.late.Load()) }

// Breaker returns the state of the breaker, and for how long the hook will be
// skipped.
func (r *Runner) Breaker() (BreakerState, time.Duration) {
	return r.breaker.State(r.config.Now())
}

// check turns a decision that is not allowed into no verdict.
func (r *Runner) check(o Outcome) Outcome {
	if o.Cause != CauseNone {
		return o
	}
	err := o.Decision.Validate()
	if err == nil {
		err = r.config.Allowlist.check(o.Decision)
	}
	if err != nil {
		return Outcome{Cause: CauseInvalid, Err: fmt.Errorf("the decision of the hook: %w", err)}
	}
	return o
}

// health says what a cause means to the breaker. An invalid decision is a
// success: the hook is alive, and if it counted, one tenant whose changes are
// refused could make the hook be skipped for all. A request that cannot be
// sent reached no hook, so it is not even that.
func health(c Cause) Result {
	switch c {
	case CauseTimeout, CauseError, CausePanic:
		return Failure
	case CauseCanceled, CauseRequest:
		return Neither
	case CauseNone, CauseInvalid, CauseBreakerOpen, CauseBusy:
	}
	return Success
}
