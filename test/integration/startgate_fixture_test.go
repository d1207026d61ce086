package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/startgate"
)

const (
	// noticePromise is how soon a start gate is to know of a change, and noticeLimit how
	// late it may be once, because the machine may be busy.
	noticePromise, noticeLimit = time.Second, 2 * time.Second
	// leaseLength is the duration of the Leases of these tests.
	leaseLength = 3 * time.Second
	// renewEvery has the proportion of the controller's defaults.
	renewEvery = 400 * time.Millisecond
)

// holder is a controller as far as its Lease goes: it renews it, by a clock that
// may be off.
type holder struct {
	t    *testing.T
	name string // of the Lease, in namespace

	mu      sync.Mutex
	skew    time.Duration
	renewed time.Time // when the last renewal had been written
	stop    func()
}

func newHolder(t *testing.T) *holder {
	t.Helper()
	h := &holder{t: t, name: unique("lease"), stop: func() {}}
	t.Cleanup(func() {
		h.stop()
		h.delete(context.Background())
	})
	return h
}

// start renews the Lease until stop is called.
func (h *holder) start(skew time.Duration) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	h.mu.Lock()
	h.skew = skew
	h.mu.Unlock()
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			h.renew(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(renewEvery):
			}
		}
	}()
	h.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
}

func (h *holder) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	h.mu.Lock()
	now := time.Now().Add(h.skew)
	h.mu.Unlock()
	if h.write(ctx, "pod-1", now) == nil {
		h.mu.Lock()
		h.renewed = time.Now()
		h.mu.Unlock()
	}
}

// write makes the Lease, or changes its holder and the time of its renewal.
func (h *holder) write(ctx context.Context, identity string, renewed time.Time) error {
	var lease coordinationv1.Lease
	err := shared.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: h.name}, &lease)
	seconds := int32(leaseLength / time.Second)
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &identity, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: renewed}}
	switch {
	case err == nil:
		return shared.admin.Update(ctx, &lease)
	case apierrors.IsNotFound(err):
		lease.Namespace, lease.Name = namespace, h.name
		return shared.admin.Create(ctx, &lease)
	}
	return err
}

func (h *holder) delete(ctx context.Context) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: h.name}}
	if err := client.IgnoreNotFound(shared.admin.Delete(ctx, lease)); err != nil {
		h.t.Error(err)
	}
}

// lastRenewal is when the Lease was last renewed.
func (h *holder) lastRenewal() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.renewed
}

// gateAccount makes a ServiceAccount with exactly the rights that the package
// documentation names, for the Lease of one name.
func gateAccount(t *testing.T, lease string) string {
	t.Helper()
	name := unique("startgate")
	at := metav1.ObjectMeta{Name: name, Namespace: namespace}
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}
	create(t, &corev1.ServiceAccount{ObjectMeta: at})
	create(t, &rbacv1.Role{ObjectMeta: at, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{lease}, Verbs: []string{"list", "watch"}}}})
	create(t, &rbacv1.RoleBinding{ObjectMeta: at, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}})
	create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"localqueues", "clusterqueues", "admissionchecks"}, Verbs: []string{"list", "watch"}}}})
	create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}})
	return name
}

// startGate is a start gate in this process, and the queue that is asked about.
type startGate struct {
	*startgate.Gate

	t       *testing.T
	q       *queue
	check   string
	holder  *holder
	account string
	// kubeconfig is that of the gate.
	kubeconfig string
	network    network
	log        lines
	// took is how long after each change it was noticed.
	took *[]time.Duration
}

// network is what a gate sends its requests through. Parts of it can be cut.
type network struct {
	mu          sync.Mutex
	cut         string // requests whose path ends so do not come through
	streams     []*stream
	connections int // that are open
}

// dial makes connections, and counts those that are open.
func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, kind, address)
	if err != nil {
		return nil, err
	}
	n.count(1)
	return &connection{Conn: c, closed: sync.OnceFunc(func() { n.count(-1) })}, nil
}

func (n *network) count(more int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.connections += more
	return n.connections
}

type connection struct {
	net.Conn

	closed func()
}

func (c *connection) Close() error {
	c.closed()
	return c.Conn.Close()
}

// stream is the body of an answer.
type stream struct {
	io.ReadCloser

	path string
}

var errCut = errors.New("cut by the test")

