package ctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

func (c *cli) queuesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "queues",
		Aliases: []string{"queue"},
		Short:   "Put our checks into ClusterQueues, take them out, and see how they stand",
		Long: `Put our AdmissionChecks into existing ClusterQueues, take them out again, and see
how they stand. Nothing else of a queue is touched.`,
	}
	return c.group(cmd, c.queuesAttach(), c.queuesDetach(), c.queuesStatus())
}

// queueFlags are those that say which queues and checks are meant.
type queueFlags struct {
	selector string
	all      bool
	checks   []string
	timeout  time.Duration
	dryRun   bool
}

// addQueueFlags gives a command the flags that say which queues and checks are
// meant.
func (c *cli) addQueueFlags(cmd *cobra.Command, f *queueFlags) {
	c.addAccess(cmd, false)
	flags := cmd.Flags()
	flags.StringVarP(&f.selector, "selector", "l", "", "label `selector` of the ClusterQueues, such as team=vision")
	flags.StringSliceVar(&f.checks, "check", nil, "`name` of an AdmissionCheck, repeatable; empty: every one of ours (attach: the only one)")
	cmd.ValidArgsFunction = c.completeQueues
	c.addOutput(cmd, formatText)
}

// addWriteFlags gives a command the flags of one that writes.
func addWriteFlags(cmd *cobra.Command, f *queueFlags) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait in all, for checks and queues")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "have the API server check the writes, and carry out none")
}

// pick is which queues are meant.
type pick struct {
	names    []string
	selector labels.Selector
}

// parse reads the flags.
func (f *queueFlags) parse(names []string) (pick, error) {
	given := 0
	for _, is := range []bool{len(names) > 0, f.selector != "", f.all} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		return pick{}, usagef("no queue is named: give names of ClusterQueues, or -l SELECTOR")
	case given > 1:
		return pick{}, usagef("names of queues, -l and --all exclude each other: give one of them")
	}
	selector, err := labels.Parse(f.selector)
	if err != nil {
		return pick{}, usagef("-l %q: %v", f.selector, err)
	}
	slices.Sort(names)
	return pick{slices.Compact(names), selector}, nil
}

// queues are the names of the queues that are meant.
func (p pick) queues(ctx context.Context, w *wiring.Wirer) ([]string, error) {
	if len(p.names) > 0 {
		return p.names, nil
	}
	list, err := w.Queues(ctx, p.selector)
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	return names, err
}

// writer is a connection by which queues are wired.
func (c *cli) wirer(f *queueFlags) (*cluster, *wiring.Wirer, error) {
	api, err := c.connect()
	if err != nil {
		return nil, nil, err
	}
	say := func(text string) { fmt.Fprintln(c.Err, text) }
	return api, wiring.New(api.client, say, f.dryRun), nil
}

// wiringResult is what attach and detach did.
type wiringResult struct {
	DryRun  bool            `json:"dryRun,omitempty"`
	Results []wiring.Result `json:"results"`
}

// tell prints what was done, and fails if anything is not as wanted.
func (c *cli) tell(r wiringResult) error {
	if err := c.print(r, r.text); err != nil {
		return err
	}
	if r.failed() {
		return ErrTold
	}
	return nil
}

// failed tells whether anything is not as wanted.
func (r *wiringResult) failed() bool {
	return slices.ContainsFunc(r.Results, func(r wiring.Result) bool { return r.Problem != "" })
}

func (r *wiringResult) text(w io.Writer) {
	if len(r.Results) == 0 {
		fmt.Fprintln(w, "nothing to do")
		return
	}
	rows := [][]string{{"QUEUE", "CHECK", "CHANGE", "NOTE"}}
	var held []string
	for _, one := range r.Results {
		change, note := string(one.Change), one.Note
		if one.Problem != "" {
			change, note = "FAILED ("+change+")", one.Problem
			if one.Note != "" {
				note += "; " + one.Note
			}
		}
		if r.DryRun {
			change += " (dry run)"
		}
		rows = append(rows, []string{one.Queue, one.Check, change, note})
		if one.Held && !slices.Contains(held, one.Queue) {
			held = append(held, one.Queue)
		}
	}
	table(w, rows)
	if r.DryRun {
		return
	}
	for _, queue := range held {
		fmt.Fprintf(w, "\nClusterQueue %s has stopPolicy Hold, so that none of its jobs starts ungated. To open it again:\n  %s\n", queue, wiring.OpenCommand(queue))
	}
}

// completeQueues offers the names of ClusterQueues to the shell.
func (c *cli) completeQueues(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
	defer cancel()
	_, w, err := c.wirer(&queueFlags{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := pick{selector: labels.Everything()}.queues(ctx, w)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
}

func (c *cli) queuesStatus() *cobra.Command {
	f := &queueFlags{}
	cmd := &cobra.Command{
		Use:   "status [QUEUE…] [-l SELECTOR]",
		Short: "Show which queues have our checks, whether they are active, and who waits",
		Long: `Show which ClusterQueues have our checks, whether they are active, why not, and how
many Workloads wait. WAITING have quota and wait for the check, PENDING wait for
quota. All queues are shown if none is named.`,
		Example: `  dispatchctl queues status
  dispatchctl queues status training -o json`,
		RunE: c.action(func(ctx context.Context, args []string) error {
			f.all = len(args) == 0 && f.selector == ""
			p, err := f.parse(args)
			if err != nil {
				return err
			}
			return c.status(ctx, f, p)
		}),
	}
	c.addQueueFlags(cmd, f)
	return cmd
}

func (c *cli) status(ctx context.Context, f *queueFlags, p pick) error {
	api, w, err := c.wirer(f)
	if err != nil {
		return err
	}
	queues, err := w.Queues(ctx, p.selector)
	if err != nil {
		return served(err, installKueue)
	}
	for _, name := range p.names {
		if !slices.ContainsFunc(queues, func(q kueue.ClusterQueue) bool { return q.Name == name }) {
			return fmt.Errorf("there is no ClusterQueue %q", name)
		}
	}
	if len(p.names) > 0 {
		queues = slices.DeleteFunc(queues, func(q kueue.ClusterQueue) bool { return !slices.Contains(p.names, q.Name) })
	}
	checks, err := api.ourChecks(ctx)
	if err != nil {
		return err
	}
	if len(f.checks) > 0 {
		checks = slices.DeleteFunc(checks, func(check kueue.AdmissionCheck) bool { return !slices.Contains(f.checks, check.Name) })
	}
	all, err := w.Look(ctx, queues, checks)
	if err != nil {
		return err
	}
	return c.print(statusResult{all}, func(out io.Writer) { statusText(out, all) })
}

// statusResult is what queues status found.
type statusResult struct {
	Queues []wiring.Status `json:"queues"`
}

func statusText(w io.Writer, all []wiring.Status) {
	rows := [][]string{{"QUEUE", "CHECK", "WIRED", "BY", "ACTIVE", "WAITING", "PENDING", "WHY NOT"}}
	for _, s := range all {
		wired := yesNo(s.Wired)
		if len(s.OnFlavors) > 0 {
			wired = "on " + strings.Join(s.OnFlavors, ",")
		}
		check, by := s.Check, strings.Join(s.By, ",")
		if !s.Wired {
			check, by = "-", "-"
		}
		rows = append(rows, []string{s.Queue, check, wired, by, yesNo(s.Active), fmt.Sprint(s.Waiting), fmt.Sprint(s.Pending), s.WhyNot})
	}
	table(w, rows)
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// nothingServed tells whether an error is that the cluster has no Kueue.
func nothingServed(err error) bool { return meta.IsNoMatchError(err) }
