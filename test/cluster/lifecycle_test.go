package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

const queue = `apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - {name: any, resources: [{name: cpu, nominalQuota: "8"}, {name: memory, nominalQuota: 32Gi}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: lab}
spec: {clusterQueue: all}
`

const shortJob = `apiVersion: batch/v1
kind: Job
metadata: {name: short, namespace: lab, labels: {kueue.x-k8s.io/queue-name: lq}}
spec:
  suspend: true
  template:
    metadata: {annotations: {cluster.test/complete-after: 1s}}
    spec:
      restartPolicy: Never
      containers: [{name: c, image: example.com/none, resources: {requests: {cpu: "1"}}}]
`

const trainJob = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: plain}
spec:
  mlPolicy: {numNodes: 1}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            template:
              spec:
                containers: [{name: node, image: example.com/none, resources: {requests: {cpu: "1", memory: 1Gi}}}]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: long, namespace: lab, labels: {kueue.x-k8s.io/queue-name: lq}}
spec:
  runtimeRef: {name: plain}
  trainer: {numNodes: 2}
`

// TestClusterLifecycle starts two clusters side by side, lets Kueue admit a Job
// in one and a TrainJob in the other, restarts and loses components, and checks
// that nothing is left.
func TestClusterLifecycle(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes two real clusters")
	}
	ctx := t.Context()
	clusters := make([]*Cluster, 2)
	start := func(i int) func(context.Context) error {
		return func(ctx context.Context) error {
			c, err := Start(ctx, Config{Dir: t.TempDir(), Progress: testWriter{t, i}})
			clusters[i] = c
			return err
		}
	}
	err := firstError(ctx, start(0), start(1))
	for _, c := range clusters {
		if c != nil {
			t.Cleanup(func() { checkStop(t, c) })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	first, second := clusters[0], clusters[1]
	t.Run("a Job runs to its end", func(t *testing.T) {
		apply(t, first, queue, shortJob)
		waitFor(t, first, "job/short", "condition=Complete")
		checkAudit(t, first)
	})
	t.Run("a TrainJob's pods run", func(t *testing.T) {
		apply(t, second, queue, trainJob)
		eventually(t, "two running pods", func() bool {
			out := kubectl(t, second, "get", "pods", "-n", "lab", "--field-selector=status.phase=Running", "-o", "name")
			return strings.Count(out, "\n") == 2
		})
	})
	t.Run("components restart", func(t *testing.T) { restartComponents(t, second) })
	t.Run("a component fails to start", func(t *testing.T) { breakKueue(t, second) })
	t.Run("a ServiceAccount has its rights only", func(t *testing.T) { actAsServiceAccount(t, first) })
	t.Run("a lost component is told", func(t *testing.T) { loseComponent(t, first) })
}

// TestTakenPortIsReplaced takes etcd's port in the moment before etcd listens.
func TestTakenPortIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes the built programs")
	}
	tools, err := Build(t.Context(), testWriter{t, 0})
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(t.Context(), Config{Dir: t.TempDir(), Progress: testWriter{t, 0}}, tools, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	taken, args := "", c.comps[Etcd].args
	c.comps[Etcd].args = func() []string {
		if taken == "" {
			taken = c.ports.address(portEtcd)
			l, err := net.Listen("tcp4", taken)
			if err != nil {
				t.Errorf("take the port: %v", err)
				return args()
			}
			t.Cleanup(func() { _ = l.Close() })
		}
		return args()
	}
	if err := c.launch(t.Context(), Etcd); err != nil {
		t.Fatal(err)
	}
	if now := c.ports.address(portEtcd); now == taken {
		t.Errorf("etcd is at %s, which was taken", now)
	}
}

// restartComponents restarts what tests of faults restart, and checks that
// queues still work afterwards, with a changed configuration.
func restartComponents(t *testing.T, c *Cluster) {
	ports := c.Endpoint().URL
	if err := c.Restart(t.Context(), APIServer); err != nil {
		t.Fatal(err)
	}
	if c.Endpoint().URL != ports {
		t.Errorf("the API server moved from %s to %s", ports, c.Endpoint().URL)
	}
	if err := c.ConfigureKueue(KueueConfig{WaitForPodsReady: &WaitForPodsReady{Timeout: "7s"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(Kueue); err != nil {
		t.Fatal(err)
	}
	if err := c.StartComponent(t.Context(), Kueue); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(c.Logs(Kueue))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(log, []byte("timeout: 7s")) {
		t.Error("Kueue does not log the changed timeout")
	}
	if err := c.Signal(Etcd, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(Etcd, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	apply(t, c, shortJob)
	waitFor(t, c, "job/short", "condition=Complete")
	if err := c.Err(); err != nil {
		t.Errorf("asked-for ends count as failures: %v", err)
	}
}

// breakKueue checks that a component that does not start is named, with its log.
func breakKueue(t *testing.T, c *Cluster) {
	bad := KueueConfig{Edit: func(config map[string]any) { config["noSuchField"] = true }}
	if err := c.ConfigureKueue(bad); err != nil {
		t.Fatal(err)
	}
	err := c.Restart(t.Context(), Kueue)
	var failed *ComponentError
	if !errors.As(err, &failed) || failed.Component != Kueue || !strings.Contains(failed.Output, "noSuchField") {
		t.Errorf("Restart = %v, want an error of kueue with its complaint", err)
	}
}

// actAsServiceAccount checks that tokens are real and RBAC is on.
func actAsServiceAccount(t *testing.T, c *Cluster) {
	m := managers[Kueue]
	file, err := c.ServiceAccountKubeconfig(t.Context(), m.namespace, m.serviceAccount)
	if err != nil {
		t.Fatal(err)
	}
	if out := kubectl(t, c, "--kubeconfig", file, "auth", "whoami"); !strings.Contains(out, "kueue-controller-manager") {
		t.Errorf("whoami says %s", out)
	}
	if out, err := c.Kubectl(t.Context(), "--kubeconfig", file, "get", "secrets", "-n", "lab"); err == nil {
		t.Errorf("Kueue may read any secret: %s", out)
	}
}

func loseComponent(t *testing.T, c *Cluster) {
	if err := c.Err(); err != nil {
		t.Fatalf("broken before: %v", err)
	}
	if err := syscall.Kill(c.PIDs()[Kwok], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("nobody noticed that kwok is gone")
	}
	var lost *ComponentError
	if err := c.Err(); !errors.As(err, &lost) || lost.Component != Kwok || lost.Output == "" {
		t.Errorf("Err = %v, want one of kwok with the end of its log", err)
	}
}

// checkAudit checks that the log tells who did what to which Workload.
func checkAudit(t *testing.T, c *Cluster) {
	data, err := os.ReadFile(c.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	bodies := 0
	for line := range bytes.Lines(data) {
		var event struct {
			User          struct{ Username string }
			ObjectRef     struct{ Resource string }
			RequestObject json.RawMessage
		}
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("audit line %q: %v", line, err)
		}
		if strings.HasSuffix(event.User.Username, ":kueue-controller-manager") &&
			event.ObjectRef.Resource == "workloads" && event.RequestObject != nil {
			bodies++
		}
	}
	if bodies == 0 {
		t.Error("no write of a Workload by Kueue, with its body, is in the audit log")
	}
}

// checkStop stops the cluster and checks that none of its processes is left.
func checkStop(t *testing.T, c *Cluster) {
	procs := c.processes()
	begin := time.Now()
	if err := c.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	t.Logf("stopped in %s", time.Since(begin).Round(time.Millisecond))
	for name, p := range procs {
		if p.Alive() {
			t.Errorf("%s is left with pid %d", name, p.PID)
		}
	}
	if len(procs) != len(c.comps) {
		t.Errorf("%d processes, want %d", len(procs), len(c.comps))
	}
}

func apply(t *testing.T, c *Cluster, manifests ...string) {
	t.Helper()
	if err := c.Apply(t.Context(), strings.Join(manifests, "---\n")); err != nil {
		t.Fatal(err)
	}
}

func kubectl(t *testing.T, c *Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func waitFor(t *testing.T, c *Cluster, what, condition string) {
	t.Helper()
	kubectl(t, c, "wait", "-n", "lab", what, "--for="+condition, "--timeout=60s")
}

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if check() {
			return
		}
	}
	t.Fatalf("never seen: %s", what)
}

// testWriter passes progress on to the test's log.
type testWriter struct {
	t *testing.T
	n int
}

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("cluster %d: %s", w.n, bytes.TrimRight(p, "\n"))
	return len(p), nil
}
