package hooks

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

var errBroken = errors.New("no database")

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func TestSettings(t *testing.T) {
	documented := settings{
		endpoint: v1alpha1.Endpoint{UnixSocket: "/hook"},
		timeout:  2 * time.Second, failures: 5, cooldown: 30 * time.Second,
	}
	set := func(change func(*settings)) *settings {
		s := documented
		change(&s)
		return &s
	}
	tests := map[string]struct {
		reason string
		change func(*v1alpha1.Hook)
		want   *settings
	}{
		"Defaults": {"what is not set is as documented", func(*v1alpha1.Hook) {}, &documented},
		"Timeout":  {"taken as it is", timeout(time.Minute), set(func(s *settings) { s.timeout = time.Minute })},
		"Zero":     {"0s is no default", timeout(0), set(func(s *settings) { s.timeout = 0 })},
		"Breaker":  {"both", breaker(3, time.Minute), set(func(s *settings) { s.failures, s.cooldown = 3, time.Minute })},
		"NoRule": {"a list that is not set is no rule",
			func(h *v1alpha1.Hook) { h.Allowlist.PriorityClasses = []string{} },
			set(func(s *settings) { s.allowlist.PriorityClasses = []string{} })},
		"Allowlist": {"in its order",
			func(h *v1alpha1.Hook) { h.Allowlist.ServiceAccounts = []string{"b", "a"} },
			set(func(s *settings) { s.allowlist.ServiceAccounts = []string{"b", "a"} })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := settingsOf(gateWith("policy", "/hook", tc.change).Spec.Hook)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(settings{})); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
	if settingsOf(nil) != nil {
		t.Error("settings without a hook")
	}
}

func TestConfigureErrors(t *testing.T) {
	tests := map[string]struct {
		change func(*v1alpha1.Hook)
		want   string // how the error begins
	}{
		"NoEndpoint":   {func(h *v1alpha1.Hook) { h.Endpoint.UnixSocket = "" }, "spec.hook.endpoint: exactly one"},
		"TwoEndpoints": {func(h *v1alpha1.Hook) { h.Endpoint.URL = "https://hook" }, "spec.hook.endpoint: exactly one"},
		"Relative":     {func(h *v1alpha1.Hook) { h.Endpoint.UnixSocket = "hook.sock" }, "spec.hook.endpoint.unixSocket: "},
		"Scheme":       {func(h *v1alpha1.Hook) { h.Endpoint = v1alpha1.Endpoint{URL: "ftp://hook"} }, "spec.hook.endpoint.url: "},
		"Plain":        {func(h *v1alpha1.Hook) { h.Endpoint = v1alpha1.Endpoint{URL: "http://hook"} }, "spec.hook.endpoint.url: "},
		"CABundle":     {func(h *v1alpha1.Hook) { h.Endpoint.CABundle = []byte("x") }, "spec.hook.endpoint.caBundle: "},
		"BadCABundle": {func(h *v1alpha1.Hook) {
			h.Endpoint = v1alpha1.Endpoint{URL: "https://hook", CABundle: []byte("x")}
		}, "spec.hook.endpoint.caBundle: "},
		"ServerName": {func(h *v1alpha1.Hook) { h.Endpoint.ServerName = "x" }, "spec.hook.endpoint.serverName: "},
		"Secret":     {func(h *v1alpha1.Hook) { h.Endpoint.ClientCertificateSecret = "x" }, "spec.hook.endpoint.clientCertificateSecret: for https only"},
		"TooShort":   {timeout(99 * time.Millisecond), "spec.hook.timeout: 99ms"},
		"ZeroTime":   {timeout(0), "spec.hook.timeout: 0s"},
		"TooLong":    {timeout(31 * time.Second), "spec.hook.timeout: 31s"},
		"Failures":   {breaker(-1, time.Second), "spec.hook.breaker.failures: -1"},
		"Cooldown":   {breaker(1, 0), "spec.hook.breaker.cooldown: 0s"},
		"Cooldowns":  {breaker(1, 2*time.Hour), "spec.hook.breaker.cooldown: 2h"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) {
				o.Certificate = func(context.Context, string) (*tls.Certificate, error) { return nil, errBroken }
			})
			for range 2 { // the second time from memory
				err := f.Configure(gateWith("policy", "/hook", tc.change))
				if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
					t.Errorf("error %v, want %s", err, tc.want)
				}
			}
			if s := f.State("policy"); s != (State{}) {
				t.Errorf("state %+v without a hook", s)
			}
			f.configure(gateWith("policy", "/hook"))
			if s := f.State("policy"); s.Endpoint != "unix:/hook" {
				t.Errorf("state %+v once it was put right", s)
			}
		})
	}
}

