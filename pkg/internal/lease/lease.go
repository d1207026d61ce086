// Package lease is a leader election lock that knows whether it still holds.
//
// Leader election alone does not stop a leader that was paused: after a pause
// longer than the Lease its goroutines run on until the election loop gets a
// turn. Whoever asks Held before each write cannot write in that time.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ErrLost is returned for a write that was not sent because the Lease has run
// out.
var ErrLost = errors.New("the leader election Lease has run out")

// Lock is a Lease lock of client-go that remembers its last renewal.
type Lock struct {
	resourcelock.Interface

	duration time.Duration
	// renewed is when the last successful write to the Lease was begun; nil
	// before the first. time.Time carries the monotonic clock, which goes on
	// while the process is stopped.
	renewed atomic.Pointer[time.Time]
}

// Config names a Lease and its timing.
type Config struct {
	Namespace, Name, Identity string
	// Duration is how long others wait after the last renewal they saw.
	Duration time.Duration
	// RenewDeadline bounds each request for the Lease.
	RenewDeadline time.Duration
}

// New makes a lock. It sends no request.
func New(cfg Config, api *rest.Config) (*Lock, error) {
	inner, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, cfg.Namespace, cfg.Name,
		resourcelock.ResourceLockConfig{Identity: cfg.Identity}, api, cfg.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("lease %s/%s: %w", cfg.Namespace, cfg.Name, err)
	}
	return wrap(inner, cfg.Duration), nil
}

func wrap(inner resourcelock.Interface, duration time.Duration) *Lock {
	return &Lock{Interface: inner, duration: duration}
}

// Create implements resourcelock.Interface.
func (l *Lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.note(func() error { return l.Interface.Create(ctx, r) })
}

// Update implements resourcelock.Interface.
func (l *Lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.note(func() error { return l.Interface.Update(ctx, r) })
}

// note counts a renewal from before the request, so that Held never outlasts
// what another replica can have seen.
func (l *Lock) note(write func() error) error {
	begun := time.Now()
	if err := write(); err != nil {
		return err
	}
	l.renewed.Store(&begun)
	return nil
}

// Held is nil while the Lease, as last renewed by this process, lasts, and
// ErrLost from then on.
func (l *Lock) Held() error {
	if at := l.renewed.Load(); at != nil && time.Since(*at) < l.duration {
		return nil
	}
	return ErrLost
}
