package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// TestHookFaults has the stories of hooks that are broken or not there, side by
// side.
func TestHookFaults(t *testing.T) {
	address := freeAddress(t)
	gate := startLeading(t, run{name: "gate", flags: []string{"-metrics-bind-address=" + address}})
	stories := []tale{
		{"Breaker", breakerOpens},
		{"Flapping", func(t *testing.T) { hookFlaps(t, gate) }},
		{"GivesWay", noVerdictGivesWay},
		{"GateRecreated", gateRecreated},
		{"Replaced", hookReplaced},
		{"FailsOpen", func(t *testing.T) { failsOpen(t, address) }},
	}
	stories = append(stories, badParameters()...)
	manyAtOnce(t, append(stories, noVerdict()...)...)
	// A hook that is broken is worth a warning, and no fault of the gate.
	for _, line := range gate.find("level=ERROR") {
		t.Errorf("%s logged: %s", gate.name, line)
	}
}

// freeAddress is an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// breaks puts another server in the place of the hook's.
func (h *testHook) breaks(handler http.HandlerFunc) {
	h.t.Helper()
	h.close()
	h.serve(handler)
}

// mends puts the hook back.
func (h *testHook) mends() {
	h.t.Helper()
	h.close()
	h.listen()
}

// answers writes an answer as it is.
func answers(code int, contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = w.Write(body)
	}
}

// awaitGate waits until the status of a gate is as wanted.
func awaitGate(t *testing.T, name, what string, ok func(v1alpha1.AdmissionGateStatus) bool) v1alpha1.AdmissionGateStatus {
	t.Helper()
	var g v1alpha1.AdmissionGate
	eventually(t, patience, "gate "+name+" "+what, func() error {
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: name}, &g); err != nil {
			return err
		}
		if !ok(g.Status) {
			return fmt.Errorf("it does not: %+v", g.Status)
		}
		return nil
	})
	return g.Status
}

// noVerdict: whatever a hook does instead of answering, the job waits with a
// message that says no more than its owner needs to know, the gate's status says
// what is wrong, and the job starts soon after the hook is mended.
func noVerdict() (stories []tale) {
	const json = "application/json"
	admits := []byte(`{"decision":"Admit"}`)
	faults := map[string]struct {
		breaks func(h *testHook)
		error  string
	}{
		"SocketMissing": {func(h *testHook) { h.close() }, "no such file or directory"},
		"NobodyListens": {func(h *testHook) { h.close(); h.deadSocket() }, "connection refused"},
		"Status500":     {func(h *testHook) { h.breaks(answers(500, json, admits)) }, "status 500"},
		"Status403":     {func(h *testHook) { h.breaks(answers(403, json, []byte(`{"decision":"Refuse"}`))) }, "status 403"},
		"Garbage":       {func(h *testHook) { h.breaks(answers(200, json, []byte("{nonsense"))) }, "the answer cannot be read"},
		"TooLarge":      {func(h *testHook) { h.breaks(answers(200, json, append(bytes.Repeat([]byte(" "), 10<<20), admits...))) }, "more than 1048576 bytes"},
		"ContentType":   {func(h *testHook) { h.breaks(answers(200, "text/plain", admits)) }, "content type"},
		"Unknown":       {func(h *testHook) { h.breaks(answers(200, json, []byte(`{"decision":"admit"}`))) }, "no known decision"},
		"Hangs":         {func(h *testHook) { h.breaks(hangs) }, "no answer within 500ms"},
		"HangsUp":       {func(h *testHook) { h.breaks(hangsUp) }, "connection"},
	}
	for name, tc := range faults {
		stories = append(stories, tale{"NoVerdict" + name, func(t *testing.T) {
			h := newHook(t, admission.Admit())
			tc.breaks(h)
			noVerdictStory(t, h, tc.error)
		}})
	}
	return stories
}