func (n *network) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		n.mu.Lock()
		isCut := n.cut != "" && strings.HasSuffix(r.URL.Path, n.cut)
		n.mu.Unlock()
		if isCut {
			return nil, errCut
		}
		answer, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		s := &stream{answer.Body, r.URL.Path}
		answer.Body = s
		n.mu.Lock()
		n.streams = append(n.streams, s)
		n.mu.Unlock()
		return answer, nil
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// sever ends every answer to a path with this end and lets no more requests
// through; none for "".
func (n *network) sever(end string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = end
	for _, s := range n.streams {
		if end != "" && strings.HasSuffix(s.path, end) {
			_ = s.Close()
		}
	}
}

// newStartGate runs a gate for a queue whose check is active and whose Lease is
// renewed, and waits until it admits.
func newStartGate(t *testing.T) *startGate {
	t.Helper()
	check := unique("check")
	newCheck(t, check)
	activate(t, &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: check}})
	g := &startGate{t: t, q: newQueueOf(t, check), check: check, holder: newHolder(t), took: new([]time.Duration)}
	t.Cleanup(func() {
		if n := len(*g.took); n >= 10 && percentile(*g.took, 50) > noticePromise {
			t.Errorf("half of %d changes were noticed after more than %s: %s", n, noticePromise, *g.took)
		}
	})
	g.holder.start(0)
	g.account = gateAccount(t, g.holder.name)
	g.Gate = g.run()
	g.noticed("all is well", time.Now(), patience, admitted)
	return g
}

// run runs one more gate like that of g; it ends with the test.
func (g *startGate) run() *startgate.Gate {
	g.t.Helper()
	kubeconfig, err := shared.cluster.ServiceAccountKubeconfig(g.t.Context(), namespace, g.account)
	if err != nil {
		g.t.Fatal(err)
	}
	g.kubeconfig = kubeconfig
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		g.t.Fatal(err)
	}
	cfg.Dial = g.network.dial
	cfg.Wrap(g.network.wrap)
	gate, err := startgate.New(cfg, startgate.Options{
		AdmissionLease: types.NamespacedName{Namespace: namespace, Name: g.holder.name},
		LocalQueue:     "lq", Log: slog.New(slog.NewTextHandler(&g.log, nil)),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := gate.Run(ctx); err != nil {
			g.t.Error(err)
		}
	}()
	g.t.Cleanup(func() {
		cancel()
		<-ended
		if g.t.Failed() {
			g.t.Logf("log of the start gate:\n%s", strings.Join(g.log.all(), "\n"))
		}
	})
	return gate
}

// ask asks about an attempt in the queue.
func (g *startGate) ask() admission.Decision {
	g.t.Helper()
	d, err := g.Admit(g.t.Context(), &admission.Request{TenantID: "t", Namespace: g.q.name, TryNumber: 1})
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

func admitted(d admission.Decision) bool {
	changes, _ := d.Changes()
	return changes.Labels[startgate.QueueLabel] == "lq"
}

// says is true for a hold whose reason has all the words.
func says(words ...string) func(admission.Decision) bool {
	return func(d admission.Decision) bool {
		reason, held := d.Held()
		for _, w := range words {
			held = held && strings.Contains(reason, w)
		}
		return held
	}
}

// noticed waits until the gate answers as wanted, and logs how long after the event
// that was.
func (g *startGate) noticed(what string, since time.Time, limit time.Duration, ok func(admission.Decision) bool) {
	g.t.Helper()
	for {
		d := g.ask()
		took := time.Since(since)
		switch {
		case ok(d):
			g.t.Logf("%-34s noticed after %4d ms: %s", what, took.Milliseconds(), d)
			if limit == noticeLimit {
				*g.took = append(*g.took, took)
			}
			return
		case took > limit:
			g.t.Fatalf("%s: not noticed within %s: %s", what, limit, d)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// kueueReacts waits for what Kueue does by itself, so that the gate's own time can
// be told apart.
func (g *startGate) kueueReacts(o client.Object, what string, ok func() bool) {
	g.t.Helper()
	eventually(g.t, patience, fmt.Sprintf("%T %s %s", o, o.GetName(), what), func() error {
		if err := shared.admin.Get(g.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if !ok() {
			return errNotYet
		}
		return nil
	})
}
