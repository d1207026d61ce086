package hooks

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		f.without("a", false)
		start := time.Now()
		f.ask("policy", "a")
		time.Sleep(time.Second)
		f.without("a", true)
		if since, _ := f.Asking("a", "check", "a"); !since.Equal(start) {
			t.Errorf("asked since %v, want %v", since, start)
		}
		f.wantWoken()

		d.next(t, "a").admit()
		synctest.Wait()
		f.wantWoken("a")
		if o := f.answer("a"); o.Cause != runner.CauseNone || o.Took != time.Second {
			t.Errorf("got %+v", o)
		}
		if _, ok := f.Asking("a", "check", "a"); ok {
			t.Error("asked and answered")
		}
		for _, other := range [][2]string{{"other", "a"}, {"check", "b"}} {
			if _, ok := f.Answer("a", other[0], other[1]); ok {
				t.Errorf("an answer about %v", other)
			}
		}

		f.Done("a", "check")
		f.Done("a", "check")
		f.without("a", false)
		if len(f.questions) != 0 {
			t.Errorf("kept %v", f.questions)
		}
		f.wantWoken("a")
	})
}

func TestSameOfferIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(1)).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		for range 3 {
			f.ask("policy", "a")
			f.ask("policy", "b")
		}
		d.next(t, "a").admit()
		d.next(t, "b").admit()
		synctest.Wait()
		f.ask("policy", "a")
		synctest.Wait()
		d.idle(t)
		f.wantWoken("a", "b")
	})
}

// A newer offer takes the place of the older one, wherever that is.
func TestNewerOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(1)).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		dropped := func(offer string) {
			t.Helper()
			if _, ok := f.Answer("w", "check", offer); ok {
				t.Errorf("an answer about %s", offer)
			}
			if _, ok := f.Asking("w", "check", offer); ok {
				t.Errorf("%s is still asked about", offer)
			}
		}
		f.askOf("policy", "w", "in flight")
		first := d.next(t, "in flight")
		f.ask("policy", "other")
		f.askOf("policy", "w", "queued")
		dropped("in flight")
		<-first.ctx.Done()
		other := d.next(t, "other") // takes the only call
		f.askOf("policy", "w", "answered")
		dropped("queued")
		other.admit()
		d.next(t, "answered").admit()
		synctest.Wait()
		if _, ok := f.Answer("w", "check", "answered"); !ok {
			t.Error("no answer about the last offer")
		}
		f.wantWoken("other", "answered")

		f.askOf("policy", "w", "later")
		dropped("answered")
		d.next(t, "later").admit()
	})
}

// The parameters of a check may change to another gate.
func TestSameOfferOfAnotherGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t).inProcess(d)
		f.configure(gateWith("first", "/hook"))
		f.configure(gateWith("second", "/hook"))
		f.ask("first", "a")
		old := d.next(t, "a")
		f.ask("second", "a")
		<-old.ctx.Done()
		d.next(t, "a").admit()
		synctest.Wait()
		f.wantWoken("a")
	})
}

func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(3)).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		for i := range 10 {
			f.ask("policy", fmt.Sprint(i))
		}
		for left := 10; left > 0; left-- {
			synctest.Wait()
			if n := d.open.Load(); int(n) != min(3, left) {
				t.Errorf("%d calls at once with %d left", n, left)
			}
			(<-d.calls).admit()
		}
		synctest.Wait()
		if most := d.most.Load(); most != 3 {
			t.Errorf("%d calls at once", most)
		}
	})
}

func TestDefaultConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		for i := range 20 {
			f.ask("policy", fmt.Sprint(i))
		}
		synctest.Wait()
		if n := d.open.Load(); n != 16 {
			t.Errorf("%d calls at once", n)
		}
	})
}

func TestInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(1)).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		var offers []string
		for i := range 50 {
			offers = append(offers, fmt.Sprint(i))
			f.ask("policy", offers[i])
		}
		for _, offer := range offers {
			d.next(t, offer).admit()
		}
		synctest.Wait()
		f.wantWoken(offers...)
	})
}

// What waits costs no goroutine.
func TestManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(2)).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		before := runtime.NumGoroutine()
		for i := range 10_000 {
			f.ask("policy", fmt.Sprint(i))
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 10 {
			t.Errorf("%d goroutines", n)
		}
		if n := (watched{f.Hooks, f.gates["policy"].hook}).Queued(); n != 9_998 {
			t.Errorf("%d wait", n)
		}
	})
}

