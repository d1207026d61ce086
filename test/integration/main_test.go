// Package integration runs the readmission gate against a real control plane:
// API server, Kueue, Trainer and JobSet as processes on loopback, the gate as
// the program that ships, under the rights that the chart gives it.
//
// The tests read and write the cluster as its administrator and see of the gate
// what an operator sees: objects, events, log lines, exit codes and the API
// server's audit log.
package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

const (
	// release is the chart's release and namespace the one it is in; the rights
	// of the ServiceAccount are the product's.
	release   = "dispatch-admission"
	namespace = "dispatch-system"
	// podsReadyTimeout is how long Kueue waits for the pods of a start.
	podsReadyTimeout = "40s"
)

// world is what all tests share.
type world struct {
	cluster *cluster.Cluster
	// admin is the administrator's client.
	admin client.WithWatch
	// programs is where ours are.
	programs string
}

// shared is set by TestMain.
var shared world

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard()) // of the administrator's client
	if testing.Short() {
		fmt.Println("integration tests need a cluster; -short leaves them out")
		os.Exit(0)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "dispatch-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	defer func() {
		if code == 0 {
			_ = os.RemoveAll(dir)
		} else {
			fmt.Fprintln(os.Stderr, "logs of the components and of the gate are kept in", dir)
		}
	}()
	if err := shared.setUp(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return code
	}
	code = m.Run()
	if err := shared.cluster.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := shared.cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// program is the path of one of our programs.
func (w *world) program(name string) string { return filepath.Join(w.programs, name) }

// setUp builds the programs, brings the cluster up and gives the gate its
// rights. A linker beside a cluster would starve its API server.
func (w *world) setUp(ctx context.Context, dir string) (err error) {
	w.programs = filepath.Join(dir, "programs")
	if err := harness.GoBuild(ctx, harness.Root(), w.programs+"/", "./cmd/..."); err != nil {
		return err
	}
	w.cluster, err = cluster.Start(ctx, cluster.Config{
		Dir:      filepath.Join(dir, "cluster"),
		Progress: os.Stderr,
		Kueue: cluster.KueueConfig{WaitForPodsReady: &cluster.WaitForPodsReady{
			Timeout: podsReadyTimeout, BackoffBaseSeconds: 1, BackoffMaxSeconds: 1,
		}},
	})
	if err != nil {
		return err
	}
	if w.admin, err = harness.NewClient(w.cluster.Kubeconfig()); err != nil {
		return err
	}
	manifests, err := w.chart(ctx)
	if err != nil {
		return err
	}
	runtimes := twoNodes("two-nodes", cluster.RunAfter, "100ms") +
		twoNodes("never-ready", cluster.RunAfter, "1h")
	if err := errors.Join(w.cluster.Apply(ctx, fixtures+runtimes), w.cluster.Apply(ctx, manifests)); err != nil {
		return err
	}
	_, err = w.cluster.Kubectl(ctx, "wait", "--for=condition=Established", "crd/"+gateCRD, "--timeout=30s")
	return err
}

// chart renders the chart without pods, which would be fakes here, and without
// checks, which the tests make themselves.
func (w *world) chart(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, w.cluster.Bin("helm"), "template", release, filepath.Join(harness.Root(), "charts", "dispatch-admission"),
		"--namespace", namespace, "--set", "controller.replicas=0,jobs.enabled=false,test.enabled=false", "--set-json", "admissionChecks=[]",
		"--set", "hookClientCertificates={"+clientSecret+"}",
		"--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("rendering the chart: %w: %s", err, stderr.String())
	}
	return string(out), nil
}

// fixtures are what every test builds on.
const fixtures = `
apiVersion: v1
kind: Namespace
metadata: {name: dispatch-system}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: low}
value: 100
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 1000
`

// twoNodes is a runtime of two nodes, whose pods get an annotation.
func twoNodes(name, annotation, value string) string {
	return cluster.TrainingRuntime(name, 2, fmt.Sprintf("{%s: %s}", annotation, value))
}
