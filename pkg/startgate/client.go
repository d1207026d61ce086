package startgate

import (
	"errors"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// newFeeds sets up the watches. Plain REST clients are enough for them: the
// generated clientsets of Kubernetes and Kueue would make an embedding program
// build six times as many packages.
func newFeeds(cfg *rest.Config, w *world, lease types.NamespacedName) ([]*feed, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(coordinationv1.AddToScheme(scheme), kueue.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	cfg.UserAgent = first(cfg.UserAgent, rest.DefaultKubernetesUserAgent())
	cfg.Wrap(w.server.read)
	// One connection carries all watches. When it dies silently, the renewals of
	// the Lease stay away too, so the gate holds long before the network notices.
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	coordination, err := restClient(cfg, shared, scheme, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	queues, err := restClient(cfg, shared, scheme, kueue.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	all := func(resource string) cache.ListerWatcherWithContext {
		return cache.NewListWatchFromClient(queues, resource, metav1.NamespaceAll, fields.Everything())
	}
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, lease.Name)
	sources := [kinds]struct {
		object runtime.Object
		source cache.ListerWatcherWithContext
	}{
		leases:        {&coordinationv1.Lease{}, cache.NewListWatchFromClient(coordination, "leases", lease.Namespace, one)},
		localQueues:   {&kueue.LocalQueue{}, all("localqueues")},
		clusterQueues: {&kueue.ClusterQueue{}, all("clusterqueues")},
		checks:        {&kueue.AdmissionCheck{}, all("admissionchecks")},
	}
	tables := w.tables()
	feeds := make([]*feed, 0, kinds)
	for k, s := range sources {
		feeds = append(feeds, &feed{kind: kind(k), world: w, table: tables[k], object: s.object, source: s.source})
	}
	return feeds, nil
}

func restClient(cfg *rest.Config, shared *http.Client, scheme *runtime.Scheme, gv schema.GroupVersion) (*rest.RESTClient, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath = "/apis"
	cfg.ContentConfig = rest.ContentConfig{
		ContentType:          runtime.ContentTypeJSON,
		GroupVersion:         &gv,
		NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}
	return rest.RESTClientForConfigAndClient(cfg, shared)
}
