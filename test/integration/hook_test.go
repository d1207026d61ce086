package integration

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// testHook is a hook that a test speaks for, on a Unix socket.
type testHook struct {
	t      *testing.T
	socket string

	mu     sync.Mutex
	answer admission.HookFunc
	calls  []*admission.Request
	raw    []string // bodies as they came over the wire
	server *http.Server
}

// newHook serves a hook that answers d until told otherwise.
func newHook(t *testing.T, d admission.Decision) *testHook {
	t.Helper()
	// The path of a socket has at most 107 bytes, so the test's own folder will
	// not do.
	dir, err := os.MkdirTemp("", "hook-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	h := &testHook{t: t, socket: filepath.Join(dir, "hook.sock")}
	h.says(d)
	h.listen()
	t.Cleanup(func() {
		h.close()
		_ = os.RemoveAll(dir)
	})
	return h
}

// listen serves the hook on its socket.
func (h *testHook) listen() {
	h.t.Helper()
	handler := httphook.Handler(admission.HookFunc(h.admit))
	h.serve(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller has gone
		}
		h.mu.Lock()
		h.raw = append(h.raw, string(body))
		h.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		handler.ServeHTTP(w, r)
	})
}

// serve serves anything on the hook's socket.
func (h *testHook) serve(handler http.HandlerFunc) {
	h.t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.socket, Net: "unix"})
	if err != nil {
		h.t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false) // by then it may be another server's
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: handler}
	h.mu.Lock()
	h.server = server
	h.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// close ends the server and takes the socket away.
func (h *testHook) close() {
	h.mu.Lock()
	server := h.server
	h.mu.Unlock()
	_ = server.Close()
	_ = os.Remove(h.socket)
}

func (h *testHook) admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	h.mu.Lock()
	h.calls = append(h.calls, req.Clone())
	answer := h.answer
	h.mu.Unlock()
	return answer(ctx, req)
}

// says makes the hook answer d from now on.
func (h *testHook) says(d admission.Decision) {
	h.does(func(context.Context, *admission.Request) (admission.Decision, error) { return d, nil })
}

// does makes the hook do f from now on.
func (h *testHook) does(f admission.HookFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = f
}

// asked returns the requests about a job so far.
func (h *testHook) asked(job client.Object) []*admission.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.calls), func(r *admission.Request) bool { return r.Job.UID != string(job.GetUID()) })
}

// wire returns everything that came over the wire.
func (h *testHook) wire() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.raw, "\n")
}

// awaitAsked waits until the hook has been asked about a job n times at least.
func (h *testHook) awaitAsked(job client.Object, n int) []*admission.Request {
	h.t.Helper()
	var calls []*admission.Request
	eventually(h.t, patience, "the hook is asked", func() error {
		if calls = h.asked(job); len(calls) < n {
			return errNotYet
		}
		return nil
	})
	return calls
}

// gateChange changes an AdmissionGate before it is made.
type gateChange func(*v1alpha1.AdmissionGateSpec)

func seconds(n int) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(n) * time.Second}
}

// failOpen admits without a verdict.
func failOpen(s *v1alpha1.AdmissionGateSpec) { s.Hook.FailurePolicy = v1alpha1.FailurePolicyAdmit }

// newGate makes an AdmissionGate that asks a hook.
func newGate(t *testing.T, h *testHook, changes ...gateChange) *v1alpha1.AdmissionGate {
	t.Helper()
	g := &v1alpha1.AdmissionGate{ObjectMeta: metav1.ObjectMeta{Name: unique("gate")}}
	if h != nil {
		// The machine may be busy, and a call that is too slow is one more to count.
		g.Spec.Hook = &v1alpha1.Hook{Endpoint: v1alpha1.Endpoint{UnixSocket: h.socket}, Timeout: seconds(10)}
	}
	for _, change := range changes {
		change(&g.Spec)
	}
	create(t, g)
	return g
}

// newHookedQueue makes a queue with a check for each gate, of the gate's name.
func newHookedQueue(t *testing.T, gates ...*v1alpha1.AdmissionGate) *queue {
	t.Helper()
	names := make([]string, 0, len(gates))
	for _, g := range gates {
		newCheckWith(t, g.Name, parametersOf(g.Name))
		names = append(names, g.Name)
	}
	return newQueueOf(t, names...)
}

func parametersOf(gate string) *kueue.AdmissionCheckParametersReference {
	return &kueue.AdmissionCheckParametersReference{APIGroup: v1alpha1.GroupName, Kind: v1alpha1.AdmissionGateKind, Name: gate}
}

// editGate changes a gate until it sticks.
func editGate(t *testing.T, name string, change gateChange) {
	t.Helper()
	eventually(t, 10*time.Second, "the gate is edited", func() error {
		var g v1alpha1.AdmissionGate
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: name}, &g); err != nil {
			return err
		}
		change(&g.Spec)
		return shared.admin.Update(t.Context(), &g)
	})
}

// conditionOf is a condition of a Workload; the zero condition if there is none.
func conditionOf(wl *kueue.Workload, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(wl.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// awaitMessage waits until a check of a job is in a state and its message has all
// the words.
func awaitMessage(tb testing.TB, job client.Object, check string, state kueue.CheckState, words ...string) *kueue.Workload {
	tb.Helper()
	return awaitWorkload(tb, job, "has check "+check+" "+string(state)+" with "+strings.Join(words, ", "), func(wl *kueue.Workload) bool {
		return checkSays(wl, check, state, words...)
	})
}

// checkSays tells whether a check has a state and all of the words in its message.
func checkSays(wl *kueue.Workload, check string, state kueue.CheckState, words ...string) bool {
	c := checkOf(wl, check)
	return c.State == state && hasAll(c.Message, words)
}
