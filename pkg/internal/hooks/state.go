package hooks

import (
	"log/slog"
	"time"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// quiet is for how long a cause that came back is not logged again.
const quiet = time.Minute

// State is what a gate's status says about its hook. It is zero without a hook.
type State struct {
	// Endpoint is where the hook is asked: its URL, or the path of its socket
	// behind "unix:".
	Endpoint string

	// Breaker is Open while the hook is skipped, also while it is probed.
	Breaker v1alpha1.BreakerState

	// LastError is why the hook gave no verdict when it was last asked in vain;
	// empty once it gave one and is not skipped. It has no time, counter or
	// address of one connection in it, so the same trouble is the same text.
	LastError string
}

// State returns the state of a gate's hook.
func (h *Hooks) State(gate string) State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state(gate)
}

func (h *Hooks) state(gate string) State {
	if hk := h.gates[gate].hooked(); hk != nil {
		return hk.state
	}
	return State{}
}

// heard is what was last heard of a hook, and what was logged of it.
type heard struct {
	cause runner.Cause
	told  map[runner.Cause]time.Time
}

// fresh takes a cause and tells whether it is worth a line: when it is another one
// than before, and was not told a moment ago. A hook that now answers and now does
// not would fill the log.
func (h *heard) fresh(c runner.Cause, now time.Time) bool {
	if c == h.cause {
		return false
	}
	h.cause = c
	if last, ok := h.told[c]; ok && now.Sub(last) < quiet {
		return false
	}
	if h.told == nil {
		h.told = make(map[runner.Cause]time.Time)
	}
	h.told[c] = now
	return true
}

// note takes what a call says about the hook.
func (hk *hook) note(log *slog.Logger, o runner.Outcome, n *news) {
	next := hk.state
	next.Breaker = hk.breaker()
	switch o.Cause {
	case runner.CauseCanceled, runner.CauseBreakerOpen: // says nothing new
	case runner.CauseNone:
		if next.Breaker == v1alpha1.BreakerClosed { // else it is a call from before
			next.LastError = ""
		}
		if hk.heard.fresh(o.Cause, time.Now()) {
			n.lines = append(n.lines, func() { log.Info("the hook answers again", "gate", hk.gate) })
		}
	case runner.CauseTimeout, runner.CauseError, runner.CauseRequest, runner.CausePanic, runner.CauseInvalid, runner.CauseBusy:
		next.LastError = hk.settings.why(o)
		if hk.heard.fresh(o.Cause, time.Now()) {
			n.lines = append(n.lines, func() {
				log.Warn("the hook gives no verdict", "gate", hk.gate, "cause", o.Cause, "error", o.Err)
			})
		}
	}
	if next.Breaker != hk.state.Breaker {
		n.lines = append(n.lines, func() { hk.tellBreaker(log, next.Breaker) })
	}
	if next != hk.state {
		hk.state = next
		n.changed = hk.gate
	}
}

func (hk *hook) tellBreaker(log *slog.Logger, to v1alpha1.BreakerState) {
	if to == v1alpha1.BreakerOpen {
		log.Warn("the hook is skipped after too many failures in a row", "gate", hk.gate, "cooldown", hk.settings.cooldown)
		return
	}
	log.Info("the hook is no longer skipped", "gate", hk.gate)
}

func (hk *hook) breaker() v1alpha1.BreakerState {
	if state, _ := hk.runner.Breaker(); state == runner.BreakerClosed {
		return v1alpha1.BreakerClosed
	}
	return v1alpha1.BreakerOpen
}

// failed tells whether a call says that something is wrong with the server or
// with the way to it.
func failed(c runner.Cause) bool {
	return c == runner.CauseTimeout || c == runner.CauseError || c == runner.CausePanic
}

// news is what is told once the lock is given back.
type news struct {
	answered []*question
	dropped  []*question // for their owners to ask anew
	changed  string      // the gate that has another State
	lines    []func()    // of the log
}

// tell is called without a lock, by a goroutine that may call others.
func (h *Hooks) tell(n *news) {
	for _, line := range n.lines {
		line()
	}
	if n.changed != "" && h.options.Changed != nil {
		h.options.Changed(n.changed)
	}
	for _, q := range n.answered {
		h.logAnswer(q)
		q.wake()
	}
	for _, q := range n.dropped {
		q.wake()
	}
}

func (q *question) wake() {
	if q.Answered != nil {
		q.Answered()
	}
}

func (h *Hooks) logAnswer(q *question) {
	if !h.options.Log.Enabled(h.ctx, slog.LevelDebug) {
		return
	}
	args := []any{
		"gate", q.Gate, "check", q.Check, "workload", q.Namespace + "/" + q.Request.Workload.Name, "offer", q.Offer,
		"result", result(q.outcome), "took", q.outcome.Took,
	}
	if q.outcome.Err != nil {
		args = append(args, "error", q.outcome.Err)
	}
	h.options.Log.DebugContext(h.ctx, "asked the hook", args...)
}

// watched is a hook as the metrics see it.
type watched struct {
	hooks *Hooks
	hook  *hook
}

// watch has a hook show in the metrics of its gate; nil shows nothing.
func (h *Hooks) watch(gate string, hk *hook) {
	if hk == nil {
		h.options.Metrics.Watch(gate, nil)
		return
	}
	h.options.Metrics.Watch(gate, watched{h, hk})
}

// Late counts calls that have not returned.
func (w watched) Late() int { return w.hook.runner.Late() }

// Queued counts questions that wait for a call.
func (w watched) Queued() int {
	w.hooks.mu.Lock()
	defer w.hooks.mu.Unlock()
	return w.hook.queue.Len()
}

// Skipped tells whether the breaker is open.
func (w watched) Skipped() bool {
	w.hooks.mu.Lock()
	defer w.hooks.mu.Unlock()
	return w.hook.state.Breaker == v1alpha1.BreakerOpen
}