// noVerdictStory is that of one hook, and what its operator is told.
func noVerdictStory(t *testing.T, h *testHook, told string) {
	t.Helper()
	gate := newGate(t, h, holdTimes(2, 60), manyFailures, briefly)
	q := newHookedQueue(t, gate)
	job := q.submit(dispatchName())
	wl := awaitMessage(t, job, gate.Name, kueue.CheckStatePending, "gave no verdict", gate.Name)
	if m := checkOf(wl, gate.Name).Message + conditionOf(wl, v1alpha1.WorkloadHeld).Message; strings.Contains(m, told) {
		t.Errorf("the owner of the job is told %q", m)
	}
	awaitGate(t, gate.Name, "says what is wrong", func(s v1alpha1.AdmissionGateStatus) bool { return strings.Contains(s.LastError, told) })
	awaitEvents(t, job, "HookNoVerdict", "gave no verdict")
	wantCount(t, job, "")

	h.mends()
	mended := time.Now()
	q.awaitStart(job, "1")
	if took := time.Since(mended); took > 40*time.Second {
		t.Errorf("started %s after the hook was mended", took)
	}
	awaitMessage(t, job, gate.Name, kueue.CheckStateReady, "Admitted by the hook")
	awaitGate(t, gate.Name, "has no error any more", func(s v1alpha1.AdmissionGateStatus) bool {
		return s.LastError == "" && s.Breaker == v1alpha1.BreakerClosed
	})
}

// noVerdictGivesWay: a job without a verdict gives its quota to others like one that
// is held, also when it is offered faster than giving quota back takes.
func noVerdictGivesWay(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 0), manyFailures)
	q := newHookedQueue(t, gate)
	name := dispatchName()
	h.rule(name, func(context.Context, *admission.Request) (admission.Decision, error) {
		return admission.Decision{}, errors.New("out of order")
	})
	held := q.submit(name)
	awaitMessage(t, held, gate.Name, kueue.CheckStatePending, "gave no verdict")
	other := q.submit(dispatchName())
	q.awaitStart(other, "1")
	wantCount(t, held, "")
	h.decides(name, admission.Admit())
	remove(t, other)
	q.awaitStart(held, "1")
}

// manyFailures keeps the breaker out of a story.
func manyFailures(s *v1alpha1.AdmissionGateSpec) { s.Hook.Breaker.Failures = 1000 }

// briefly gives the hook half a second.
func briefly(s *v1alpha1.AdmissionGateSpec) {
	s.Hook.Timeout = seconds(1)
	s.Hook.Timeout.Duration /= 2
}

func hangs(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func hangsUp(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// deadSocket leaves a socket that nobody listens on, as a crash does.
func (h *testHook) deadSocket() {
	h.t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.socket})
	if err != nil {
		h.t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	_ = listener.Close()
}

// hookReplaced: another server takes the place of the hook, at the same path. The
// old one still has the gate's connection, so it may be asked once more, but not
// after it failed.
func hookReplaced(t *testing.T) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 60), manyFailures)
	q := newHookedQueue(t, gate)
	q.setQuota("4")
	first := q.submit(dispatchName())
	q.awaitStart(first, "1")

	next := newHoldHook(t)
	name := dispatchName()
	h.rule(name, func(context.Context, *admission.Request) (admission.Decision, error) {
		return admission.Decision{}, errors.New("about to end")
	})
	if err := os.Rename(next.socket, h.socket); err != nil {
		t.Fatal(err)
	}
	second := q.submit(name)
	q.awaitStart(second, "1")
	if n := len(next.asked(second)); n != 1 {
		t.Errorf("the new server was asked %d times", n)
	}
	if n := len(h.asked(second)); n > 1 {
		t.Errorf("the old server was asked %d times although it failed", n)
	}
}

// breakerOpens: after three failures in a row the hook is skipped, and the gate's
// status says so. It is not asked while it is skipped, then once. When it is
// mended, the job starts and the status is clean.
func breakerOpens(t *testing.T) {
	const cooldown = 6 * time.Second
	h := newHook(t, admission.Admit())
	var mu sync.Mutex
	var calls []time.Time
	h.breaks(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, time.Now())
		w.WriteHeader(http.StatusInternalServerError)
	})
	gate := newGate(t, h, holdTimes(1, 60), func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook.Breaker = v1alpha1.Breaker{Failures: 3, Cooldown: seconds(int(cooldown / time.Second))}
	})
	q := newHookedQueue(t, gate)
	job := q.submit(dispatchName())
	awaitGate(t, gate.Name, "skips the hook", func(s v1alpha1.AdmissionGateStatus) bool {
		return s.Breaker == v1alpha1.BreakerOpen && s.LastError == "status 500"
	})
	awaitMessage(t, job, gate.Name, kueue.CheckStatePending, "gave no verdict")
	eventually(t, patience, "the hook is probed twice", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(calls) < 5 {
			return fmt.Errorf("%d calls", len(calls))
		}
		return nil
	})
	h.mends()
	mu.Lock()
	defer mu.Unlock()
	for i := 3; i < 5; i++ {
		if gap := calls[i].Sub(calls[i-1]); gap < cooldown-100*time.Millisecond {
			t.Errorf("call %d came %s after the last failure, want %s at least", i+1, gap, cooldown)
		}
	}
	for i := 1; i < 3; i++ {
		if gap := calls[i].Sub(calls[i-1]); gap >= cooldown {
			t.Errorf("call %d came %s after the one before, as if the hook were skipped already", i+1, gap)
		}
	}
	q.awaitStart(job, "1")
	awaitGate(t, gate.Name, "asks the hook again", func(s v1alpha1.AdmissionGateStatus) bool {
		return s.Breaker == v1alpha1.BreakerClosed && s.LastError == ""
	})
}

