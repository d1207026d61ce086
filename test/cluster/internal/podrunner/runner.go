// Package podrunner is a stand-in for the kubelet and the container runtime of
// pods whose images are known to be directories of static binaries. It runs their
// containers as processes of this machine and reports on them as a kubelet does.
//
// Each pod has a worker, one goroutine that owns all that is known of the pod.
// Whatever else runs, such as probes and waits for processes, posts to it. What a
// worker does follows from what it knows, not from what has just happened, so an
// event that is missed or seen twice changes nothing.
package podrunner

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/kubelet/token"
)

// Config says what to run and where.
type Config struct {
	// Client reaches the API server as an administrator.
	Client *rest.Config
	// Programs are the images that are run.
	Programs Programs
	// Dir holds a directory for each pod, Logs a file for each container.
	Dir, Logs string
	// APIHost and APIPort are where pods find the API server.
	APIHost, APIPort string
	// Ready is called once pods are seen.
	Ready func()
}

// runner knows the workers of all pods.
type runner struct {
	Config
	client     kubernetes.Interface
	tokens     *token.Manager
	pods       corelisters.PodLister
	configMaps corelisters.ConfigMapLister
	secrets    corelisters.SecretLister

	mu      sync.Mutex
	workers map[types.UID]*worker
	ended   sync.WaitGroup
}

// Run runs pods until the context ends. When it returns, no process of a pod is
// left; what the API server knows of the pods stays as it is.
func Run(ctx context.Context, config Config) error {
	client, err := kubernetes.NewForConfig(config.Client)
	if err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	r := &runner{Config: config, client: client, tokens: token.NewManager(client), workers: map[types.UID]*worker{}}
	bound := informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	})
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, bound)
	files := informers.NewSharedInformerFactory(client, 0)
	r.pods = pods.Core().V1().Pods().Lister()
	r.configMaps, r.secrets = files.Core().V1().ConfigMaps().Lister(), files.Core().V1().Secrets().Lister()
	if err := r.listen(ctx, pods, files); err != nil {
		return err
	}
	// What pods mount is known before the first pod is seen.
	for _, factory := range []informers.SharedInformerFactory{files, pods} {
		factory.StartWithContext(ctx)
		if err := factory.WaitForCacheSyncWithContext(ctx).Err; err != nil {
			return ctx.Err()
		}
	}
	config.Ready()
	<-ctx.Done()
	pods.Shutdown() // no worker begins after this
	files.Shutdown()
	r.ended.Wait()
	return nil
}

// listen has the workers told of changes.
func (r *runner) listen(ctx context.Context, pods, files informers.SharedInformerFactory) error {
	_, err := pods.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.seen(ctx, obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { r.seen(ctx, obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) { r.wake(func(*worker) bool { return true }) },
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	sameNamespace := func(obj any) {
		if o, ok := obj.(metav1.Object); ok { // a deletion needs no update of files
			r.wake(func(w *worker) bool { return w.namespace == o.GetNamespace() })
		}
	}
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc:    sameNamespace,
		UpdateFunc: func(_, obj any) { sameNamespace(obj) },
	}
	for _, informer := range []cache.SharedIndexInformer{
		files.Core().V1().ConfigMaps().Informer(), files.Core().V1().Secrets().Informer(),
	} {
		if _, err := informer.AddEventHandler(changed); err != nil {
			return fmt.Errorf("watch what pods mount: %w", err)
		}
	}
	return nil
}

// seen starts the worker of a pod, or tells it that the pod has changed.
func (r *runner) seen(ctx context.Context, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[pod.UID]; w != nil {
		w.poke()
		return
	}
	if !r.Programs.run(pod) {
		return
	}
	w := newWorker(ctx, r, pod)
	r.workers[pod.UID] = w
	r.ended.Go(func() {
		w.run()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.workers, w.uid)
	})
}

// wake has the chosen workers look again.
func (r *runner) wake(chosen func(*worker) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		if chosen(w) {
			w.poke()
		}
	}
}