// The deadline of a call is not used up by waiting for it.
func TestDeadlineBeginsWithTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := hooktest.After(1900*time.Millisecond, hooktest.Answer(admission.Admit()))
		f := newFixture(t, concurrency(1)).inProcess(slow)
		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "a")
		f.ask("policy", "b")
		time.Sleep(4 * time.Second)
		if o := f.answer("b"); o.Cause != runner.CauseNone || o.Took != 1900*time.Millisecond {
			t.Errorf("got %+v", o)
		}
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(1)).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "called")
		f.ask("policy", "queued")
		f.ask("policy", "next")
		f.Ask(Question{Gate: "policy", Workload: "called", Check: "other", Offer: "o", Request: &admission.Request{TaskID: "other"}})
		called := d.next(t, "called")

		f.Forget("queued")
		if n := f.gates["policy"].hook.queue.Len(); n != 2 {
			t.Errorf("%d wait", n)
		}
		f.Forget("called")
		f.Forget("never heard of")
		<-called.ctx.Done()
		next := d.next(t, "next") // its turn has come, and nobody else's
		f.without("called", false)
		f.without("queued", false)
		if _, ok := f.Asking("called", "other", "o"); ok {
			t.Error("the other check of a forgotten Workload is still asked about")
		}
		next.admit()
		synctest.Wait()
		d.idle(t)
		f.wantWoken("next")
	})
}

// A question about a gate that is not known yet waits until it is.
func TestHookToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t).inProcess(d)
		f.ask("policy", "a")
		f.ask("other", "b")
		f.ask("policy", "forgotten")
		f.Forget("forgotten")
		synctest.Wait()
		f.without("a", true)
		none := gateWith("policy", "/hook")
		none.Spec.Hook = nil
		f.configure(none)
		f.without("a", true)

		f.configure(gateWith("policy", "/hook"))
		f.wantWoken("a") // to ask again, perhaps with another request
		f.without("a", false)
		f.without("b", true)
		f.ask("policy", "a")
		d.next(t, "a").admit()
		synctest.Wait()
		f.answer("a")
	})
}

func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		f := newFixture(t, concurrency(1)).inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "answered")
		d.next(t, "answered").admit()
		synctest.Wait()
		f.ask("policy", "called")
		f.ask("policy", "queued")
		called := d.next(t, "called")
		f.Remove("policy")
		f.Remove("policy")
		f.Remove("unknown")
		<-called.ctx.Done()
		synctest.Wait()
		d.idle(t)
		for _, offer := range []string{"answered", "called", "queued"} {
			f.without(offer, false)
		}
		if s := f.State("policy"); s != (State{}) {
			t.Errorf("state %+v", s)
		}
		slices.Sort(f.woken) // all once, two of them to ask anew
		f.wantWoken("answered", "called", "queued")
		f.ask("policy", "after")
		f.without("after", true)
	})
}

// What Answered does is up to its owner: it may ask again at once.
func TestAnsweredMayCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t).inProcess(hooktest.Answer(admission.Hold("a")))
		f.configure(gateWith("policy", "/hook"))
		offers := make(chan string, 3)
		var ask func(n int)
		ask = func(n int) {
			offer := fmt.Sprint(n)
			f.Ask(Question{Gate: "policy", Workload: "w", Check: "check", Offer: offer, Request: &admission.Request{}, Answered: func() {
				if _, ok := f.Answer("w", "check", offer); ok && n < 3 {
					ask(n + 1)
				}
				offers <- offer
			}})
		}
		ask(1)
		for range 3 {
			<-offers
		}
		if _, ok := f.Answer(types.UID("w"), "check", "3"); !ok {
			t.Error("no answer about the last")
		}
	})
}

// The end of the context that Hooks were made with ends them.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d := newFixture(t), newDesk()
		ctx, cancel := context.WithCancel(t.Context())
		h := New(ctx, f.options)
		f.Hooks = h
		f.inProcess(d)
		f.configure(gateWith("policy", "/hook"))
		f.ask("policy", "a")
		f.ask("unknown", "b")
		called := d.next(t, "a")
		cancel()
		<-called.ctx.Done()
		synctest.Wait()
		d.idle(t)
		f.without("a", false)
		f.without("b", false)
		f.ask("policy", "c")
		f.without("c", false)
		if err := f.Configure(gateWith("late", "/hook")); err != nil || f.State("late") != (State{}) {
			t.Errorf("configured after the end: %v, %+v", err, f.State("late"))
		}
		h.Close()
		f.wantWoken()
	})
}
