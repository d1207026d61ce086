package hooks

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// verifyTimeout is the deadline of Options.Verify, which is not that of the hook.
const verifyTimeout = 10 * time.Second

// errSkipped is what the runner would say without waiting for a free call.
var errSkipped = errors.New("not asked: skipped after too many failures")

// hook is the hook of a gate as it is configured. One that is configured anew is
// another hook.
type hook struct {
	gate     string
	settings *settings
	runner   *runner.Runner
	client   client
	ctx      context.Context //nolint:containedctx // the life of its calls
	cancel   context.CancelFunc

	// What follows is Hooks.mu's.
	queue   *list.List // of *question, the first to come in front
	running int        // goroutines in work
	state   State
	heard   heard
}

// retire ends the calls of a hook, whose answers nobody wants any more.
func (hk *hook) retire() {
	if hk == nil {
		return
	}
	hk.cancel()
	hk.client.Close()
}

// enqueue lets q wait for its turn, which may be now. A goroutine takes one
// question after the other, so at most Concurrency of them are needed.
func (h *Hooks) enqueue(hk *hook, q *question) {
	if hk.skipping() {
		o := runner.Outcome{Cause: runner.CauseBreakerOpen, Err: errSkipped}
		h.count(hk, o)
		n := &news{}
		q.answer(o, n)
		h.calls.Go(func() { h.tell(n) }) // never in the goroutine that asks
		return
	}
	q.hook = hk
	q.place = hk.queue.PushBack(q)
	if hk.running < h.options.Concurrency {
		hk.running++
		h.calls.Go(func() { h.work(hk) })
	}
}

// skipping tells whether a call would be skipped. It is asked before a question
// waits for a free call: while calls hang, none may be free for long. What waits
// already when the breaker opens needs nothing: the call that opened it is over,
// and its goroutine finds out at once about one question after the other.
func (hk *hook) skipping() bool {
	state, left := hk.runner.Breaker()
	return state == runner.BreakerProbe || state == runner.BreakerOpen && left > 0
}

func (hk *hook) pop(e *list.Element) *question {
	q, _ := hk.queue.Remove(e).(*question) // nothing else is put there
	q.place = nil
	return q
}

// work is a goroutine of the pool. It ends when nothing waits.
func (h *Hooks) work(hk *hook) {
	for {
		q, ctx := h.next(hk)
		if q == nil {
			return
		}
		o := hk.runner.Ask(ctx, q.Request)
		if failed(o.Cause) {
			// The server may be another one by now, at the same address or behind
			// the same path. What comes next connects anew.
			hk.client.Close()
		}
		h.tell(h.settle(hk, q, h.verify(ctx, q, o)))
	}
}

// next takes the question that has waited longest, nil if there is none.
func (h *Hooks) next(hk *hook) (*question, context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	front := hk.queue.Front()
	if front == nil {
		hk.running--
		if hk.ctx.Err() != nil {
			hk.client.Close() // of a call that had begun when it retired
		}
		return nil, nil
	}
	q := hk.pop(front)
	ctx, cancel := context.WithCancel(hk.ctx)
	q.cancel = cancel
	return q, ctx
}

// settle takes what came of a call, and hands back what is to be told.
func (h *Hooks) settle(hk *hook, q *question, o runner.Outcome) *news {
	h.mu.Lock()
	defer h.mu.Unlock()
	q.cancel()
	n := &news{}
	if hk.ctx.Err() != nil {
		return n // nobody wants to know
	}
	h.count(hk, o)
	hk.note(h.options.Log, o, n)
	if !q.dropped {
		q.answer(o, n)
	}
	return n
}

func (q *question) answer(o runner.Outcome, n *news) {
	q.outcome, q.answered = o, true
	n.answered = append(n.answered, q)
}

// count is called under the lock under which a gate is removed, so that no series
// comes back after it was deleted.
func (h *Hooks) count(hk *hook, o runner.Outcome) {
	h.options.Metrics.Calls.WithLabelValues(hk.gate, result(o)).Inc()
	switch o.Cause {
	case runner.CauseCanceled, runner.CauseBreakerOpen, runner.CauseBusy:
	case runner.CauseNone, runner.CauseTimeout, runner.CauseError, runner.CauseRequest, runner.CausePanic, runner.CauseInvalid:
		h.options.Metrics.Duration.WithLabelValues(hk.gate).Observe(o.Took.Seconds())
	}
}

// result is the name of what came: of the decision, or of the cause for none.
func result(o runner.Outcome) string {
	if d, ok := o.Verdict(); ok {
		return d.Kind().String()
	}
	return string(o.Cause)
}

// verify turns a choice that cannot be carried out into no verdict.
func (h *Hooks) verify(ctx context.Context, q *question, o runner.Outcome) runner.Outcome {
	d, verdict := o.Verdict()
	if !verdict || d.Kind() != admission.KindAdmitWith || h.options.Verify == nil {
		return o
	}
	c, _ := d.Changes()
	if c.ServiceAccount == "" && c.PriorityClassName == "" {
		return o
	}
	timed, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	err := h.options.Verify(timed, q.Namespace, c)
	if err == nil {
		return o
	}
	out := runner.Outcome{Cause: runner.CauseError, Err: &verifyError{err}, Took: o.Took}
	_, refused := errors.AsType[*admission.FieldError](err)
	switch {
	case refused:
		out.Cause = runner.CauseInvalid
	case ctx.Err() != nil:
		out.Cause = runner.CauseCanceled
	}
	return out
}

// verifyError is an error of Options.Verify.
type verifyError struct{ err error }

func (e *verifyError) Error() string { return fmt.Sprintf("the choice of the hook: %v", e.err) }

func (e *verifyError) Unwrap() error { return e.err }
