package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

func (c *cli) queuesAttach() *cobra.Command {
	f := &queueFlags{}
	var onFlavors []string
	cmd := &cobra.Command{
		Use:   "attach QUEUE… | -l SELECTOR",
		Short: "Put a check into queues",
		Long: `Put a check into ClusterQueues, by server-side apply of this entry alone (manager
dispatchctl/CHECK). It waits until the check is Active, sees afterwards that each
queue is active with it, and takes back what makes a queue inactive. A queue that
has the entry is left as it is.`,
		Example: `  dispatchctl queues attach training batch --check policy
  dispatchctl queues attach -l team=vision --check policy --on-flavors a100,h100
  dispatchctl queues attach training --dry-run`,
		RunE: c.action(func(ctx context.Context, args []string) error {
			p, err := f.parse(args)
			if err != nil {
				return err
			}
			return c.attach(ctx, f, p, onFlavors)
		}),
	}
	c.addQueueFlags(cmd, f)
	addWriteFlags(cmd, f)
	cmd.Flags().StringSliceVar(&onFlavors, "on-flavors", nil, "`names` of ResourceFlavors whose Workloads need the check; empty: all Workloads")
	return cmd
}

func (c *cli) attach(ctx context.Context, f *queueFlags, p pick, onFlavors []string) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	api, w, err := c.wirer(f)
	if err != nil {
		return err
	}
	checks, err := api.checksToAttach(ctx, f.checks)
	if err != nil {
		return err
	}
	queues, err := p.queues(ctx, w)
	switch {
	case err != nil:
		return served(err, installKueue)
	case len(queues) == 0:
		return errors.New("-l " + f.selector + ": no ClusterQueue has these labels")
	}
	for _, check := range checks {
		if err := w.AwaitCheck(ctx, check); err != nil {
			return served(err, installKueue)
		}
	}
	if err := c.release(ctx, w, checks, queues); err != nil {
		return err
	}
	result := wiringResult{DryRun: f.dryRun}
	for _, queue := range queues {
		for _, check := range checks {
			result.Results = append(result.Results, w.Attach(ctx, queue, wiring.Entry{Check: check, OnFlavors: onFlavors}))
		}
	}
	return c.tell(result)
}

// release lets checks into queues again that people had taken them out of.
func (c *cli) release(ctx context.Context, w *wiring.Wirer, checks, queues []string) error {
	for _, check := range checks {
		all, err := w.Release(ctx, check, queues...)
		if err != nil {
			return err
		}
		if all {
			c.note("AdmissionCheck %q was to stay out of every queue; a controller that wires queues by itself puts it back now where it is wanted", check)
		}
	}
	return nil
}

// checksToAttach are the checks that are named, else the only one of ours.
func (c *cluster) checksToAttach(ctx context.Context, names []string) ([]string, error) {
	if len(names) > 0 {
		return names, nil
	}
	ours, err := c.checkNames(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(ours) == 0:
		return nil, errors.New("there is no AdmissionCheck with controllerName " + v1alpha1.ControllerName + "; the chart makes one")
	case len(ours) > 1:
		return nil, usagef("several AdmissionChecks are ours: give --check %s", orList(ours))
	}
	return ours, nil
}

func (c *cluster) checkNames(ctx context.Context) ([]string, error) {
	checks, err := c.ourChecks(ctx)
	names := make([]string, len(checks))
	for i := range checks {
		names[i] = checks[i].Name
	}
	slices.Sort(names)
	return names, err
}

func (c *cli) queuesDetach() *cobra.Command {
	f := &queueFlags{}
	var hold bool
	cmd := &cobra.Command{
		Use:   "detach QUEUE… | -l SELECTOR | --all",
		Short: "Take checks out of queues",
		Long: `Take our checks out of ClusterQueues, whoever put them there. Jobs that wait for a
check start at once when it goes; with --hold-first each queue is stopped before
(stopPolicy Hold) and left so, and how to open it again is told. What is not there,
a queue, an entry or Kueue, is no failure. Name checks that no longer exist with
--check. An annotation of the check keeps a controller that wires queues by itself
from putting it back, until it is attached again.`,
		Example: `  dispatchctl queues detach training
  dispatchctl queues detach --all --check policy --hold-first`,
		RunE: c.action(func(ctx context.Context, args []string) error {
			p, err := f.parse(args)
			if err != nil {
				return err
			}
			return c.detach(ctx, f, p, hold)
		}),
	}
	c.addQueueFlags(cmd, f)
	addWriteFlags(cmd, f)
	cmd.Flags().BoolVar(&f.all, "all", false, "every ClusterQueue that names one of the checks")
	cmd.Flags().BoolVar(&hold, "hold-first", false, "stop each queue before (stopPolicy Hold) and leave it so, so that nothing starts ungated")
	return cmd
}

