package startgate

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// How soon a watch that has ended or failed is tried again. The default of
// client-go, up to a minute, would keep attempts waiting as long after the API
// server is back.
const (
	retryEnded  = 100 * time.Millisecond
	retryFailed = 600 * time.Millisecond
	// An API server that has just started forbids everything for a second or two,
	// until it has read the roles. One that still does has been told to.
	retryRefused = 5 * time.Second
	refusals     = 30
)

// feed keeps one kind of objects current, and knows whether they are. It stands
// between a reflector and its requests on one side, and is the store that the
// reflector fills on the other.
type feed struct {
	kind   kind
	world  *world
	table  table
	object runtime.Object // of the type that is expected
	source cache.ListerWatcherWithContext

	// What follows is guarded by the lock of world.

	// stream is the watch that runs; nil when there is none.
	stream *stream
	// listed says that what is known goes with stream. A stream may begin with the
	// whole state; until that is complete, the state before it is kept.
	listed bool
}

var _ cache.ReflectorStore = (*feed)(nil)

// run watches until ctx is done.
func (f *feed) run(ctx context.Context) {
	source := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
	backoff := wait.Backoff{Duration: retryEnded, Cap: retryFailed, Factor: 2, Steps: 4, Jitter: 0.2}
	r := cache.NewReflectorWithOptions(source, f.object, f,
		cache.ReflectorOptions{Name: "startgate", TypeDescription: kindNames[f.kind], Backoff: &backoff})
	// The loop of the reflector itself would log each attempt.
	for refused := 0; ctx.Err() == nil; {
		err := r.ListAndWatchWithContext(ctx)
		pause := retryEnded
		if err != nil {
			f.failed(ctx, err)
			pause = retryFailed
		}
		if refused++; !isRefusal(err) {
			refused = 0
		} else if refused > refusals {
			pause = retryRefused
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(pause, 0.2)):
		}
	}
}

// isRefusal tells whether an API server has answered that it will not.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

func (f *feed) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	all, err := f.source.ListWithContext(ctx, o)
	if err != nil {
		f.failed(ctx, err)
	}
	return all, err
}

func (f *feed) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	whole := o.SendInitialEvents != nil && *o.SendInitialEvents
	w, err := f.source.WatchWithContext(ctx, o)
	if whole && apierrors.IsInvalid(err) {
		return nil, err // this API server cannot do it; the reflector lists instead
	}
	if err != nil {
		f.failed(ctx, err)
		return nil, err
	}
	s := &stream{Interface: w, feed: f}
	_ = f.change(func() error {
		f.stream, f.listed = s, !whole
		return nil
	})
	return s, nil
}

// stream is a watch that tells its feed when it is no longer read. A reflector
// stops every watch, also one that has ended by itself.
type stream struct {
	watch.Interface

	feed *feed
}

// Stop implements watch.Interface.
func (s *stream) Stop() {
	s.Interface.Stop()
	f := s.feed
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	if f.stream != s {
		return
	}
	f.stream = nil
	if state := f.state(); state.open {
		state.open, state.fresh = false, time.Now()
	}
}

// Replace implements cache.ReflectorStore: everything has been read.
func (f *feed) Replace(all []any, _ string) error {
	return f.change(func() error {
		if err := f.table.reset(all); err != nil {
			return err
		}
		f.listed, f.state().fresh = true, time.Now()
		return nil
	})
}

// Add implements cache.ReflectorStore: the watch has told of a new object.
func (f *feed) Add(object any) error {
	return f.change(func() error { return f.table.put(object) })
}

// Update implements cache.ReflectorStore: the watch has told of a change.
func (f *feed) Update(object any) error { return f.Add(object) }

// Delete implements cache.ReflectorStore: the watch has told of an end.
func (f *feed) Delete(object any) error {
	return f.change(func() error { return f.table.drop(object) })
}

// Resync implements cache.ReflectorStore. Nothing is to be told again.
func (f *feed) Resync() error { return nil }

// state is how current this kind is. It needs the lock.
func (f *feed) state() *feedState { return &f.world.known.feeds[f.kind] }

// change changes what is known, or how current that is.
func (f *feed) change(how func() error) error {
	f.world.mu.Lock()
	err := how()
	state := f.state()
	state.open = f.stream != nil && f.listed
	mended := state.open && state.fault != nil
	if mended {
		state.fault = nil
	}
	f.world.mu.Unlock()
	if mended {
		f.world.log.Info("the watch runs again", "kind", kindNames[f.kind])
	}
	return err
}

// failed notes why there is no watch. Each outage is logged once.
func (f *feed) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // it was told to stop
	}
	f.world.mu.Lock()
	first := f.state().fault == nil
	f.state().fault = err
	f.world.mu.Unlock()
	if first {
		f.world.log.WarnContext(ctx, "the watch has failed", "kind", kindNames[f.kind], "error", err)
	}
}
