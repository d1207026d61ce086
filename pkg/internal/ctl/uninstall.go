package ctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// What is done with queues that name a check which is about to go.
const (
	policyHold   = "HoldAndDetach"
	policyDetach = "Detach"
	policyRefuse = "Refuse"
)

// uninstallFlags are those of prepare-uninstall.
type uninstallFlags struct {
	policy        string
	checks, gates []string
	releaseText   string
	release       types.NamespacedName
	timeout       time.Duration
	dryRun        bool
}

func (c *cli) prepareUninstallCommand() *cobra.Command {
	f := &uninstallFlags{}
	cmd := &cobra.Command{
		Use:   "prepare-uninstall --check CHECK…",
		Short: "Take checks out of every queue before they are deleted",
		Long: `Take checks out of every ClusterQueue before they are deleted, whoever put them
there. Kueue does not notice that a check is being deleted: jobs would reserve quota
and wait for ever. What happens to the jobs of the queues is the policy:

  HoldAndDetach  each queue is stopped (stopPolicy Hold) and left so: jobs that run
                 go on, none starts ungated; how to open it again is told
  Detach         jobs that wait for the check start at once, ungated
  Refuse         fails while a queue names a check, and changes nothing

The chart runs it before it is uninstalled. It may be repeated, and what is not
there, of Kueue or of the gate, is no failure.`,
		Example: `  dispatchctl prepare-uninstall --check policy
  dispatchctl prepare-uninstall --policy Refuse --check policy
  dispatchctl prepare-uninstall --check policy --gate policy --release dispatch-system/gate`,
		Args: noArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			return c.prepareUninstall(ctx, f)
		}),
	}
	c.addAccess(cmd, false)
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", policyHold, "what to do with queues that name a check: HoldAndDetach, Detach or Refuse")
	flags.StringSliceVar(&f.checks, "check", nil, "`name` of an AdmissionCheck that is to go, repeatable")
	flags.StringSliceVar(&f.gates, "gate", nil, "`name` of an AdmissionGate to delete afterwards, repeatable")
	flags.StringVar(&f.releaseText, "release", "", "`NAMESPACE/NAME` of the Helm release; AdmissionGates that it did not make are left")
	flags.DurationVar(&f.timeout, "timeout", 3*time.Minute, "how long to take at most; less than Helm's, which is 5m")
	flags.BoolVar(&f.dryRun, "dry-run", false, "have the API server check the writes, and carry out none")
	c.addOutput(cmd, formatText)
	return cmd
}

// parse checks the flags.
func (f *uninstallFlags) parse() (err error) {
	policies := []string{policyHold, policyDetach, policyRefuse}
	switch {
	case !slices.Contains(policies, f.policy):
		return usagef("--policy %q: must be %s", f.policy, orList(policies))
	case len(f.checks)+len(f.gates) == 0:
		return usagef("nothing is named: give --check or --gate")
	}
	f.release, err = parseName("--release", f.releaseText)
	return err
}

// uninstallResult is what prepare-uninstall did.
type uninstallResult struct {
	wiringResult

	Policy string `json:"policy"`
	// Gates are the AdmissionGates that were to be deleted.
	Gates []gateResult `json:"gates,omitempty"`
}

// gateResult is what came of deleting a gate.
type gateResult struct {
	Gate    string `json:"gate"`
	Deleted bool   `json:"deleted"`
	// Note is why not.
	Note string `json:"note,omitempty"`
}

func (c *cli) prepareUninstall(ctx context.Context, f *uninstallFlags) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	api, w, err := c.wirer(&queueFlags{dryRun: f.dryRun})
	if err != nil {
		return err
	}
	result := uninstallResult{Policy: f.policy, wiringResult: wiringResult{DryRun: f.dryRun, Results: []wiring.Result{}}}
	err = c.freeQueues(ctx, api, w, f, &result.wiringResult)
	if nothingServed(err) {
		c.note("the cluster does not serve Kueue's API, so no queue names a check")
		err = nil
	}
	if err != nil {
		return err
	}
	if !result.failed() {
		if result.Gates, err = api.deleteGates(ctx, f); err != nil {
			return err
		}
	}
	if err := c.print(result, result.text); err != nil {
		return err
	}
	if !result.failed() {
		return nil
	}
	if f.policy != policyRefuse && !f.dryRun {
		c.note("the annotation %s keeps the checks out of queues, until dispatchctl queues attach puts one back", v1alpha1.KeepDetachedAnnotation)
	}
	return ErrTold
}

// freeQueues takes the checks out of every queue, as the policy says.
func (c *cli) freeQueues(ctx context.Context, api *cluster, w *wiring.Wirer, f *uninstallFlags, result *wiringResult) error {
	checks, err := c.checksThatGo(ctx, api, f)
	if err != nil || len(checks) == 0 {
		return err
	}
	if f.policy == policyRefuse {
		return refuse(ctx, w, checks, result)
	}
	for _, check := range checks {
		if err := w.KeepDetached(ctx, check, v1alpha1.KeepAllDetached); err != nil {
			return err
		}
	}
	if err := detachEverywhere(ctx, w, checks, f.policy == policyHold, result); err != nil || result.failed() {
		return err
	}
	return c.letGo(ctx, w, checks)
}

