package preflight

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

const (
	leaseWhat = "Lease"
	leaseFix  = "see why no replica of dispatch-admission leads (its log), or name its Lease by --lease-namespace and --lease-name"
	// defaultDuration is how long a Lease lasts that does not say.
	defaultDuration = 15 * time.Second
)

// look is a look at the Lease.
type look struct {
	lease *coordinationv1.Lease
	err   error
	at    time.Time
}

func (c *Checker) look(ctx context.Context) look {
	lease := &coordinationv1.Lease{}
	err := c.Client.Get(ctx, c.Lease, lease)
	return look{lease, err, time.Now()}
}

// lease says whether somebody holds the Lease. It has the time of the last renewal
// by the clock of its holder, which may differ from any other by more than a Lease
// lasts. So a renewal is waited for, for as long as the Lease lasts.
func (c *Checker) lease(ctx context.Context, first look) Line {
	if line, sure := judgeLease(first, c.Lease.String()); sure {
		return line
	}
	until := first.at.Add(lasts(first.lease))
	for {
		again := c.look(ctx)
		if line, sure := judgeLease(again, c.Lease.String()); sure {
			return line
		}
		holder, renewed := *again.lease.Spec.HolderIdentity, again.lease.Spec.RenewTime
		switch {
		case !renewed.Equal(first.lease.Spec.RenewTime):
			return ok(leaseWhat, "%s is held by %s, which renews it", c.Lease, holder)
		case again.at.After(until) || !wiring.Sleep(ctx, c.Tick):
			return wrong(leaseWhat, leaseFix, "%s was last renewed at %s by %s, and not for %s since",
				c.Lease, renewed.Format(time.RFC3339), holder, lasts(first.lease))
		}
	}
}

// judgeLease says what a first look tells for sure.
func judgeLease(l look, name string) (line Line, sure bool) {
	switch {
	case apierrors.IsNotFound(l.err):
		return wrong(leaseWhat, leaseFix, "%s does not exist: no replica has ever led", name), true
	case l.err != nil:
		return unknown(leaseWhat, l.err), true
	case l.lease.Spec.HolderIdentity == nil || *l.lease.Spec.HolderIdentity == "" || l.lease.Spec.RenewTime == nil:
		return wrong(leaseWhat, leaseFix, "nobody holds %s", name), true
	}
	return Line{}, false
}

func lasts(l *coordinationv1.Lease) time.Duration {
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return defaultDuration
}