// hookFlaps: a hook that fails twice, answers twice, and so on, is not skipped and
// does not flood events, log or the gate's status, and its job starts as soon as it
// may.
func hookFlaps(t *testing.T, program *program) {
	h := newHoldHook(t)
	gate := newGate(t, h.testHook, holdTimes(1, 60))
	q := newHookedQueue(t, gate)
	mark := auditMark(t)
	name := dispatchName()
	h.rule(name, func(_ context.Context, r *admission.Request) (admission.Decision, error) {
		if r.OfferCount%4 < 2 {
			return admission.Decision{}, errors.New("out of order")
		}
		return admission.HoldUntil(time.Unix(1, 0), "busy"), nil
	})
	job := q.submit(name)
	h.awaitAsked(job, 12)
	h.decides(name, admission.Admit())
	q.awaitStart(job, "1")
	calls := h.times(job)
	took := calls[len(calls)-1].Sub(calls[0])
	awaitGate(t, gate.Name, "is clean", func(s v1alpha1.AdmissionGateStatus) bool {
		return s.Breaker == v1alpha1.BreakerClosed && s.LastError == ""
	})
	statuses := audit(t, mark, func(r request) bool {
		return r.own() && r.Writes() && r.Target() == "admissiongates/status" && r.ObjectRef.Name == gate.Name
	})
	if most := int(took/(2*time.Second)) + 3; len(statuses) < 2 || len(statuses) > most {
		t.Errorf("the status was written %d times in %s, want at least 2 and %d at most", len(statuses), took, most)
	}
	// The second tells until when the hook may hold the job, once it has held it.
	if events := eventsOf(t, q.name, "TrainJob", name, "HookNoVerdict"); len(events) < 1 || len(events) > 2 {
		t.Errorf("%d events on the job: %v", len(events), events)
	}
	if lines := program.find("level=WARN", gate.Name); len(lines) != 1 {
		t.Errorf("the log has %d warnings: %q", len(lines), lines)
	}
	t.Logf("%d calls in %s, %d writes of the gate's status", len(calls), took.Round(time.Second), len(statuses))
}

// failsOpen: where the operator says so, a job starts without a verdict, and that
// is told in the check, by events and by a metric.
func failsOpen(t *testing.T, address string) {
	h := newHook(t, admission.Admit())
	h.close()
	gate := newGate(t, h, failOpen)
	q := newHookedQueue(t, gate)
	job := q.submit(dispatchName())
	q.awaitStart(job, "1")
	awaitMessage(t, job, gate.Name, kueue.CheckStateReady, "Admitted without a verdict", "failurePolicy Admit", gate.Name)
	awaitEvents(t, job, "HookFailedOpen", "Admitted without a verdict", gate.Name)
	if events := eventsOf(t, q.name, "TrainJob", job.Name, "HookFailedOpen"); len(events) != 1 || events[0].Type != corev1.EventTypeWarning {
		t.Errorf("events on the job: %v", events)
	}
	want := fmt.Sprintf("dispatch_admission_hook_failed_open_total{gate=%q} 1", gate.Name)
	if text := scrape(t, address); !strings.Contains(text, want+"\n") {
		t.Errorf("the metrics do not say %s", want)
	}
}

// scrape reads the metrics of a program.
func scrape(t *testing.T, address string) string {
	t.Helper()
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", response.Status, err)
	}
	return string(text)
}