// checksThatGo are the checks named but for those of another controller, which no
// release of ours takes with it. One that does not exist may have left its entry.
func (c *cli) checksThatGo(ctx context.Context, api *cluster, f *uninstallFlags) ([]string, error) {
	var checks []string
	for _, name := range f.checks {
		var check kueue.AdmissionCheck
		err := api.client.Get(ctx, client.ObjectKey{Name: name}, &check)
		switch {
		case apierrors.IsNotFound(err):
			c.note("there is no AdmissionCheck %q", name)
		case err != nil:
			return nil, err
		case check.Spec.ControllerName != v1alpha1.ControllerName:
			c.note("AdmissionCheck %q is served by %s, not by the gate, so it is left alone", name, check.Spec.ControllerName)
			continue
		case f.release.Name != "" && !released(&check, f.release):
			return nil, fmt.Errorf("AdmissionCheck %q was not made by the release %s of Helm, so this is no uninstall of it and nothing was changed; "+
				"if manifests of `helm template` were applied, make them with --no-hooks; to go on all the same, leave --release out", name, f.release)
		}
		checks = append(checks, name)
	}
	return checks, nil
}

// released tells whether a release made a check: Helm notes it, and Argo CD, which has
// its own way of running hooks, notes its own. What was applied by hand has neither, and
// then a hook that was applied with it must not act.
func released(check *kueue.AdmissionCheck, release types.NamespacedName) bool {
	notes := check.Annotations
	if _, argo := notes["argocd.argoproj.io/tracking-id"]; argo {
		return true
	}
	return notes["meta.helm.sh/release-name"] == release.Name && notes["meta.helm.sh/release-namespace"] == release.Namespace
}

// refuse finds the queues that name a check.
func refuse(ctx context.Context, w *wiring.Wirer, checks []string, result *wiringResult) error {
	queues, err := naming(ctx, w, checks)
	if err != nil {
		return err
	}
	for i := range queues {
		for _, check := range checks {
			if wiring.RemovalCommand(&queues[i], check) == "" {
				continue
			}
			result.Results = append(result.Results, wiring.Result{Queue: queues[i].Name, Check: check, Change: wiring.Unchanged,
				Problem: fmt.Sprintf("the queue names the check, managed by %s; first: dispatchctl queues detach %s --check %s --hold-first",
					strings.Join(wiring.Managers(&queues[i], check), ", "), queues[i].Name, check)})
		}
	}
	return nil
}

// deleteGates deletes the gates that are named. Helm does not delete what its hooks
// have made.
func (c *cluster) deleteGates(ctx context.Context, f *uninstallFlags) ([]gateResult, error) {
	api := c.client
	if f.dryRun {
		api = client.NewDryRunClient(api)
	}
	var results []gateResult
	for _, name := range f.gates {
		r := gateResult{Gate: name}
		var g v1alpha1.AdmissionGate
		err := api.Get(ctx, client.ObjectKey{Name: name}, &g)
		if err == nil {
			if r.Note = foreign(&g, f.release); r.Note != "" {
				results = append(results, r)
				continue
			}
			err = api.Delete(ctx, &g, client.Preconditions{UID: &g.UID, ResourceVersion: &g.ResourceVersion})
		}
		switch {
		case apierrors.IsNotFound(err):
			r.Note = "it does not exist"
		case nothingServed(err):
			r.Note = "the cluster does not serve AdmissionGates"
		case err != nil:
			return results, fmt.Errorf("deleting AdmissionGate %q: %w", name, err)
		default:
			r.Deleted = true
		}
		results = append(results, r)
	}
	return results, nil
}

// foreign says why a gate is not one that a release made; empty if it is. Without a
// release every gate is.
func foreign(g *v1alpha1.AdmissionGate, release types.NamespacedName) string {
	namespace, noted := g.Annotations["meta.helm.sh/release-namespace"]
	switch {
	case release.Name == "":
		return ""
	case g.Labels["app.kubernetes.io/managed-by"] != "Helm", g.Labels["app.kubernetes.io/instance"] != release.Name:
		return "left: the release " + release.String() + " did not make it"
	case noted && namespace != release.Namespace:
		return "left: a release of the namespace " + namespace + " made it"
	}
	return ""
}

func (r *uninstallResult) text(w io.Writer) {
	r.wiringResult.text(w)
	for _, g := range r.Gates {
		switch {
		case g.Note != "":
			fmt.Fprintf(w, "AdmissionGate %s: %s\n", g.Gate, g.Note)
		case r.DryRun:
			fmt.Fprintf(w, "AdmissionGate %s: deleted (dry run)\n", g.Gate)
		default:
			fmt.Fprintf(w, "AdmissionGate %s: deleted\n", g.Gate)
		}
	}
}