func TestSecretsThatNobodyReads(t *testing.T) {
	err := newFixture(t).Configure(gateWith("policy", "", func(h *v1alpha1.Hook) {
		h.Endpoint = v1alpha1.Endpoint{URL: "https://hook", ClientCertificateSecret: "x"}
	}))
	if err == nil || !strings.HasPrefix(err.Error(), "spec.hook.endpoint.clientCertificateSecret: ") {
		t.Errorf("got %v", err)
	}
}

// A spec that says the same about how to ask keeps the hook.
func TestConfigureUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t).inProcess(d)
		f.configure(gateWith("policy", "/hook", breaker(1, time.Hour)))
		f.ask("policy", "flight")
		flight := d.next(t, "flight")
		f.ask("policy", "a")
		d.next(t, "a").fail(errBroken)
		synctest.Wait()
		state := f.State("policy")

		f.configure(gateWith("policy", "/hook", breaker(1, time.Hour), timeout(2*time.Second), func(h *v1alpha1.Hook) {
			h.FailurePolicy = v1alpha1.FailurePolicyAdmit
			h.Mode = v1alpha1.ModeAudit
			h.Hold.Window = duration(time.Hour)
			h.Attempt.DagID = &v1alpha1.NameSource{Label: "dag"}
		}))
		if s := f.State("policy"); s != state || s.Breaker != v1alpha1.BreakerOpen {
			t.Errorf("state %+v, was %+v", s, state)
		}
		f.answer("a")
		flight.admit()
		synctest.Wait()
		f.answer("flight")
		f.wantWoken("a", "flight")
		if n := f.gates["policy"].hook.client.(*local).closed.Load(); n != 1 { // after the failure
			t.Errorf("connections closed %d times", n)
		}
	})
}

// Whatever says how to ask makes another hook.
func TestConfigureChanged(t *testing.T) {
	tests := map[string]func(*v1alpha1.Hook){
		"Endpoint":   func(h *v1alpha1.Hook) { h.Endpoint.UnixSocket = "/other" },
		"Timeout":    timeout(time.Second),
		"Breaker":    breaker(5, time.Hour),
		"Cooldown":   breaker(1, time.Minute),
		"Allowlist":  func(h *v1alpha1.Hook) { h.Allowlist.ServiceAccounts = []string{} },
		"Allowlist2": func(h *v1alpha1.Hook) { h.Allowlist.PriorityClasses = []string{"a"} },
		"NoHook":     nil,
		"Invalid":    timeout(time.Hour),
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk()
				f := newFixture(t, concurrency(2)).inProcess(d)
				f.configure(gateWith("policy", "/hook", breaker(1, time.Hour)))
				f.ask("policy", "answered")
				d.next(t, "answered").admit()
				f.ask("policy", "called")
				called := d.next(t, "called")
				f.ask("policy", "failed")
				d.next(t, "failed").fail(errBroken)
				synctest.Wait()
				old := f.gates["policy"].hook.client.(*local)

				changed := gateWith("policy", "/hook", breaker(1, time.Hour))
				if change == nil {
					changed.Spec.Hook = nil
				} else {
					change(changed.Spec.Hook)
				}
				err := f.Configure(changed)
				<-called.ctx.Done()
				synctest.Wait()
				d.idle(t)
				for _, offer := range []string{"answered", "called", "failed"} {
					f.without(offer, false)
				}
				f.wantWoken("answered", "failed", "called")
				// After the failure, with the hook, and after its last call.
				if n := old.closed.Load(); n != 3 {
					t.Errorf("the connections of the old hook were closed %d times", n)
				}

				f.ask("policy", "after")
				if change == nil || err != nil {
					f.without("after", true)
					return
				}
				d.next(t, "after").admit() // the new breaker is closed
				synctest.Wait()
				f.answer("after")
			})
		})
	}
}

