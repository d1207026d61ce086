package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hooks"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// Indexes of cached Workloads. They hold waiting Workloads only.
const (
	// indexCheck is by the names of the checks that a Workload may wait for.
	indexCheck = "waiting-for-check"
	// indexOwner is by the UID of the TrainJob that a Workload was made for.
	indexOwner = "waiting-owner"
	// indexQuota is by the ClusterQueue whose quota a Workload sits on while its
	// checks are open.
	indexQuota = "waiting-on-quota-of"
)

// Options are what the controllers are built from.
type Options struct {
	// Held is asked before each write; an error means that this replica may no
	// longer write.
	Held func() error
	// Resync is the time between full passes; greater than 0.
	Resync time.Duration
	// Workers is how many Workloads are reconciled at once; at least 1.
	Workers int
	Log     *slog.Logger
	Metrics *metrics.Metrics
	// SecretNamespace is where client certificates for hooks are.
	SecretNamespace string
	// Wanted says which ClusterQueues are to have which checks. With Mend what is
	// missing is put there.
	Wanted wiring.Wanted
	Mend   bool
}

// Setup adds the controllers to a manager.
func Setup(ctx context.Context, mgr manager.Manager, o Options) error {
	_, err := setup(ctx, mgr, o)
	return err
}

// setup adds the controllers and returns the runner of their full passes.
func setup(ctx context.Context, mgr manager.Manager, o Options) (*passes, error) {
	if err := setupCache(ctx, mgr); err != nil {
		return nil, err
	}
	g := &Gate{
		cached: mgr.GetClient(), live: mgr.GetAPIReader(), writer: mgr.GetClient(), held: o.Held,
		log: o.Log, events: mgr.GetEventRecorder("dispatch-admission"), metrics: o.Metrics,
		memory: newMemory(), backoff: flowcontrol.NewBackOff(retryBase, retryMax), wanted: o.Wanted, mend: o.Mend,
	}
	var err error
	if g.pods, err = newPodWatch(mgr, g.mapPod); err != nil {
		return nil, err
	}
	gates := &Gates{cached: mgr.GetClient(), writer: mgr.GetClient(), held: o.Held, log: o.Log}
	g.hooks = newHooks(ctx, mgr, o, gates.changed)
	g.policies = newPolicies(mgr.GetClient(), g.hooks, g.pods.want)
	checks := &Checks{cached: mgr.GetClient(), writer: mgr.GetClient(), held: o.Held, log: o.Log, policies: g.policies}
	gates.policies = g.policies
	wires, err := newWires(ctx, mgr, o)
	if err != nil {
		return nil, err
	}
	p := &passes{period: o.Resync, checks: checks, gate: g, log: o.Log, queue: make(chan queue, 1)}
	return p, errors.Join(
		mgr.Add(p), mgr.Add(g.pods),
		watchChecks(mgr, checks), watchGates(mgr, gates), watchQueues(mgr, wires), watchWorkloads(mgr, g, p, o.Workers))
}

// newHooks sets up the asking of hooks. changed is told when the state of a gate's
// hook is another one.
func newHooks(ctx context.Context, mgr manager.Manager, o Options, changed func(gate string)) *hooks.Hooks {
	live := mgr.GetAPIReader()
	verify := &choices{live: live}
	return hooks.New(ctx, hooks.Options{
		Log: o.Log, Metrics: o.Metrics.Hooks, Verify: verify.verify,
		Certificate: func(ctx context.Context, name string) (*tls.Certificate, error) {
			return clientCertificate(ctx, live, client.ObjectKey{Namespace: o.SecretNamespace, Name: name})
		},
		Changed: changed,
	})
}

// clientCertificate reads the certificate that the gate shows to a hook.
func clientCertificate(ctx context.Context, live client.Reader, key client.ObjectKey) (*tls.Certificate, error) {
	var secret corev1.Secret
	if err := live.Get(ctx, key, &secret); err != nil {
		return nil, fmt.Errorf("reading the Secret %s: %w", key, err)
	}
	return hooks.ParseCertificate(secret.Data)
}

