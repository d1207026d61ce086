// Package preflight looks at all that the gate needs in a cluster, and says of each
// thing whether it is right and what to do if not.
//
// A probe reads, and a function beside it judges what was read, so that everything
// that can be wrong is tested without a cluster.
package preflight

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// State is how one thing stands.
type State string

// States. Only Wrong and Unknown things keep the gate from doing its work.
const (
	OK      State = "ok"
	Warning State = "warning"
	Wrong   State = "wrong"
	// Unknown is what could not be read.
	Unknown State = "unknown"
)

// Line is one thing that was looked at.
type Line struct {
	What  string `json:"what"`
	State State  `json:"state"`
	// Found is how it stands, Fix what to do; empty if it is right.
	Found string `json:"found"`
	Fix   string `json:"fix,omitempty"`
}

// Failed tells whether something that is required is not right, or not known to
// be.
func Failed(lines []Line) bool {
	for _, l := range lines {
		if l.State == Wrong || l.State == Unknown {
			return true
		}
	}
	return false
}

// Checker looks at a cluster.
type Checker struct {
	Client    client.Client
	Discovery discovery.DiscoveryInterface
	// Lease is the controller's.
	Lease types.NamespacedName
	// Account is the ServiceAccount whose rights are looked at; the zero value for
	// whoever asks.
	Account types.NamespacedName
	// Mend tells that the controller runs with -mend-queues.
	Mend bool
	// Tick is the time between two looks at the Lease.
	Tick time.Duration
}

// Run looks at everything. What cannot be read is a line, not an error.
func (c *Checker) Run(ctx context.Context) []Line {
	// The first look at the Lease comes first: while the rest is looked at, its holder
	// renews it.
	lease := c.look(ctx)
	var lines []Line
	lines = append(lines, c.versions(ctx)...)
	w := c.world(ctx)
	lines = append(lines, c.rights(ctx, w.waitForPods())...)
	lines = append(lines, c.lease(ctx, lease))
	lines = append(lines, w.lines()...)
	return append(lines, c.podPolicy(ctx))
}

// ok, warn and wrong make lines.
func ok(what, found string, args ...any) Line {
	return Line{What: what, State: OK, Found: fmt.Sprintf(found, args...)}
}

func warn(what, fix, found string, args ...any) Line {
	return Line{What: what, State: Warning, Fix: fix, Found: fmt.Sprintf(found, args...)}
}

func wrong(what, fix, found string, args ...any) Line {
	return Line{What: what, State: Wrong, Fix: fix, Found: fmt.Sprintf(found, args...)}
}

// unknown is a thing that could not be read.
func unknown(what string, err error) Line {
	fix := "see that the API server answers, then try again"
	if apierrors.IsForbidden(err) {
		fix = "run this with an account that may read it"
	}
	return Line{What: what, State: Unknown, Found: err.Error(), Fix: fix}
}

// LookAtLease says whether a replica of the gate leads.
func (c *Checker) LookAtLease(ctx context.Context) Line { return c.lease(ctx, c.look(ctx)) }

// wirer reads how our checks stand in queues.
func (c *Checker) wirer() *wiring.Wirer {
	return wiring.New(c.Client, func(string) {}, false)
}
