package hooktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
)

func TestFake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		release := make(chan struct{})
		fake := hooktest.NewFake(
			hooktest.Answer(admission.Refuse("a")),
			hooktest.Fail(broken),
			hooktest.Wait(),
			hooktest.After(time.Second, hooktest.Answer(admission.Hold("a"))),
			hooktest.After(time.Minute, hooktest.Answer(admission.Hold("b"))),
			hooktest.Hang(release),
			hooktest.Answer(admission.Hold("last")),
		)
		time.AfterFunc(time.Hour, func() { close(release) })
		wants := []struct {
			d    admission.Decision
			err  error
			took time.Duration
		}{
			{admission.Refuse("a"), nil, 0},
			{admission.Decision{}, broken, 0},
			{admission.Decision{}, context.DeadlineExceeded, 2 * time.Second},
			{admission.Hold("a"), nil, time.Second},
			{admission.Decision{}, context.DeadlineExceeded, 2 * time.Second},
			{admission.Admit(), nil, time.Hour - 5*time.Second},
			{admission.Hold("last"), nil, 0},
			{admission.Hold("last"), nil, 0},
		}
		for i, want := range wants {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			start := time.Now()
			d, err := fake.Admit(ctx, &admission.Request{TryNumber: i + 1})
			if took := time.Since(start); !d.Equal(want.d) || !errors.Is(err, want.err) || took != want.took {
				t.Errorf("call %d: got %v, %v after %v", i, d, err, took)
			}
			cancel()
		}
		for i, req := range fake.Calls() {
			if req.TryNumber != i+1 {
				t.Errorf("call %d recorded as %d", i, req.TryNumber)
			}
		}
		if n := len(fake.Calls()); n != len(wants) {
			t.Errorf("%d calls recorded", n)
		}
	})
}

func TestFakeWithoutScript(t *testing.T) {
	if d, err := hooktest.NewFake().Admit(t.Context(), &admission.Request{}); err != nil || !d.Equal(admission.Admit()) {
		t.Errorf("got %v, %v", d, err)
	}
}

func TestFakePanics(t *testing.T) {
	defer func() {
		if v := recover(); v != "boom" {
			t.Errorf("recovered %v", v)
		}
	}()
	_, _ = hooktest.NewFake(hooktest.Panic("boom")).Admit(t.Context(), &admission.Request{})
}

func ExampleNewFake() {
	fake := hooktest.NewFake(
		hooktest.Answer(admission.Hold("freeze")),
		hooktest.Answer(admission.Admit()),
	)
	for range 2 {
		fmt.Println(fake.Admit(context.Background(), &admission.Request{TaskID: "node"}))
	}
	fmt.Println(len(fake.Calls()), fake.Calls()[0].TaskID)
	// Output:
	// Hold {"decision":"Hold","reason":"freeze"} <nil>
	// Admit <nil>
	// 2 node
}
