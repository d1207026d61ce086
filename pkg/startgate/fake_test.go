package startgate

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// fakeSource is an API server of one kind of objects.
type fakeSource struct {
	mu      sync.Mutex
	objects map[string]runtime.Object
	list    runtime.Object // an empty one
	example runtime.Object // for bookmarks
	streams []*watch.FakeWatcher
	err     error // of each request
	plain   bool  // cannot begin a watch with the whole state
	stuck   bool  // begins with the whole state and never comes to its end
	lists   int
}

func (s *fakeSource) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if s.err != nil {
		return nil, s.err
	}
	list := s.list.DeepCopyObject()
	all := make([]runtime.Object, 0, len(s.objects))
	for _, o := range s.objects {
		all = append(all, o.DeepCopyObject())
	}
	return list, meta.SetList(list, all)
}

func (s *fakeSource) WatchWithContext(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	whole := o.SendInitialEvents != nil && *o.SendInitialEvents
	switch {
	case s.err != nil:
		return nil, s.err
	case whole && s.plain:
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	w := watch.NewFakeWithChanSize(1000, false)
	if whole {
		for _, o := range s.objects {
			w.Add(o.DeepCopyObject())
		}
		end := s.example.DeepCopyObject()
		m, err := meta.Accessor(end)
		if err != nil {
			return nil, err
		}
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if !s.stuck {
			w.Action(watch.Bookmark, end)
		}
	}
	s.streams = append(s.streams, w)
	return w, nil
}

// listed is how often everything was listed.
func (s *fakeSource) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// put makes or changes an object.
func (s *fakeSource) put(o runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, _ := keyOf(o)
	_, known := s.objects[key]
	s.objects[key] = o.DeepCopyObject()
	for _, w := range s.streams {
		if known {
			w.Modify(o.DeepCopyObject())
		} else {
			w.Add(o.DeepCopyObject())
		}
	}
}

// drop deletes an object.
func (s *fakeSource) drop(o runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, _ := keyOf(o)
	delete(s.objects, key)
	for _, w := range s.streams {
		w.Delete(o.DeepCopyObject())
	}
}

// stick makes watches that begin with the whole state never come to its end.
func (s *fakeSource) stick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = true
}

// cut ends all watches, and lets every request fail from now on; with nil, succeed.
func (s *fakeSource) cut(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	for _, w := range s.streams {
		w.Stop()
	}
	s.streams = nil
}

// fakeCluster is a cluster in which the attempts of team may start, once somebody
// renews the Lease.
type fakeCluster struct {
	sources [kinds]*fakeSource
	log     safeLog
}

// safeLog is what was logged.
type safeLog struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func newFakeCluster() *fakeCluster {
	c := &fakeCluster{sources: [kinds]*fakeSource{
		leases:        {list: &coordinationv1.LeaseList{}, example: &coordinationv1.Lease{}},
		localQueues:   {list: &kueue.LocalQueueList{}, example: &kueue.LocalQueue{}},
		clusterQueues: {list: &kueue.ClusterQueueList{}, example: &kueue.ClusterQueue{}},
		checks:        {list: &kueue.AdmissionCheckList{}, example: &kueue.AdmissionCheck{}},
	}}
	for _, s := range c.sources {
		s.objects = map[string]runtime.Object{}
	}
	c.sources[localQueues].put(theLocalQueue())
	c.sources[clusterQueues].put(theClusterQueue())
	c.sources[checks].put(theCheck())
	return c
}

func isActive() []metav1.Condition {
	return []metav1.Condition{{Type: "Active", Status: metav1.ConditionTrue, Reason: "Ready"}}
}

func theLocalQueue() *kueue.LocalQueue {
	return &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "lq"},
		Spec: kueue.LocalQueueSpec{ClusterQueue: "cq"}, Status: kueue.LocalQueueStatus{Conditions: isActive()}}
}

func theClusterQueue() *kueue.ClusterQueue {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "cq"}, Status: kueue.ClusterQueueStatus{Conditions: isActive()}}
	cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{
		AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: "ours", OnFlavors: []kueue.ResourceFlavorReference{"gpu"}}}}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{{Flavors: []kueue.FlavorQuotas{{Name: "cpu"}, {Name: "gpu"}}}}
	return cq
}

func theCheck() *kueue.AdmissionCheck {
	return &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "ours"},
		Spec: kueue.AdmissionCheckSpec{ControllerName: v1alpha1.ControllerName}, Status: kueue.AdmissionCheckStatus{Conditions: isActive()}}
}

// renew writes the Lease every two seconds, by a clock that is off, until the
// result is called.
func (c *fakeCluster) renew(skew time.Duration) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c.sources[leases].put(newLease("a", time.Now().Add(skew)))
			select {
			case <-done:
				return
			case <-time.After(2 * time.Second):
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(done)
		<-ended
	})
}

// gate runs a gate on the cluster until ctx is done.
func (c *fakeCluster) gate(ctx context.Context, t *testing.T, o Options) *Gate {
	t.Helper()
	o.Log = slog.New(slog.NewTextHandler(&c.log, nil))
	w := newWorld("dispatch-system/dispatch-admission", o.Log)
	w.server.last.Store(&reading{server: time.Now(), here: time.Now()})
	g := &Gate{options: o, world: w}
	for k, s := range c.sources {
		g.feeds = append(g.feeds, &feed{kind: kind(k), world: w, table: w.tables()[k], object: s.example, source: s})
	}
	go func() {
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return g
}