// setupCache adds the indexes and starts every informer with the manager, on
// candidates too, so that a new leader has its caches at once.
func setupCache(ctx context.Context, mgr manager.Manager) error {
	indexes := map[string]client.IndexerFunc{indexCheck: byCheck, indexOwner: byOwner, indexQuota: byQuota}
	for name, index := range indexes {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &kueue.Workload{}, name, index); err != nil {
			return fmt.Errorf("index %s: %w", name, err)
		}
	}
	for _, object := range []client.Object{
		&kueue.AdmissionCheck{}, &kueue.Workload{}, &trainer.TrainJob{}, &kueue.ClusterQueue{}, &kueue.ResourceFlavor{}, &v1alpha1.AdmissionGate{},
	} {
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return fmt.Errorf("informer of %T: %w", object, err)
		}
	}
	return nil
}

func byCheck(o client.Object) []string {
	wl, ok := o.(*kueue.Workload)
	if !ok {
		return nil
	}
	return gate.Waiting(wl)
}

func byOwner(o client.Object) []string {
	wl, ok := o.(*kueue.Workload)
	if !ok || len(gate.Waiting(wl)) == 0 {
		return nil
	}
	if owner := gate.TrainJobOwner(wl); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

func byQuota(o client.Object) []string {
	wl, ok := o.(*kueue.Workload)
	if !ok || gate.PhaseOf(wl) != gate.PhaseReserved || wl.Status.Admission == nil || len(gate.Waiting(wl)) == 0 {
		return nil
	}
	return []string{string(wl.Status.Admission.ClusterQueue)}
}

// ourCheck passes events of our checks only. The controller's name cannot
// change, so the rest never matters.
var ourCheck = predicate.NewPredicateFuncs(func(o client.Object) bool {
	check, ok := o.(*kueue.AdmissionCheck)
	return ok && isOurs(check)
})

func watchChecks(mgr manager.Manager, c *Checks) error {
	return builder.ControllerManagedBy(mgr).
		Named("admissioncheck").
		// A new check is to be made Active at once; one that somebody made
		// inactive, again.
		For(&kueue.AdmissionCheck{}, builder.WithPredicates(ourCheck)).
		// A gate that appears, is mended, broken or deleted, makes its checks active
		// or inactive.
		Watches(&v1alpha1.AdmissionGate{}, handler.EnqueueRequestsFromMapFunc(c.mapGate)).
		WithOptions(controller.Options{RateLimiter: rateLimiter()}).
		Complete(c)
}

func watchGates(mgr manager.Manager, g *Gates) error {
	return builder.ControllerManagedBy(mgr).
		Named("admissiongate").
		For(&v1alpha1.AdmissionGate{}).
		// The state of a hook is part of its gate's status.
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			g.queue.Store(&q)
			return nil
		})).
		WithOptions(controller.Options{RateLimiter: rateLimiter()}).
		Complete(g)
}

func watchWorkloads(mgr manager.Manager, g *Gate, p *passes, workers int) (err error) {
	g.pods.workloads, err = builder.ControllerManagedBy(mgr).
		Named("workload").
		// The object of it all.
		Watches(&kueue.Workload{}, g.workloadEvents()).
		// A TrainJob that appears, is suspended, or whose pods stop, opens the
		// gate of the Workload that waits for it.
		Watches(&trainer.TrainJob{}, handler.EnqueueRequestsFromMapFunc(g.mapTrainJob)).
		// A check that appears after the Workloads that name it has to be
		// answered for each of them.
		Watches(&kueue.AdmissionCheck{}, handler.EnqueueRequestsFromMapFunc(g.mapCheck), builder.WithPredicates(ourCheck)).
		// A gate that changes may decide otherwise than what its Workloads wait for.
		Watches(&v1alpha1.AdmissionGate{}, handler.EnqueueRequestsFromMapFunc(g.mapGate)).
		// Somebody begins to wait for quota that held Workloads sit on.
		Watches(&kueue.ClusterQueue{}, handler.EnqueueRequestsFromMapFunc(g.mapQueue), builder.WithPredicates(getsCrowded)).
		// A queue loses a check that keeps Workloads without quota.
		Watches(&kueue.ClusterQueue{}, g.queueLosses()).
		// The full pass and the answers of hooks add to the same queue.
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			add := func(r reconcile.Request) { q.Add(r) }
			g.again.Store(&add)
			p.queue <- q
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: rateLimiter()}).
		Build(g)
	return err
}

