package ctl

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/ctl/explain"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/ctl/preflight"
)

func (c *cli) explainCommand() *cobra.Command {
	lease := types.NamespacedName{}
	cmd := &cobra.Command{
		Use:   "explain NAMESPACE/WORKLOAD | KIND/NAME",
		Short: "Say why a job waits, and what can be done",
		Long: `Say in plain words why a job waits: its queue, its quota, our checks and those of
others, a hook that holds it. What can be done stands below each reason. Exit code 0
whatever the answer is.`,
		Example: `  dispatchctl explain team-a/trainjob-train-1a2b3
  dispatchctl explain -n team-a job/train`,
		Args: needTarget,
		RunE: c.action(func(ctx context.Context, args []string) error {
			t, err := parseTarget(args[0], c.access.namespace)
			if err != nil {
				return err
			}
			return c.explain(ctx, t, lease)
		}),
	}
	c.addAccess(cmd, true)
	addLeaseFlags(cmd, &lease)
	c.addOutput(cmd, formatText)
	return cmd
}

// addLeaseFlags gives a command the flags that name the controller's Lease.
func addLeaseFlags(cmd *cobra.Command, lease *types.NamespacedName) {
	cmd.Flags().StringVar(&lease.Namespace, "lease-namespace", v1alpha1.DefaultLeaseNamespace, "`namespace` of the controller's Lease")
	cmd.Flags().StringVar(&lease.Name, "lease-name", v1alpha1.DefaultLeaseName, "`name` of the controller's Lease")
}

func (c *cli) explain(ctx context.Context, t target, lease types.NamespacedName) error {
	api, err := c.connect()
	if err != nil {
		return err
	}
	f := explain.Facts{Now: time.Now()}
	if f.Workload, err = api.find(ctx, t); err != nil {
		return err
	}
	if err := api.facts(ctx, &f); err != nil {
		return err
	}
	f.Leads = func() (why, fix string) {
		checker := preflight.Checker{Client: api.client, Lease: lease, Tick: leaseTick}
		if line := checker.LookAtLease(ctx); line.State != preflight.OK {
			return line.Found, line.Fix
		}
		return "", ""
	}
	e := explain.Explain(f)
	return c.print(e, func(w io.Writer) { explainText(w, e) })
}

// leaseTick is the time between two looks at a Lease.
const leaseTick = 500 * time.Millisecond

// facts reads what there is to know of a Workload.
func (c *cluster) facts(ctx context.Context, f *explain.Facts) (err error) {
	if f.TrainJob, err = c.trainJob(ctx, f.Workload); err != nil {
		return err
	}
	var lq kueue.LocalQueue
	switch err := c.client.Get(ctx, client.ObjectKey{Namespace: f.Workload.Namespace, Name: string(f.Workload.Spec.QueueName)}, &lq); {
	case err == nil:
		f.LocalQueue = &lq
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading the LocalQueue: %w", err)
	}
	if f.ClusterQueue, err = c.queueOf(ctx, f.Workload); err != nil {
		return err
	}
	var checks kueue.AdmissionCheckList
	if err := c.client.List(ctx, &checks); err != nil {
		return fmt.Errorf("listing the checks: %w", err)
	}
	f.Checks, f.Gates = map[string]*kueue.AdmissionCheck{}, map[string]*v1alpha1.AdmissionGate{}
	for i := range checks.Items {
		f.Checks[checks.Items[i].Name] = &checks.Items[i]
	}
	var gates v1alpha1.AdmissionGateList
	if err := c.client.List(ctx, &gates); err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("listing the gates: %w", err)
	}
	for i := range gates.Items {
		f.Gates[gates.Items[i].Name] = &gates.Items[i]
	}
	return nil
}

func explainText(w io.Writer, e explain.Explanation) {
	fmt.Fprintf(w, "Workload %s", e.Workload)
	if e.Job != "" {
		fmt.Fprintf(w, " of %s", e.Job)
	}
	fmt.Fprintf(w, "\n%s\n", e.Summary)
	for _, r := range e.Reasons {
		fmt.Fprintf(w, "\n%s: %s\n", r.About, oneLine(r.Text))
		if r.Do != "" {
			fmt.Fprintf(w, "  -> %s\n", r.Do)
		}
	}
	fmt.Fprintln(w)
	rows := make([][]string, len(e.Facts))
	for i, f := range e.Facts {
		rows[i] = []string{f.Name, f.Text}
	}
	table(w, rows)
}
