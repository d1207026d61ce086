// Package e2e runs the chart, with its default values, and training jobs as real
// containers on a real node. What can be seen without them is tested in the packages
// beside and above it.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

const (
	// tag is that of the image of the product that is tested.
	tag = "e2e"
	// trainImage is what training containers run.
	trainImage = "docker.io/library/train:e2e"
)

// on says which cluster the tests run on.
var on = flag.String("provider", "local", "cluster to run on: local, which takes root, or kind, which takes docker, podman or nerdctl")

// world is what all tests share.
type world struct {
	provider
	tools  *cluster.Toolbox
	client cluster.Kubectl
	admin  client.WithWatch
	// missing is why there is no cluster, if the machine cannot have one.
	missing error
}

// shared is set by TestMain.
var shared world

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard()) // of the administrator's client
	os.Exit(runTests(m))
}

func runTests(m *testing.M) (code int) {
	begin, ok := providers[*on]
	if !ok {
		fmt.Fprintf(os.Stderr, "e2e: -provider=%s: want local or kind\n", *on)
		return 1
	}
	err := begin.check()
	if err != nil && !asked("provider") {
		shared.missing = err
		return m.Run()
	}
	var dir string
	if err == nil {
		dir, err = os.MkdirTemp("", "dispatch-e2e-")
	}
	if err == nil {
		err = shared.setUp(context.Background(), dir, begin.start)
	}
	if err == nil {
		code = m.Run()
	}
	if shared.provider != nil {
		err = errors.Join(err, shared.Stop(err != nil || code != 0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	if code == 0 {
		_ = os.RemoveAll(dir)
	} else if dir != "" {
		fmt.Fprintln(os.Stderr, "e2e: what there is of logs is kept in", dir)
	}
	return code
}

// asked tells whether a flag was given.
func asked(name string) (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// setUp builds the images and brings a cluster up that has them. One after the
// other: a linker beside it takes the API server the time that its clients give it.
func (w *world) setUp(ctx context.Context, dir string, start func(context.Context, string) (provider, error)) (err error) {
	if w.tools, err = cluster.Build(ctx, os.Stderr); err != nil {
		return err
	}
	if err := buildImages(ctx, dir); err != nil {
		return err
	}
	if w.provider, err = start(ctx, dir); err != nil {
		return err
	}
	if w.admin, err = harness.NewClient(w.Kubeconfig()); err != nil {
		return err
	}
	w.client = cluster.Kubectl{Program: w.tools.Bin("kubectl"), Kubeconfig: w.Kubeconfig(), Cache: filepath.Join(dir, "kubectl-cache")}
	if _, err := w.client.Run(ctx, "wait", "--for=condition=Ready", "node", "--all", "--timeout=60s"); err != nil {
		return err
	}
	if err := w.installManagers(ctx, dir); err != nil {
		return err
	}
	return errors.Join(
		w.LoadImage(ctx, filepath.Join(dir, "dispatch-admission-image.tar")),
		w.LoadImage(ctx, filepath.Join(dir, "train.tar")),
		w.client.Apply(ctx, fixtures),
	)
}

// buildImages builds the image of the product as a release does, and that of the
// training containers.
func buildImages(ctx context.Context, dir string) error {
	train := filepath.Join(dir, "train")
	if err := errors.Join(
		goRun(ctx, "release", "run", "./cmd/release", "image", "-root", harness.Root(), "-out", dir, "-image", "dispatch-admission", "-tag", tag,
			"-platforms", "linux/"+runtime.GOARCH, "-version", "0.0.0-e2e", "-revision", "tested", "-created", "1"),
		goRun(ctx, "integration", "build", "-o", train, "./e2e/testdata/train"),
	); err != nil {
		return err
	}
	return cluster.WriteImage(train+".tar", trainImage, train)
}

// goRun runs the go command in one of the modules below test.
func goRun(ctx context.Context, module string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = filepath.Join(harness.Root(), "test", module), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s in %s: %w: %s", args[0], module, err, out)
	}
	return nil
}

// fixtures are what every test builds on: a namespace for the release, priorities,
// and queues with quota for so many pods of a TrainJob.
var fixtures = `
apiVersion: v1
kind: Namespace
metadata: {name: dispatch-system, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: low}
value: 1
` + queue("training", 20) + queue("fenced", 2) + queue("unfenced", 2) +
	trainingRuntime("short", 1, "-work=1s") +
	trainingRuntime("long", 1, "-work=1h") +
	trainingRuntime("needs-two", 1, "-work=1s", "-first=1h") +
	trainingRuntime("slow-to-end", 2, "-work=1s", "-first=1h", "-linger=5m")

// queue is a ClusterQueue with quota for so many pods, and the LocalQueue lq in a
// namespace of its own.
func queue(name string, pods int) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: %[1]s}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: default, resources: [{name: cpu, nominalQuota: %[2]dm}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: %[1]s}
spec: {clusterQueue: %[1]s}
`, name, 10*pods)
}

// trainingRuntime is a ClusterTrainingRuntime of so many pods that run train.
func trainingRuntime(name string, nodes int, args ...string) string {
	return fmt.Sprintf(`---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: %s}
spec:
  mlPolicy: {numNodes: %d}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            template:
              spec:
                terminationGracePeriodSeconds: 400
                containers:
                - name: node
                  image: %s
                  imagePullPolicy: Never
                  args: [%s]
                  env: [{name: ADMISSION_COUNT, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['dispatch.phpboyscout.uk/admission-count']"}}}]
                  resources: {requests: {cpu: 10m}}
`, name, nodes, trainImage, quoted(args))
}
