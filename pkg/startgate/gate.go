package startgate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// QueueLabel is the label that the gate adds to what it admits. It names the
// LocalQueue, in the namespace of the job, that Kueue shall queue the job in.
const QueueLabel = "kueue.x-k8s.io/queue-name"

// Options are what a gate needs to know beside the API server. The zero value
// will do where every request names its namespace and its queue.
type Options struct {
	// AdmissionLease is the leader election Lease of the admission controller, as
	// its flags -lease-namespace and -lease-name say. An empty field is that of
	// v1alpha1.DefaultLeaseNamespace or v1alpha1.DefaultLeaseName.
	AdmissionLease types.NamespacedName

	// LocalQueue is the queue of requests that name none. It is looked up in the
	// namespace of the request. Empty means that such requests are refused.
	LocalQueue string

	// Namespace is the namespace of requests that name none. Empty means that such
	// requests are refused.
	Namespace string

	// Policy is asked when nothing keeps an attempt waiting. Nil admits.
	Policy admission.Hook

	// Log gets a line when a watch fails and when it runs again. Nil logs nothing.
	Log *slog.Logger
}

// Gate is a hook that holds an attempt while it could not be admitted, and then
// asks the policy. It may be used by many goroutines.
type Gate struct {
	options Options
	world   *world
	feeds   []*feed
	running atomic.Bool
}

var _ admission.Hook = (*Gate)(nil)

// New makes a gate for the cluster of cfg, which is not changed. It sends no
// request: [Gate.Run] does. The error names the option that is wrong.
//
// The timeout of cfg is ignored, because a watch has no end.
func New(cfg *rest.Config, o Options) (*Gate, error) {
	o.AdmissionLease = types.NamespacedName{
		Namespace: first(o.AdmissionLease.Namespace, v1alpha1.DefaultLeaseNamespace),
		Name:      first(o.AdmissionLease.Name, v1alpha1.DefaultLeaseName),
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	w := newWorld(o.AdmissionLease.String(), o.Log)
	feeds, err := newFeeds(cfg, w, o.AdmissionLease)
	if err != nil {
		return nil, fmt.Errorf("start gate: %w", err)
	}
	return &Gate{options: o, world: w, feeds: feeds}, nil
}

func (o Options) check() error {
	for _, c := range []struct {
		option, value string
		problems      []string
	}{
		{"AdmissionLease.Namespace", o.AdmissionLease.Namespace, validation.IsDNS1123Label(o.AdmissionLease.Namespace)},
		{"AdmissionLease.Name", o.AdmissionLease.Name, validation.IsDNS1123Subdomain(o.AdmissionLease.Name)},
		{"LocalQueue", o.LocalQueue, queueProblems(o.LocalQueue)},
		{"Namespace", o.Namespace, validation.IsDNS1123Label(o.Namespace)},
	} {
		if c.value != "" && len(c.problems) > 0 {
			return fmt.Errorf("start gate: %s: %q: %s", c.option, c.value, c.problems[0])
		}
	}
	return nil
}

// queueProblems is what is wrong with the name of a LocalQueue. Other than that of
// most objects it must fit into a label.
func queueProblems(name string) []string {
	return append(validation.IsDNS1123Subdomain(name), validation.IsValidLabelValue(name)...)
}

// Run keeps watching the cluster until ctx is done, and returns nil then. Until
// it is called, and until the watches have told their first state, [Gate.Admit]
// holds. It may be called once; a second call returns an error.
func (g *Gate) Run(ctx context.Context) error {
	if g.running.Swap(true) {
		return errors.New("start gate: it runs already, or has run")
	}
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(g.options.Log.Handler()))
	var all sync.WaitGroup
	for _, f := range g.feeds {
		all.Go(func() { f.run(ctx) })
	}
	all.Wait()
	return nil
}

// Ready is nil once the gate can judge: every watch has told its first state, and
// the Lease has been looked at long enough. It says what is missing before. It
// does not say whether attempts are held, and stays nil while the API server is
// away: the gate then answers, with a Hold that says so.
func (g *Gate) Ready() error { return g.world.ready() }

