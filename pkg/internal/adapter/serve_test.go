package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// TestConformance: what every server of the contract must do, this one does.
func TestConformance(t *testing.T) {
	f := newFolder(t)
	start(t, Options{Config: f.config()})
	hooktest.RunServer(t, httphook.Config{UnixSocket: f.socket()})
}

// gate is a start gate that says what it was made from.
type gate struct {
	kueue   Kueue
	policy  admission.Hook
	ready   atomic.Pointer[string]
	running chan struct{}
	ended   chan struct{}
}

func (g *gate) Admit(ctx context.Context, req *admission.Request) (admission.Decision, error) {
	d, err := g.policy.Admit(ctx, req)
	if d.Kind() != admission.KindAdmit || err != nil {
		return d, err
	}
	return admission.AdmitWith(admission.Changes{Labels: map[string]string{"kueue.x-k8s.io/queue-name": g.kueue.LocalQueue}}), nil
}

func (g *gate) Run(ctx context.Context) error {
	close(g.running)
	<-ctx.Done()
	close(g.ended)
	return nil
}

func (g *gate) Ready() error {
	if why := g.ready.Load(); why != nil {
		return errors.New(*why)
	}
	return nil
}

// post sends a body to a path at the socket.
func post(t *testing.T, c *http.Client, path, body string) (int, string) {
	t.Helper()
	resp, err := c.Post("http://localhost"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestStartGate(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen()+"kueue: {localQueue: q, admissionLease: {name: l}}\npolicy: {rules: []}\n")
	g := &gate{running: make(chan struct{}), ended: make(chan struct{})}
	g.ready.Store(new("watches have not told yet"))
	r := start(t, Options{Config: f.config(), Start: func(k Kueue, policy admission.Hook) (StartGate, error) {
		g.kueue, g.policy = k, policy
		return g, nil
	}})
	<-g.running
	if want := (Kueue{LeaseName: "l", LocalQueue: "q"}); g.kueue != want {
		t.Errorf("made from %+v", g.kueue)
	}
	if status, body := r.get(t, "/readyz"); status != 503 || !strings.Contains(body, "watches have not told yet") {
		t.Errorf("%d %s", status, body)
	}
	g.ready.Store(nil)
	if status, body := r.get(t, "/readyz"); status != 200 || !strings.Contains(body, `"startGate": "synced"`) {
		t.Errorf("%d %s", status, body)
	}

	// The key is reserved for hooks of operators, and for those alone.
	c := f.plain(t)
	if status, body := post(t, c, "/v1/start", "{}"); status != 200 || !strings.Contains(body, `"kueue.x-k8s.io/queue-name":"q"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := post(t, c, "/v1/admit", "{}"); status != 200 || body != `{"decision":"Admit"}` {
		t.Errorf("%d %s", status, body)
	}
	f.write(t, "config.yaml", f.listen()+"kueue: {localQueue: q, admissionLease: {name: l}}\n"+refusing("second"))
	until(t, "the gate asks the new policy", func() bool {
		_, body := post(t, c, "/v1/start", "{}")
		return body == `{"decision":"Refuse","reason":"second"}`
	})
	if r.metric(t, `dispatch_hook_requests_total{endpoint="start",result="AdmitWith"}`) == "0" {
		t.Error("what starts is not counted")
	}
	r.cancel()
	<-g.ended
}

func TestStartGateCannotBeMade(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen()+"kueue: {}\npolicy: {rules: []}\n")
	o := Options{Config: f.config(), MetricsAddress: "0", Log: discard(), Start: func(Kueue, admission.Hook) (StartGate, error) {
		return nil, errors.New("no cluster")
	}}
	if err := Run(t.Context(), o); err == nil || err.Error() != "no cluster" {
		t.Error(err)
	}
	o.Start = nil
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "this program has no start gate") {
		t.Error(err)
	}
}

// TestPaths: nothing but what is served is answered with 200.
func TestPaths(t *testing.T) {
	f := newFolder(t)
	start(t, Options{Config: f.config()})
	c := f.plain(t)
	for _, tc := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"POST", "/v1/admit", 200, `{"decision":"Refuse","reason":"first"}`},
		{"GET", "/v1/admit", 405, "is not POST"},
		{"POST", "/v1/start", 404, "the configuration of dispatch-hook has no kueue"},
		{"POST", "/", 404, "is none of /v1/admit, /v1/start, /healthz and /readyz"},
		{"POST", "/v1/admit/", 404, "is none of"},
		{"POST", "//v1/admit", 404, "is none of"},
		{"GET", "/metrics", 404, "is none of"},
		{"GET", "/healthz", 200, "alive"},
		{"GET", "/readyz", 200, f.socket()},
		{"HEAD", "/readyz", 200, ""},
		{"POST", "/readyz", 405, "is neither GET nor HEAD"},
		{"OPTIONS", "/v1/admit", 405, "is not POST"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://localhost"+tc.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.status || !strings.Contains(string(body), tc.want) || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, resp.StatusCode, body)
		}
	}
}

// TestReadiness: all that an operator may want to know is in one answer.
func TestReadiness(t *testing.T) {
	f := newFolder(t)
	f.secure(t, newAuthority(t), nil, refusing("first"))
	r := start(t, Options{Config: f.config()})
	status, body := r.get(t, "/readyz")
	var got readiness
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 {
		t.Fatalf("%d %v", status, err)
	}
	switch {
	case !got.Ready, got.Reason != "", got.StartGate != "off":
		t.Error(body)
	case got.Config.File != f.config(), got.Config.Generation != 1, len(got.Config.Digest) != 12, time.Since(got.Config.Loaded) > time.Minute:
		t.Error(body)
	case len(got.Listeners) != 2, got.Listeners[0] != "unix:"+f.socket(), got.Listeners[1] != "https://"+r.address(listenerHTTPS):
		t.Error(body)
	case got.Certificates == nil, time.Until(got.Certificates.Expiry) > time.Hour:
		t.Error(body)
	}
}

// TestOwnHook: a hook takes the place of the policy, and a reload leaves it.
func TestOwnHook(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen())
	r := start(t, Options{Config: f.config(), Hook: hookOf(admission.Refuse("own"))})
	c := f.client(t)
	if !refuses(t, c, "own") {
		t.Error("another one was asked")
	}
	f.write(t, "config.yaml", f.listen()+"# news\n")
	until(t, "it is loaded", func() bool { return r.config.Load().number == 2 })
	if !refuses(t, c, "own") {
		t.Error("another one was asked")
	}
	f.refuse(t, "policy")
	until(t, "a policy is refused", func() bool { return r.logs.count("this program has a hook of its own") == 1 })
	if !refuses(t, c, "own") {
		t.Error("another one was asked")
	}
}

// TestResults: what can come of a request, each with its status, its metric and
// the level of its line in the log.
func TestResults(t *testing.T) {
	long := strings.Repeat("x", 1000)
	many := map[string]string{}
	for i := range 1100 {
		many[fmt.Sprint("k", i)] = long
	}
	hooks := map[string]admission.HookFunc{
		"admit":      hooktest.Answer(admission.Admit()),
		"with":       hooktest.Answer(admission.AdmitWith(admission.Changes{Labels: map[string]string{"a": "b"}})),
		"hold":       hooktest.Answer(admission.Hold("a")),
		"invalid":    hooktest.Answer(admission.AdmitWith(admission.Changes{Labels: map[string]string{"kueue.x-k8s.io/x": "b"}})),
		"error":      hooktest.Fail(errors.New("broken")),
		"panic":      hooktest.Panic("broken"),
		"slow":       hooktest.Wait(),
		"unsendable": hooktest.Answer(admission.AdmitWith(admission.Changes{Annotations: many})),
	}
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen())
	r := start(t, Options{Config: f.config(), Hook: admission.HookFunc(func(ctx context.Context, req *admission.Request) (admission.Decision, error) {
		return hooks[req.TenantID](ctx, req)
	})})
	c := f.plain(t)
	for _, tc := range []struct {
		tenant string
		status int
		result string
		line   string
	}{
		{"admit", 200, "Admit", "level=DEBUG msg=decided"},
		{"with", 200, "AdmitWith", "level=DEBUG msg=decided"},
		{"hold", 200, "Hold", "level=DEBUG msg=decided"},
		{"invalid", 200, "Invalid", "level=WARN msg=\"callers will take this decision for none\""},
		{"error", 500, "Error", "level=ERROR msg=\"no decision\""},
		{"panic", 500, "Error", "level=ERROR msg=\"no decision\""},
		{"slow", 504, "Timeout", "level=ERROR msg=\"no decision\""},
		{"unsendable", 422, "Unsendable", "level=ERROR msg=\"no decision\""},
		{"\x01", 400, "BadRequest", "level=DEBUG msg=\"no decision\""},
	} {
		t.Run(tc.tenant, func(t *testing.T) {
			series := fmt.Sprintf("dispatch_hook_requests_total{endpoint=%q,result=%q}", "admit", tc.result)
			before, lines := r.metric(t, series), r.logs.count(tc.line)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/v1/admit", strings.NewReader(`{"tenantID":"`+tc.tenant+`"}`))
			if err != nil {
				t.Fatal(err)
			}
			timeout := "60000"
			if tc.tenant == "slow" {
				timeout = "100"
			}
			req.Header = http.Header{"Content-Type": {"application/json"}, httphook.TimeoutHeader: {timeout}}
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, _ := io.ReadAll(resp.Body); resp.StatusCode != tc.status {
				t.Errorf("%d %.200s", resp.StatusCode, body)
			}
			until(t, "it is counted", func() bool { return r.metric(t, series) != before })
			if r.logs.count(tc.line) != lines+1 {
				t.Errorf("want one more line with %s in\n%.2000s", tc.line, r.logs)
			}
		})
	}
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/admit", strings.NewReader(`{"tenantID":"slow"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/json"}}
		if resp, err := c.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Error("answered")
		}
		until(t, "it is counted", func() bool {
			return r.metric(t, `dispatch_hook_requests_total{endpoint="admit",result="Canceled"}`) == "1"
		})
	})
	if n := r.metric(t, `dispatch_hook_requests_in_flight{endpoint="admit"}`); n != "0" {
		t.Errorf("%s in flight", n)
	}
}