func (c *cli) detach(ctx context.Context, f *queueFlags, p pick, hold bool) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	api, w, err := c.wirer(f)
	if err != nil {
		return err
	}
	result := wiringResult{DryRun: f.dryRun, Results: []wiring.Result{}}
	checks, err := api.checksToDetach(ctx, f.checks)
	if err == nil && len(checks) > 0 {
		err = detachAll(ctx, w, f, p, checks, hold, &result)
	}
	if err == nil && len(checks) > 0 {
		err = c.letGo(ctx, w, checks)
	}
	if nothingServed(err) {
		c.note("the cluster does not serve %s", installKueue)
		err = nil
	}
	if err != nil {
		return err
	}
	return c.tell(result)
}

// letGo waits for the jobs that wait for checks which have been taken out of queues.
func (c *cli) letGo(ctx context.Context, w *wiring.Wirer, checks []string) error {
	if w.DryRun {
		return nil
	}
	note, err := w.LetGo(ctx, checks)
	if note != "" {
		c.note("%s", note)
	}
	return err
}

// checksToDetach are the checks that are named, else all of ours. One that does not
// exist may have left its entry; one of another controller is none of ours.
func (c *cluster) checksToDetach(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return c.checkNames(ctx)
	}
	for _, name := range names {
		var check kueue.AdmissionCheck
		switch err := c.client.Get(ctx, client.ObjectKey{Name: name}, &check); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return names, err
		case check.Spec.ControllerName != v1alpha1.ControllerName:
			return nil, fmt.Errorf("--check %q: it is served by %s, not by the gate, so it stays", name, check.Spec.ControllerName)
		}
	}
	return names, nil
}

func detachAll(ctx context.Context, w *wiring.Wirer, f *queueFlags, p pick, checks []string, hold bool, result *wiringResult) error {
	queues, err := p.queues(ctx, w)
	if err != nil {
		return err
	}
	keep := queues
	if f.all {
		keep = []string{v1alpha1.KeepAllDetached}
	}
	for _, check := range checks {
		if err := w.KeepDetached(ctx, check, keep...); err != nil {
			return err
		}
	}
	if !f.all {
		for _, queue := range queues {
			result.Results = append(result.Results, w.Detach(ctx, queue, checks, hold)...)
		}
		return nil
	}
	return detachEverywhere(ctx, w, checks, hold, result)
}

// detachEverywhere takes checks out of every queue and sees that none names them. What
// an entry names is not served for long, so none may be left.
func detachEverywhere(ctx context.Context, w *wiring.Wirer, checks []string, hold bool, result *wiringResult) error {
	queues, err := naming(ctx, w, checks)
	if err != nil {
		return err
	}
	for i := range queues {
		for _, r := range w.Detach(ctx, queues[i].Name, checks, hold) {
			if r.Change != wiring.Unchanged || r.Problem != "" {
				result.Results = append(result.Results, r)
			}
		}
	}
	left, err := naming(ctx, w, checks)
	if result.failed() {
		return nil // that is told, and the time may be up
	}
	for i := range left {
		for _, check := range checks {
			if command := wiring.RemovalCommand(&left[i], check); command != "" && !w.DryRun {
				result.Results = append(result.Results, wiring.Result{Queue: left[i].Name, Check: check, Change: wiring.Unchanged,
					Problem: fmt.Sprintf("it is there again, managed by %s; take it out there, then: %s", strings.Join(wiring.Managers(&left[i], check), ", "), command)})
			}
		}
	}
	return err
}

// naming are the queues that name one of the checks.
func naming(ctx context.Context, w *wiring.Wirer, checks []string) ([]kueue.ClusterQueue, error) {
	list, err := w.Queues(ctx, labels.Everything())
	return slices.DeleteFunc(list, func(cq kueue.ClusterQueue) bool {
		return !slices.ContainsFunc(wiring.Entries(&cq), func(e kueue.AdmissionCheckStrategyRule) bool { return slices.Contains(checks, string(e.Name)) })
	}), err
}