// Admit holds with every reason why the attempt could not be admitted now, sorted.
// When there is none it asks the policy, and passes on its Hold, its Refuse or its
// error. To what the policy admits it adds the label [QueueLabel], so it never
// answers a plain Admit.
//
// A request without a queue or a namespace, and without a default for it, is
// refused, and so is one that names what cannot be the name of a queue: it would
// be the same at every offer. The queue is the LocalQueue of the request, else the
// one that the labels of its pods name, else the default. The policy is told the
// queue, its ClusterQueue and the namespace as the gate found them.
//
// The error is that of the policy, or says that its changes are not valid and
// wraps a [*admission.FieldError]. A panic of the policy is not caught. Admit by
// itself neither waits nor sends a request.
func (g *Gate) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	t, refused := g.target(req)
	if refused != "" {
		return admission.Refuse(refused), nil
	}
	reasons, clusterQueue := g.world.reasons(t)
	if len(reasons) > 0 {
		return hold(reasons), nil
	}
	d, err := g.ask(ctx, req, t, clusterQueue)
	if err != nil {
		return admission.Decision{}, err
	}
	changes, admitted := changesOf(d)
	if !admitted {
		return d, nil
	}
	// The policy may have taken its time.
	if reasons, _ := g.world.reasons(t); len(reasons) > 0 {
		return hold(reasons), nil
	}
	changes.Labels = maps.Clone(changes.Labels)
	if changes.Labels == nil {
		changes.Labels = map[string]string{}
	}
	changes.Labels[QueueLabel] = t.localQueue
	return admission.AdmitWith(changes), nil
}

// ask asks the policy and checks its answer.
func (g *Gate) ask(ctx context.Context, req *admission.Request, t target, clusterQueue string) (admission.Decision, error) {
	if g.options.Policy == nil {
		return admission.Admit(), nil
	}
	told := req.Clone()
	told.Namespace, told.LocalQueue, told.ClusterQueue = t.namespace, t.localQueue, clusterQueue
	d, err := g.options.Policy.Admit(ctx, told)
	if err != nil {
		return admission.Decision{}, err
	}
	if err := d.Validate(); err != nil {
		return admission.Decision{}, fmt.Errorf("the decision of the policy: %w", err)
	}
	return d, nil
}

// changesOf are the changes of a decision that admits, whether it has any.
func changesOf(d admission.Decision) (admission.Changes, bool) {
	changes, _ := d.Changes()
	return changes, d.Kind() == admission.KindAdmit || d.Kind() == admission.KindAdmitWith
}

// target is the queue of a request, or why it is refused.
func (g *Gate) target(req *admission.Request) (t target, refused string) {
	const wayOut = "name a LocalQueue in the task (localQueue, or the pod label " + QueueLabel + "), or have the operator set a default (kueue.localQueue)"
	t = target{
		namespace:  first(req.Namespace, g.options.Namespace),
		localQueue: first(req.LocalQueue, req.Execution.Labels[QueueLabel], g.options.LocalQueue),
	}
	switch {
	case t.localQueue == "":
		return t, "localQueue: the request names no queue, and there is no default: " + wayOut
	case len(queueProblems(t.localQueue)) > 0:
		return t, fmt.Sprintf("localQueue: %.80q cannot be the name of a LocalQueue: %s", t.localQueue, wayOut)
	case t.namespace == "":
		return t, "namespace: the request names none, and there is no default, so LocalQueue " + t.localQueue +
			" cannot be found: name the namespace of the job in the request, or have the operator set a default (kueue.namespace)"
	case len(validation.IsDNS1123Label(t.namespace)) > 0:
		return t, fmt.Sprintf("namespace: %.80q cannot be the name of a namespace: name that of the job", t.namespace)
	}
	return t, ""
}

// first is the first text that is not empty.
func first(texts ...string) string {
	for _, s := range texts {
		if s != "" {
			return s
		}
	}
	return ""
}
