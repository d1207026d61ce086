// Package lifecycle tests the chart as operators use it: Helm 3 and Helm 4 install,
// upgrade, roll back and remove it on a real control plane, with jobs waiting and
// running. The pods of the chart, its hooks' too, run as processes under their own
// ServiceAccounts.
package lifecycle

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// world is what all tests share.
type world struct {
	cluster *cluster.Cluster
	// admin is the administrator's client.
	admin client.WithWatch
	// programs is the directory of our programs, helm4 the path of Helm 4.
	programs, helm4 string
}

// shared is set by TestMain.
var shared world

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard()) // of the administrator's client
	if testing.Short() {
		fmt.Println("lifecycle tests need a cluster; -short leaves them out")
		os.Exit(0)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) (code int) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "dispatch-lifecycle-")
	if err == nil {
		err = shared.setUp(ctx, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if code == 0 {
			_ = os.RemoveAll(dir)
		} else {
			fmt.Fprintln(os.Stderr, "logs of the components and of the pods are kept in", dir)
		}
	}()
	code = m.Run()
	if err := errors.Join(shared.cluster.Err(), shared.cluster.Stop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// setUp builds the programs and brings the cluster up.
func (w *world) setUp(ctx context.Context, dir string) (err error) {
	w.programs, w.helm4 = filepath.Join(dir, "programs"), filepath.Join(dir, "helm4")
	if err := errors.Join(
		harness.GoBuild(ctx, harness.Root(), w.programs+"/", "./cmd/..."),
		harness.GoBuild(ctx, filepath.Join(harness.Root(), "test", "chart", "helm4"), w.helm4, "helm.sh/helm/v4/cmd/helm"),
	); err != nil {
		return err
	}
	w.cluster, err = cluster.Start(ctx, cluster.Config{
		Dir:      filepath.Join(dir, "cluster"),
		Progress: os.Stderr,
		Programs: map[string]string{"dispatch-admission": w.programs},
	})
	if err != nil {
		return err
	}
	if w.admin, err = harness.NewClient(w.cluster.Kubeconfig()); err != nil {
		return err
	}
	return errors.Join(w.cluster.Apply(ctx, fixtures), w.applyCRDs(ctx))
}

// applyCRDs applies the CustomResourceDefinitions of the chart, as an administrator
// does who sets crds.enabled to false.
func (w *world) applyCRDs(ctx context.Context) error {
	if _, err := w.cluster.Kubectl(ctx, "apply", "--server-side", "-f", filepath.Join(chart(), "files", "crds")); err != nil {
		return err
	}
	_, err := w.cluster.Kubectl(ctx, "wait", "--for=condition=Established", "crd/admissiongates.dispatch.phpboyscout.uk", "--timeout=30s")
	return err
}

// chart is the directory of the chart.
func chart() string { return filepath.Join(harness.Root(), "charts", "dispatch-admission") }

// fixtures are what every test builds on.
var fixtures = `
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
` + cluster.TrainingRuntime("two-nodes", 2, "{}")