// rateLimiter spaces retries after faults. Half a minute at most: a fault of the
// API server should not delay jobs for long after it has ended.
func rateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryBase, 30*time.Second)
}

// workloadEvents queues Workloads that may need the gate, and takes note of
// each loss of quota, which a later version of the object need not show.
func (g *Gate) workloadEvents() handler.EventHandler {
	add := func(o client.Object, q queue) {
		if wl, ok := o.(*kueue.Workload); ok && gate.Relevant(wl) {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(wl)})
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { add(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*kueue.Workload)
			after, ok2 := e.ObjectNew.(*kueue.Workload)
			if ok1 && ok2 && before.UID == after.UID {
				if loss := gate.LossBetween(before, after); loss != nil {
					g.memory.lose(after.UID, loss)
				}
				if gate.PhaseOf(after) != gate.PhaseReserved {
					g.hooks.Forget(after.UID) // nobody waits for an answer about it
				}
			}
			add(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) {
			g.memory.forget(e.Object.GetUID())
			g.hooks.Forget(e.Object.GetUID())
		},
	}
}

func (g *Gate) mapTrainJob(ctx context.Context, job client.Object) []reconcile.Request {
	return g.mapped(ctx, client.MatchingFields{indexOwner: string(job.GetUID())})
}

// mapPod finds the Workload of a pod, Job or JobSet of a TrainJob, which share its
// name.
func (g *Gate) mapPod(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[jobset.JobSetNameKey]
	if name == "" {
		name = o.GetName()
	}
	job, err := trainJob(ctx, g.cached, o.GetNamespace(), name)
	if err != nil || job == nil {
		return nil
	}
	return g.mapTrainJob(ctx, job)
}

// mapGate finds the Workloads that wait for a check of a gate.
func (g *Gate) mapGate(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, check := range checksOf(ctx, g.cached, o.GetName()) {
		requests = append(requests, g.mapped(ctx, client.MatchingFields{indexCheck: check})...)
	}
	return requests
}

// mapGate finds the checks of a gate.
func (c *Checks) mapGate(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, check := range checksOf(ctx, c.cached, o.GetName()) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: check}})
	}
	return requests
}

// checksOf names the checks of ours whose parameters name a gate.
func checksOf(ctx context.Context, r client.Reader, gateName string) []string {
	checks, err := ourChecks(ctx, r)
	if err != nil {
		return nil
	}
	var names []string
	for i := range checks {
		if p := checks[i].Spec.Parameters; p != nil && p.APIGroup == v1alpha1.GroupName && p.Name == gateName {
			names = append(names, checks[i].Name)
		}
	}
	return names
}

func (g *Gate) mapCheck(ctx context.Context, check client.Object) []reconcile.Request {
	return g.mapped(ctx, client.MatchingFields{indexCheck: check.GetName()})
}

func (g *Gate) mapped(ctx context.Context, by client.MatchingFields) []reconcile.Request {
	requests, err := workloads(ctx, g.cached, by)
	if err != nil {
		g.log.ErrorContext(ctx, "finding the workloads that an event concerns", "error", err)
	}
	return requests
}
