package ctl

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/ctl/preflight"
)

// preflightFlags are those of preflight.
type preflightFlags struct {
	lease   types.NamespacedName
	account string
	mend    bool
	timeout time.Duration
}

func (c *cli) preflightCommand() *cobra.Command {
	f := &preflightFlags{}
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check all that the gate needs in a cluster",
		Long: `Check all that the gate needs in a cluster: versions and APIs, rights, the Lease,
checks, gates, queues and the pod policy. What to do stands next to what is not
right. Exit code 1 if something that is required is wrong, or could not be read.`,
		Example: `  dispatchctl preflight --service-account dispatch-system/dispatch-admission
  dispatchctl preflight -o json`,
		Args: noArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			account, err := parseName("--service-account", f.account)
			if err != nil {
				return err
			}
			return c.preflight(ctx, f, account)
		}),
	}
	c.addAccess(cmd, false)
	flags := cmd.Flags()
	addLeaseFlags(cmd, &f.lease)
	flags.StringVar(&f.account, "service-account", "", "`NAMESPACE/NAME` of the ServiceAccount whose rights are checked; empty: whoever asks")
	flags.BoolVar(&f.mend, "mend-queues", false, "the controller runs with -mend-queues: check the rights that it takes too")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long to take at most")
	c.addOutput(cmd, formatText)
	return cmd
}

// parseName reads a flag with a namespace and a name; empty is none.
func parseName(flag, text string) (types.NamespacedName, error) {
	if text == "" {
		return types.NamespacedName{}, nil
	}
	namespace, name, found := strings.Cut(text, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, usagef("%s %q: want NAMESPACE/NAME", flag, text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// preflightResult is what preflight found.
type preflightResult struct {
	OK    bool             `json:"ok"`
	Lines []preflight.Line `json:"lines"`
}

func (c *cli) preflight(ctx context.Context, f *preflightFlags, account types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	api, err := c.connect()
	if err != nil {
		return err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(api.config)
	if err != nil {
		return c.access.explain(err)
	}
	if _, err := disco.ServerVersion(); err != nil {
		return err // nothing else would answer either
	}
	checker := preflight.Checker{Client: api.client, Discovery: disco, Lease: f.lease, Account: account, Mend: f.mend, Tick: leaseTick}
	lines := checker.Run(ctx)
	result := preflightResult{OK: !preflight.Failed(lines), Lines: lines}
	if err := c.print(result, func(w io.Writer) { preflightText(w, lines) }); err != nil {
		return err
	}
	if !result.OK {
		return ErrTold
	}
	return nil
}

func preflightText(w io.Writer, lines []preflight.Line) {
	rows := [][]string{{"STATE", "WHAT", "FOUND"}}
	for _, l := range lines {
		rows = append(rows, []string{string(l.State), l.What, l.Found})
		if l.Fix != "" {
			rows = append(rows, []string{"", "", "-> " + l.Fix})
		}
	}
	table(w, rows)
	if preflight.Failed(lines) {
		fmt.Fprintln(w, "\nnot ready: see the lines above that are wrong or unknown")
	}
}