// TestRules: what rules say is counted, also of those that decide nothing.
func TestRules(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen()+`policy:
  rules:
  - {name: a, refuse: "no"}
  - {name: b, mode: audit, hold: later}
  - {name: c, mode: audit, when: request.tenantID == "x", refuse: never}
  - {name: d, mode: audit, when: units(request.tenantID) > 1, refuse: never}
`)
	r := start(t, Options{Config: f.config()})
	if !refuses(t, f.client(t), "no") {
		t.Error("an audit rule decided")
	}
	r.wantMetric(t, `dispatch_hook_rule_results_total{mode="enforce",result="Refuse",rule="a"}`, "1")
	r.wantMetric(t, `dispatch_hook_rule_results_total{mode="audit",result="Hold",rule="b"}`, "1")
	r.wantMetric(t, `dispatch_hook_rule_results_total{mode="audit",result="Refuse",rule="c"}`, "")
	r.wantMetric(t, `dispatch_hook_rule_results_total{mode="audit",result="Failed",rule="d"}`, "1")
	for _, want := range []string{"level=INFO msg=audit rule=b", `level=WARN msg="an audit rule failed" rule=d`, "attempt.tenant=a"} {
		if r.logs.count(want) == 0 {
			t.Errorf("want %s in\n%s", want, r.logs)
		}
	}
}

// TestMetricNames: the names follow the conventions of Prometheus.
func TestMetricNames(t *testing.T) {
	m := newMetrics()
	newEndpoint("admit", nil, true, m, discard())
	m.rules.WithLabelValues("a", "audit", "Hold")
	m.expiry.WithLabelValues("server").Set(1)
	m.refused.WithLabelValues("https")
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