// Two readers of a gate may come in any order; one of another object always counts.
func TestConfigureOutOfOrder(t *testing.T) {
	f := newFixture(t).inProcess(newDesk())
	version := func(uid types.UID, generation int64, socket, want string) {
		t.Helper()
		g := gateWith("policy", socket)
		g.UID, g.Generation = uid, generation
		f.configure(g)
		if s := f.State("policy"); s.Endpoint != "unix:"+want {
			t.Errorf("generation %d of %s: the endpoint is %s, want %s", generation, uid, s.Endpoint, want)
		}
	}
	version("a", 1, "/1", "/1")
	version("a", 4, "/4", "/4")
	version("a", 3, "/3", "/4")
	version("a", 5, "/4", "/4")
	version("a", 4, "/late", "/4")
	version("b", 1, "/4", "/4")
	version("b", 2, "/2", "/2")
	version("c", 1, "/1", "/1")
}

// The allowlist and the limits reach the runner.
func TestConfigureReachesTheRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		choose := func(c admission.Changes) admission.Hook { return hooktest.Answer(admission.AdmitWith(c)) }
		f := newFixture(t)
		ask := func(offer string, hook admission.Hook, set ...func(*v1alpha1.Hook)) runner.Outcome {
			f.inProcess(hook)
			f.Remove("policy")
			f.configure(gateWith("policy", "/hook", set...))
			return f.askAndWait("policy", offer)
		}
		account := choose(admission.Changes{ServiceAccount: "trainer"})
		class := choose(admission.Changes{PriorityClassName: "batch"})
		nothing := func(h *v1alpha1.Hook) {
			h.Allowlist = v1alpha1.Allowlist{ServiceAccounts: []string{}, PriorityClasses: []string{"trainer"}}
		}
		if o := ask("a", account); o.Cause != runner.CauseNone {
			t.Errorf("without a list: %+v", o)
		}
		if o := ask("b", account, nothing); o.Cause != runner.CauseInvalid {
			t.Errorf("with an empty list: %+v", o)
		}
		if o := ask("c", class, nothing); o.Cause != runner.CauseInvalid {
			t.Errorf("not on the list: %+v", o)
		}
		if o := ask("d", newDesk()); o.Cause != runner.CauseTimeout || o.Took != 2*time.Second {
			t.Errorf("without a timeout: %+v", o)
		}
		if o := ask("e", newDesk(), timeout(time.Second)); o.Cause != runner.CauseTimeout || o.Took != time.Second {
			t.Errorf("with one: %+v", o)
		}
	})
}

// A URL reaches the client too, with what belongs to it.
func TestConfigureURL(t *testing.T) {
	server := httptest.NewServer(http.StripPrefix("/policy", holds("freeze")))
	defer server.Close()
	f := newFixture(t)
	f.configure(gateWith("policy", "", func(h *v1alpha1.Hook) { h.Endpoint.URL = server.URL + "/policy" }))
	if o := f.askAndWait("policy", "a"); o.Cause != runner.CauseNone || o.Decision.Kind() != admission.KindHold {
		t.Errorf("got %+v", o)
	}
	if s := f.State("policy"); s.Endpoint != server.URL+"/policy" {
		t.Errorf("endpoint %s", s.Endpoint)
	}
}
