package hooks

import (
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

// BenchmarkAsk shows what the pool adds to the runner. "bare" is the runner
// alone, "pool" is from Ask to Answered for one question at a time, "crowd" is
// per question when many wait. The rest of a call is the network's, see package
// httphook.
func BenchmarkAsk(b *testing.B) {
	req := &admission.Request{TenantID: "team-a", TaskID: "node", TryNumber: 1}
	hook := hooktest.Answer(admission.Hold("freeze"))
	b.Run("bare", func(b *testing.B) {
		r, err := runner.New(hook, runner.Config{})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			r.Ask(b.Context(), req)
		}
	})
	b.Run("pool", func(b *testing.B) {
		f := newFixture(b).inProcess(hook)
		f.configure(gateWith("policy", "/hook"))
		answered := make(chan struct{})
		offer := 0
		b.ReportAllocs()
		for b.Loop() {
			offer++
			f.Ask(Question{Gate: "policy", Workload: "w", Check: "check", Offer: strconv.Itoa(offer),
				Request: req, Answered: func() { answered <- struct{}{} }})
			<-answered
		}
	})
	b.Run("crowd", func(b *testing.B) {
		f := newFixture(b).inProcess(hook)
		f.configure(gateWith("policy", "/hook"))
		answered := make(chan struct{}, 1024)
		b.ReportAllocs()
		asked, n := 0, 0
		for b.Loop() {
			for ; asked-n < cap(answered); asked++ {
				f.Ask(Question{Gate: "policy", Workload: types.UID(strconv.Itoa(asked % cap(answered))), Check: "check",
					Offer: strconv.Itoa(asked), Request: req, Answered: func() { answered <- struct{}{} }})
			}
			<-answered
			n++
		}
	})
}
