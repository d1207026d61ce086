package ctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

func (c *cli) requestCommand() *cobra.Command {
	var check string
	cmd := &cobra.Command{
		Use:   "request NAMESPACE/WORKLOAD | KIND/NAME",
		Short: "Print what a hook is told about a job",
		Long: `Print the request that the gate sends to a hook about a job, as it would send it
now. A job that waits is shown as at its next offer, one that runs as at its start;
a note on standard error says so. Environment, arguments and volumes are not in a
request.`,
		Example: `  dispatchctl request team-a/trainjob-train-1a2b3
  dispatchctl request -n team-a trainjob/train
  dispatchctl request -n team-a job/train | dispatchctl policy eval -f policy.yaml -r -`,
		Args: needTarget,
		RunE: c.action(func(ctx context.Context, args []string) error {
			t, err := parseTarget(args[0], c.access.namespace)
			if err != nil {
				return err
			}
			return c.request(ctx, t, check)
		}),
	}
	c.addAccess(cmd, true)
	cmd.Flags().StringVar(&check, "check", "", "`name` of the AdmissionCheck whose hook is told; empty: the only one with a hook")
	c.addOutput(cmd, formatYAML)
	return cmd
}

func (c *cli) request(ctx context.Context, t target, check string) error {
	api, err := c.connect()
	if err != nil {
		return err
	}
	wl, err := api.find(ctx, t)
	if err != nil {
		return err
	}
	in := asked{workload: wl}
	if in.trainJob, err = api.trainJob(ctx, wl); err != nil {
		return err
	}
	if in.clusterQueue, err = api.queueOf(ctx, wl); err != nil {
		return err
	}
	if in.ours, err = api.ourChecks(ctx); err != nil {
		return err
	}
	if in.check, err = api.hookCheck(ctx, in, check); err != nil {
		return err
	}
	req, notes, err := in.request(time.Now())
	if err != nil {
		return err
	}
	for _, n := range notes {
		c.note("%s", n)
	}
	return c.print(req, func(io.Writer) {})
}

// trainJob reads the TrainJob that a Workload was made for; nil if it was made for
// something else or the TrainJob is gone.
func (c *cluster) trainJob(ctx context.Context, wl *kueue.Workload) (*trainer.TrainJob, error) {
	owner := gate.TrainJobOwner(wl)
	if owner == nil {
		return nil, nil //nolint:nilnil // absence is a fact
	}
	var job trainer.TrainJob
	err := c.client.Get(ctx, client.ObjectKey{Namespace: wl.Namespace, Name: owner.Name}, &job)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is a fact
	}
	if err != nil {
		return nil, served(err, "trainer.kubeflow.org/v1alpha1; install Kubeflow Trainer v2.2 or newer")
	}
	return &job, nil
}

// queueOf reads the ClusterQueue of a Workload; nil if there is none.
func (c *cluster) queueOf(ctx context.Context, wl *kueue.Workload) (*kueue.ClusterQueue, error) {
	var name kueue.ClusterQueueReference
	if wl.Status.Admission != nil {
		name = wl.Status.Admission.ClusterQueue
	} else {
		var lq kueue.LocalQueue
		err := c.client.Get(ctx, client.ObjectKey{Namespace: wl.Namespace, Name: string(wl.Spec.QueueName)}, &lq)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the LocalQueue: %w", err)
		}
		name = lq.Spec.ClusterQueue
	}
	if name == "" {
		return nil, nil //nolint:nilnil // absence is a fact
	}
	var cq kueue.ClusterQueue
	err := c.client.Get(ctx, client.ObjectKey{Name: string(name)}, &cq)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is a fact
	}
	if err != nil {
		return nil, fmt.Errorf("reading the ClusterQueue: %w", err)
	}
	return &cq, nil
}

// ourChecks reads the AdmissionChecks of ours, by name.
func (c *cluster) ourChecks(ctx context.Context) ([]kueue.AdmissionCheck, error) {
	var list kueue.AdmissionCheckList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, served(err, installKueue)
	}
	return slices.DeleteFunc(list.Items, func(check kueue.AdmissionCheck) bool {
		return check.Spec.ControllerName != v1alpha1.ControllerName
	}), nil
}

// hooked is a check of ours and the gate that it names; the gate is nil without
// one.
type hooked struct {
	name string
	gate *v1alpha1.AdmissionGate
}

// hookCheck finds the check whose hook is told about a Workload: the one that is
// named, or the only one of its queue that has a hook; the zero value if none has.
func (c *cluster) hookCheck(ctx context.Context, a asked, name string) (hooked, error) {
	if name != "" {
		return c.namedCheck(ctx, a.ours, name)
	}
	var found []hooked
	var names []string
	for i := range a.ours {
		check := &a.ours[i]
		if !waitsFor(a.workload, a.clusterQueue, check.Name) {
			continue
		}
		g, err := c.gateOf(ctx, check)
		if err != nil {
			return hooked{}, err
		}
		if g != nil && g.Spec.Hook != nil {
			found, names = append(found, hooked{check.Name, g}), append(names, check.Name)
		}
	}
	switch len(found) {
	case 0:
		return hooked{}, nil
	case 1:
		return found[0], nil
	}
	return hooked{}, usagef("several checks of this job have a hook: give --check %s", orList(names))
}

func (c *cluster) namedCheck(ctx context.Context, ours []kueue.AdmissionCheck, name string) (hooked, error) {
	i := slices.IndexFunc(ours, func(check kueue.AdmissionCheck) bool { return check.Name == name })
	if i < 0 {
		return hooked{}, fmt.Errorf("--check %q: there is no AdmissionCheck of that name with controllerName %s", name, v1alpha1.ControllerName)
	}
	g, err := c.gateOf(ctx, &ours[i])
	return hooked{name, g}, err
}

// waitsFor tells whether a Workload has an entry of a check, or will get one.
func waitsFor(wl *kueue.Workload, cq *kueue.ClusterQueue, check string) bool {
	ref := kueue.AdmissionCheckReference(check)
	if slices.ContainsFunc(wl.Status.AdmissionChecks, func(s kueue.AdmissionCheckState) bool { return s.Name == ref }) {
		return true
	}
	return cq != nil && cq.Spec.AdmissionChecksStrategy != nil && slices.ContainsFunc(cq.Spec.AdmissionChecksStrategy.AdmissionChecks,
		func(r kueue.AdmissionCheckStrategyRule) bool { return r.Name == ref })
}

// gateOf reads the gate that a check names; nil without one.
func (c *cluster) gateOf(ctx context.Context, check *kueue.AdmissionCheck) (*v1alpha1.AdmissionGate, error) {
	ref := check.Spec.Parameters
	if ref == nil || ref.APIGroup != v1alpha1.GroupName || ref.Kind != v1alpha1.AdmissionGateKind {
		return nil, nil //nolint:nilnil // the plain readmission gate
	}
	var g v1alpha1.AdmissionGate
	err := c.client.Get(ctx, client.ObjectKey{Name: ref.Name}, &g)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil //nolint:nilnil // then the check is not Active, which others tell
	case err != nil:
		return nil, fmt.Errorf("reading the gate %q: %w", ref.Name, err)
	}
	return &g, nil
}
