package hooks

import (
	"container/list"
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// defaultConcurrency is how many calls of one gate run at once.
const defaultConcurrency = 16

// Options are what Hooks are made from. Log and Metrics must be set.
type Options struct {
	// Concurrency is how many calls of one gate run at once; 0 means 16.
	Concurrency int

	// Log gets one line when the cause changes for which a gate's hook gives no
	// verdict, and at debug level one for each answer.
	Log *slog.Logger

	// Metrics counts the calls of each gate.
	Metrics *metrics.Hooks

	// Certificate reads the client certificate in the Secret of that name. It is
	// kept for a minute, and beyond that while it cannot be read. Ctx has a
	// deadline of some seconds. Without Certificate a gate that names a Secret
	// has no hook.
	Certificate func(ctx context.Context, secret string) (*tls.Certificate, error)

	// Verify is asked when an answer chooses a service account or a priority
	// class, whether pods of the namespace can have it. A [*admission.FieldError]
	// says no, which is runner.CauseInvalid; another error says that it could not
	// be found out, which is runner.CauseError and no fault of the hook. Ctx has
	// a deadline of some seconds. Without Verify every choice is taken.
	Verify func(ctx context.Context, namespace string, c admission.Changes) error

	// Changed is told each time that State returns something else for a gate,
	// also from within Configure and Remove. It must not block. A hook that fails
	// now and then changes its state as often, so whoever writes the state to the
	// cluster should space the writes.
	Changed func(gate string)
}

// Question is a question about one offer.
type Question struct {
	// Gate is the name of the AdmissionGate whose hook is asked. While it has
	// none, the question waits.
	Gate string

	// Workload and Check say whose question it is. There is one at a time.
	Workload types.UID
	Check    string

	// Offer names the offer, with everything that its answer depends on: two
	// questions that may have different answers have different offers.
	Offer string

	// Namespace is that of the pods, for Options.Verify.
	Namespace string

	// Request is what the hook is asked. It must not be nil, and must not be
	// changed any more.
	Request *admission.Request

	// Answered is called once, when Answer has something to return, or when the
	// question was dropped because the hook of its gate came, changed or went
	// away: then Answer has nothing and the question may be asked anew. It is not
	// called for a question that its owner dropped, unless that was at the very
	// moment. It must not block, and may be nil.
	Answered func()
}

// Hooks asks the hooks of AdmissionGates, each by a bounded pool of its own. It
// may be used by many goroutines. Answered and Changed are called without a lock.
type Hooks struct {
	options Options
	connect func(httphook.Config) (client, error)
	ctx     context.Context //nolint:containedctx // the life of all calls
	cancel  context.CancelFunc
	unhook  func() bool // from the end of the caller's context
	calls   sync.WaitGroup

	configuring sync.Mutex // one change of a gate at a time; taken before mu

	mu        sync.Mutex // of all that follows, and of what the hooks and questions say is its
	gates     map[string]*gate
	questions map[types.UID]map[string]*question // by Workload and check
}

// client is a hook over connections.
type client interface {
	admission.Hook
	Close() // closes idle connections
}

// New returns Hooks without a hook. When ctx is done, so are all calls, as by
// Close.
func New(ctx context.Context, o Options) *Hooks {
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	ctx, cancel := context.WithCancel(ctx)
	h := &Hooks{
		options:   o,
		connect:   connect,
		ctx:       ctx,
		cancel:    cancel,
		gates:     map[string]*gate{},
		questions: map[types.UID]map[string]*question{},
	}
	h.unhook = context.AfterFunc(ctx, h.shut)
	return h
}

// connect keeps a nil *httphook.Client from becoming a client.
func connect(c httphook.Config) (client, error) {
	out, err := httphook.NewClient(c)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// question is a Question on its way to an answer. Its fields are Hooks.mu's.
type question struct {
	Question
	since    time.Time
	hook     *hook         // that it was given to; nil while the gate has none
	place    *list.Element // in the queue of hook, while it is there
	cancel   context.CancelFunc
	outcome  runner.Outcome // does not change once answered
	answered bool
	dropped  bool
}

// Ask asks q and returns at once. It does nothing when the same offer of the same
// gate is in flight or answered. Another one of the same Workload and check is
// dropped for it, and a call about that is given up.
func (h *Hooks) Ask(q Question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.questions[q.Workload][q.Check]
	if h.ctx.Err() != nil || old != nil && old.Offer == q.Offer && old.Gate == q.Gate {
		return
	}
	h.drop(old)
	asked := &question{Question: q, since: time.Now()}
	if h.questions[q.Workload] == nil {
		h.questions[q.Workload] = map[string]*question{}
	}
	h.questions[q.Workload][q.Check] = asked
	if g := h.gates[q.Gate]; g != nil && g.hook != nil {
		h.enqueue(g.hook, asked)
	}
}

// Answer returns what came of an offer; false while there is nothing yet. The
// cause is never runner.CauseCanceled: who gives a call up drops its question.
func (h *Hooks) Answer(workload types.UID, check, offer string) (runner.Outcome, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.questions[workload][check]
	if q == nil || q.Offer != offer || !q.answered {
		return runner.Outcome{}, false
	}
	return q.outcome, true
}

// Asking tells since when there is a question about an offer that has no answer
// yet, whether its call has begun or not.
func (h *Hooks) Asking(workload types.UID, check, offer string) (since time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.questions[workload][check]
	if q == nil || q.Offer != offer || q.answered {
		return time.Time{}, false
	}
	return q.since, true
}

// Done drops the question of a Workload and a check, answered or not. Its call is
// given up.
func (h *Hooks) Done(workload types.UID, check string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(h.questions[workload][check])
}

// Forget drops all questions of a Workload, as Done does.
func (h *Hooks) Forget(workload types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.questions[workload] {
		h.drop(q)
	}
}

// Close drops every question and hook, gives up all calls, and returns when none
// is left. Nothing is asked afterwards. It must not be called by Answered,
// Changed or Verify.
func (h *Hooks) Close() {
	h.unhook()
	h.shut()
	h.calls.Wait()
}

// shut is Close without waiting. Answered and Changed are not called any more:
// who would act on it is about to end too.
func (h *Hooks) shut() {
	h.cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.gates {
		g.hook.retire()
		g.hook = nil
	}
	for _, byCheck := range h.questions {
		for _, q := range byCheck {
			h.drop(q)
		}
	}
}

// drop takes q out of everything. A call about it ends and tells nobody.
func (h *Hooks) drop(q *question) {
	if q == nil {
		return
	}
	q.dropped = true
	if q.place != nil {
		q.hook.queue.Remove(q.place)
		q.place = nil
	}
	if q.cancel != nil {
		q.cancel()
	}
	byCheck := h.questions[q.Workload]
	delete(byCheck, q.Check)
	if len(byCheck) == 0 {
		delete(h.questions, q.Workload)
	}
}
