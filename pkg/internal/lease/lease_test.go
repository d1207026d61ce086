package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// slowLock is a Lease whose writes take a second, or fail.
type slowLock struct {
	resourcelock.Interface

	err error
}

func (l *slowLock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	time.Sleep(time.Second)
	return l.err
}

func (l *slowLock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	time.Sleep(time.Second)
	return l.err
}

func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &slowLock{}
		l := wrap(inner, 15*time.Second)
		held := func(want bool, why string) {
			t.Helper()
			if got := l.Held(); (got == nil) != want || got != nil && !errors.Is(got, ErrLost) {
				t.Errorf("%v, want held %v: %s", got, want, why)
			}
		}
		renew := func(write func(context.Context, resourcelock.LeaderElectionRecord) error) {
			_ = write(t.Context(), resourcelock.LeaderElectionRecord{})
		}
		held(false, "nothing was acquired")
		renew(l.Create)
		held(true, "acquired")
		time.Sleep(14*time.Second - time.Nanosecond)
		held(true, "just before the end, counted from before the request")
		time.Sleep(time.Nanosecond)
		held(false, "others may lead from here on")
		renew(l.Update)
		held(true, "renewed")
		inner.err = errors.New("conflict")
		time.Sleep(10 * time.Second)
		renew(l.Update)
		time.Sleep(4 * time.Second)
		held(false, "a renewal that failed extends nothing")
	})
}
