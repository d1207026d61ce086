package podrunner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/util/pod"
)

const (
	// retryAfter is how soon what failed is tried again.
	retryAfter = time.Second
	// refreshEvery is how often tokens are looked at; they live an hour.
	refreshEvery = time.Minute
	// apiLimit bounds one write to the API server, during which a pod stands still.
	apiLimit = 10 * time.Second
)

// worker runs one pod. Its goroutine, run, alone touches what is below inbox.
type worker struct {
	*runner
	ctx             context.Context // of everything the pod does
	cancel          context.CancelFunc
	namespace, name string
	uid             types.UID
	root            string
	woken           chan struct{}
	inbox           chan func()

	pod         *corev1.Pod      // as last seen, with the address it has here
	seen        corev1.PodStatus // as last seen
	begun       *metav1.Time
	ip          string
	containers  []*container
	prepared    bool      // root and address are there
	initialized bool      // all init containers have done their part, once
	deadline    time.Time // of the whole pod's end; zero unless it is ending
	final       bool      // nothing of it runs or will
	deleted     bool      // asked of the API server
	gone        bool      // from the API server
}

func newWorker(ctx context.Context, r *runner, pod *corev1.Pod) *worker {
	w := &worker{
		runner: r, namespace: pod.Namespace, name: pod.Name, uid: pod.UID,
		root:  filepath.Join(r.Dir, string(pod.UID)),
		woken: make(chan struct{}, 1), inbox: make(chan func()),
		begun: pod.Status.StartTime, ip: pod.Status.PodIP,
		containers: newContainers(pod.DeepCopy()), final: ended(pod.Status),
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	return w
}

// ended reports whether a status says that nothing of the pod will run again.
func ended(status corev1.PodStatus) bool {
	return status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed
}

// poke has the worker look again, soon.
func (w *worker) poke() {
	select {
	case w.woken <- struct{}{}:
	default: // it will look anyway
	}
}

func (w *worker) pokeAfter(d time.Duration) { time.AfterFunc(d, w.poke) }

// post has the worker's goroutine run f, unless the worker has ended.
func (w *worker) post(f func()) {
	select {
	case w.inbox <- f:
	case <-w.ctx.Done():
	}
}

func (w *worker) run() {
	refresh := time.NewTicker(refreshEvery)
	defer refresh.Stop()
	for w.sync(); !w.gone; w.sync() {
		select {
		case <-w.ctx.Done():
			w.abandon()
			return
		case f := <-w.inbox:
			f()
		case <-w.woken:
		case <-refresh.C:
		}
	}
	w.abandon()
	w.tokens.DeleteServiceAccountToken(w.uid)
	_ = os.RemoveAll(w.root) // the rest goes with the cluster's directory
}

// abandon ends whatever runs, without a report.
func (w *worker) abandon() {
	w.cancel()
	for _, c := range w.containers {
		if c.proc != nil {
			c.proc.signal(syscall.SIGTERM)
		}
	}
	kill := time.AfterFunc(lastWords, func() {
		for _, c := range w.containers {
			if c.proc != nil {
				c.proc.signal(syscall.SIGKILL)
			}
		}
	})
	defer kill.Stop()
	for _, c := range w.containers {
		if c.proc != nil {
			<-c.proc.done
		}
	}
}

// sync brings the pod one step on, and reports what has changed.
func (w *worker) sync() {
	pod, err := w.pods.Pods(w.namespace).Get(w.name)
	if apierrors.IsNotFound(err) || err == nil && pod.UID != w.uid {
		w.gone = true
		return
	}
	if err != nil {
		w.retry("read", err)
		return
	}
	w.pod, w.seen = pod.DeepCopy(), pod.Status
	switch {
	case w.final:
	case !w.deadline.IsZero() || pod.DeletionTimestamp != nil:
		w.end()
	default:
		w.advance()
	}
	w.report()
}

// say tells the runner's log what has happened to the pod.
func (w *worker) say(format string, args ...any) {
	klog.InfoS(fmt.Sprintf(format, args...), "pod", klog.KRef(w.namespace, w.name))
}

func (w *worker) retry(doing string, err error) {
	if w.ctx.Err() == nil {
		klog.ErrorS(err, "Will try again", "doing", doing, "pod", klog.KRef(w.namespace, w.name))
		w.pokeAfter(retryAfter)
	}
}

// advance starts what is to run now: init containers in their order, then all
// others.
func (w *worker) advance() {
	if err := w.prepare(); err != nil {
		w.hold("ContainerCreating", err)
		return
	}
	for _, c := range w.containers {
		if !w.initialized && c.kind == regular {
			w.initialized = true // all before it are done
		}
		if w.initialized && c.kind == initializer {
			continue
		}
		w.ensure(c)
		if w.initialized || w.passed(c) {
			continue
		}
		if c.kind == initializer && c.over(&w.pod.Spec) { // it has failed
			w.end()
		}
		return
	}
	if w.completed() {
		w.end()
	}
}

// passed reports whether an init container lets the next one start.
func (w *worker) passed(c *container) bool {
	if c.kind == sidecar {
		return c.started
	}
	exit := c.exit()
	return exit != nil && exit.ExitCode == 0
}

// completed reports whether no regular container will run again.
func (w *worker) completed() bool {
	for _, c := range w.containers {
		if c.kind == regular && !c.over(&w.pod.Spec) {
			return false
		}
	}
	return true
}

// hold keeps containers that have never run waiting, and says why.
func (w *worker) hold(reason string, err error) {
	for _, c := range w.containers {
		if c.state.Waiting != nil && c.exit() == nil {
			c.state = waiting(reason, err.Error())
		}
	}
	w.pokeAfter(retryAfter)
}

// prepare makes all that the containers share, and brings files up to date.
func (w *worker) prepare() error {
	if w.begun == nil {
		now := metav1.Now()
		w.begun = &now
	}
	if w.ip == "" {
		w.ip = randomAddress()
	}
	w.pod.Status.PodIP, w.pod.Status.HostIP = w.ip, hostIP
	if !w.prepared {
		if err := createRoot(w.root, w.pod, w.ip, w.Programs, w.containers); err != nil {
			return err
		}
	}
	if err := w.writeVolumes(w.root, w.pod); err != nil {
		return err
	}
	if w.prepared {
		return nil
	}
	if err := mount(w.root, w.containers); err != nil {
		return err
	}
	w.prepared = true
	return nil
}

const hostIP = "127.0.0.1"

// randomAddress returns one of four million loopback addresses: so many that the
// pods of all clusters of a machine need not know of each other.
func randomAddress() string {
	n := rand.IntN(1 << 22)
	return fmt.Sprintf("127.%d.%d.%d", 64+n>>16, n>>8&0xff, n&0xff)
}

// report writes the pod's status if it has changed, and deletes the pod once it
// is seen to have ended.
func (w *worker) report() {
	ctx, cancel := context.WithTimeout(w.ctx, apiLimit)
	defer cancel()
	switch {
	case !w.final || !ended(w.seen): // what has ended stays as it ended
		old := *w.seen.DeepCopy()
		old.StartTime, old.PodIP, old.HostIP = w.begun, w.ip, ""
		if w.ip != "" {
			old.PodIPs = []corev1.PodIP{{IP: w.ip}}
			old.HostIP, old.HostIPs = hostIP, []corev1.HostIP{{IP: hostIP}}
		}
		status := newStatus(w.pod, old, w.containers, w.initialized, w.final)
		_, _, _, err := podutil.PatchPodStatus(ctx, w.client, w.namespace, w.name, w.uid, w.seen, status)
		if err != nil {
			w.retry("report", err)
		}
	case w.pod.DeletionTimestamp != nil && !w.deleted:
		now := int64(0)
		err := w.client.CoreV1().Pods(w.namespace).Delete(ctx, w.name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &w.uid},
		})
		w.deleted = err == nil
		if err != nil && !apierrors.IsNotFound(err) {
			w.retry("delete", err)
		}
	}
}
