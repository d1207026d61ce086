package ctl

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/ctl/preflight"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// verifyTick is the time between two looks at what is not in order yet.
const verifyTick = time.Second

// verifyFlags are those of verify.
type verifyFlags struct {
	named    preflight.Named
	selector string
	timeout  time.Duration
}

func (c *cli) verifyCommand() *cobra.Command {
	f := &verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that named checks, gates and queues are in order",
		Long: `Check that the named AdmissionChecks are Active, that the named AdmissionGates are
Ready, and that the named ClusterQueues are active and name all of the checks. It
waits until they are. Nothing else is read, so it takes the right to get these
objects and no other; preflight looks at the whole cluster.`,
		Example: `  dispatchctl verify --check policy --gate policy --queue training
  dispatchctl verify --check policy -l team=vision --timeout 10s`,
		Args: noArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error { return c.verify(ctx, f) }),
	}
	c.addAccess(cmd, false)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.named.Checks, "check", nil, "`name` of an AdmissionCheck, repeatable")
	flags.StringSliceVar(&f.named.Gates, "gate", nil, "`name` of an AdmissionGate, repeatable")
	flags.StringSliceVar(&f.named.Queues, "queue", nil, "`name` of a ClusterQueue, repeatable")
	flags.StringVarP(&f.selector, "selector", "l", "", "label `selector` of ClusterQueues, such as team=vision")
	flags.StringSliceVar(&f.named.OnFlavors, "on-flavors", nil, "`names` of ResourceFlavors that the checks are to be limited to; empty: all Workloads")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait until all is in order")
	c.addOutput(cmd, formatText)
	return cmd
}

func (c *cli) verify(ctx context.Context, f *verifyFlags) error {
	if f.selector != "" {
		selector, err := labels.Parse(f.selector)
		if err != nil {
			return usagef("-l %q: %v", f.selector, err)
		}
		f.named.Selector = selector
	}
	if n := f.named; len(n.Checks)+len(n.Gates)+len(n.Queues) == 0 && n.Selector == nil {
		return usagef("nothing is named: give --check, --gate, --queue or -l")
	}
	api, err := c.connect()
	if err != nil {
		return err
	}
	checker := preflight.Checker{Client: api.client}
	until := time.Now().Add(f.timeout)
	lines := checker.Verify(ctx, f.named)
	for preflight.Failed(lines) && time.Now().Add(verifyTick).Before(until) && wiring.Sleep(ctx, verifyTick) {
		lines = checker.Verify(ctx, f.named)
	}
	result := preflightResult{OK: !preflight.Failed(lines), Lines: lines}
	if err := c.print(result, func(w io.Writer) { preflightText(w, lines) }); err != nil {
		return err
	}
	if !result.OK {
		return ErrTold
	}
	return nil
}
