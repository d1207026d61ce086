package adapter

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// hanging is a hook that waits until it may answer.
func hanging() (hook admission.Hook, inside, release chan struct{}) {
	inside, release = make(chan struct{}, 100), make(chan struct{})
	return admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		inside <- struct{}{}
		<-release
		return admission.Refuse("late"), nil
	}), inside, release
}

// TestDrain: first /readyz says so, then nobody new comes in, and who was inside
// is answered.
func TestDrain(t *testing.T) {
	f, a := newFolder(t), newAuthority(t)
	f.secure(t, a, nil, "")
	hook, inside, release := hanging()
	patient := quick
	patient.notice = 3 * time.Second
	r := start(t, Options{Config: f.config(), Hook: hook, timing: patient})
	answers := make(chan error, 2)
	c := a.client(t, nil)
	go func() { answers <- r.ask(c) }()
	s := f.client(t)
	go func() {
		_, err := s.Admit(context.Background(), &admission.Request{})
		answers <- err
	}()
	<-inside
	<-inside

	r.cancel()
	until(t, "/readyz fails", func() bool {
		status, body := r.get(t, "/readyz")
		return status == 503 && strings.Contains(body, "this process is about to end")
	})
	if status, _ := r.get(t, "/healthz"); status != 200 {
		t.Errorf("/healthz: %d", status)
	}
	// Who has not heard yet is still let in, for a moment.
	go func() { answers <- r.ask(a.client(t, nil)) }()
	<-inside
	until(t, "nobody is let in", func() bool {
		resp, err := a.client(t, nil).Get("https://" + r.address(listenerHTTPS) + "/healthz")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err != nil
	})
	select {
	case err := <-r.ended:
		t.Fatalf("ended before the answers: %v", err)
	default:
	}
	close(release)
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
	if n := r.logs.count("not answered in time"); n != 0 {
		t.Error(r.logs)
	}
}

// TestDrainHanging: a hook that never returns does not keep the process.
func TestDrainHanging(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", f.listen())
	hook, inside, release := hanging()
	defer close(release)
	brief := quick
	brief.drain = 50 * time.Millisecond
	r := start(t, Options{Config: f.config(), Hook: hook, timing: brief})
	c := f.client(t)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Admit(context.Background(), &admission.Request{})
		ended <- err
	}()
	<-inside
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("answered")
	}
	if r.logs.count("level=ERROR msg=\"requests were not answered in time\"") != 1 {
		t.Error(r.logs)
	}
}

// TestAskedToStopEarly: who is stopped while he begins has been asked to.
func TestAskedToStopEarly(t *testing.T) {
	f := newFolder(t)
	stale(t, f.socket())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, Options{Config: f.config(), MetricsAddress: "127.0.0.1:0", Log: discard()}); err != nil {
		t.Error(err)
	}
}

// TestPartEnds: when one listener is lost the whole ends with an error, for the
// kubelet to start it anew.
func TestPartEnds(t *testing.T) {
	f := newFolder(t)
	a, err := open(t.Context(), Options{Config: f.config(), MetricsAddress: "0", Log: discard(), timing: quick})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.run(t.Context()) }()
	if !refuses(t, f.client(t), "first") {
		t.Fatal("not served")
	}
	_ = a.servers[0].listener.Close()
	if err := <-ended; err == nil || !strings.HasPrefix(err.Error(), "unix:"+f.socket()+": ") {
		t.Error(err)
	}
}

// TestProbesOff: there may be nothing beside the hook.
func TestProbesOff(t *testing.T) {
	f := newFolder(t)
	r := start(t, Options{Config: f.config(), MetricsAddress: "0"})
	if len(r.all()) != 1 {
		t.Errorf("%d servers", len(r.all()))
	}
	if status, _ := fetch(t, f.plain(t), "http://localhost/readyz"); status != http.StatusOK {
		t.Errorf("/readyz: %d", status)
	}
}
