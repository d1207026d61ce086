package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const restricted = `runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}`

const container = `image: docker.io/library/app:test
        imagePullPolicy: Never
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
`

const webAndClient = `apiVersion: v1
kind: Namespace
metadata: {name: web, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: greeting, namespace: web}
data: {greeting: good morning}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      securityContext: {` + restricted + `}
      containers:
      - name: web
        ` + container + `        args: [serve, /config/greeting]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        livenessProbe: {httpGet: {path: /, port: 8080}}
        resources: {limits: {memory: 64Mi}}
        volumeMounts: [{name: config, mountPath: /config}]
      volumes: [{name: config, configMap: {name: greeting}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: client, namespace: web}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: client, namespace: web}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: client, namespace: web}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: client}
subjects: [{kind: ServiceAccount, name: client}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: web}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      serviceAccountName: client
      securityContext: {` + restricted + `}
      containers:
      - name: client
        ` + container + `        args: [serve, /etc/hostname]
`

const sayingTrainJob = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: saying}
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
                containers:
                - {name: node, image: "docker.io/library/app:test", imagePullPolicy: Never, args: [say, trained], resources: {requests: {cpu: 10m}}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: saying, namespace: lab, labels: {kueue.x-k8s.io/queue-name: lq}}
spec:
  runtimeRef: {name: saying}
`

// requireNode skips a test that this machine cannot run, and says what to do.
func requireNode(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes a real cluster")
	}
	if err := CheckNode(); err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
}

// TestNode runs real containers: what an application needs of a cluster, and a
// TrainJob that Kueue admits. It checks that the machine's own network is not
// used, and that nothing is left.
func TestNode(t *testing.T) {
	requireNode(t)
	c, err := Start(t.Context(), Config{Dir: t.TempDir(), Node: true, Progress: testWriter{t, 0}})
	if err != nil {
		t.Fatal(err)
	}
	left := remember(t, c)
	t.Cleanup(func() {
		if t.Failed() {
			showPods(t, c)
		}
		checkStop(t, c)
		left.check(t)
	})
	if err := c.LoadImage(t.Context(), appImage(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, c, queue, webAndClient, sayingTrainJob)
	for _, name := range []string{"deployment/web", "deployment/client"} {
		kubectl(t, c, "rollout", "status", "-n", "web", name, "--timeout=60s")
	}
	t.Run("a Service has a name", func(t *testing.T) {
		for _, url := range []string{"http://web", "http://web.web.svc.cluster.local"} {
			// That the pods are ready does not mean that kube-proxy has heard of it.
			eventually(t, url+" answers what the ConfigMap says", func() bool {
				out, err := c.Kubectl(t.Context(), client("get", url)...)
				return err == nil && strings.Contains(out, "good morning")
			})
		}
	})
	t.Run("a pod is its ServiceAccount", func(t *testing.T) {
		for path, want := range map[string]string{"configmaps/greeting": "200 OK", "secrets": "403 Forbidden"} {
			if out := kubectl(t, c, client("api", "/api/v1/namespaces/web/"+path)...); !strings.HasPrefix(out, want) {
				t.Errorf("%s answers %q, want %s", path, out, want)
			}
		}
	})
	t.Run("logs", func(t *testing.T) {
		if out := kubectl(t, c, "logs", "-n", "web", "deployment/web"); !strings.Contains(out, "serving /config/greeting") {
			t.Errorf("logs are %q", out)
		}
	})
	t.Run("a TrainJob trains", func(t *testing.T) {
		waitFor(t, c, "trainjob/saying", "condition=Complete")
		if out := kubectl(t, c, "logs", "-n", "lab", "-l", "jobset.sigs.k8s.io/jobset-name=saying"); strings.TrimSpace(out) != "trained" {
			t.Errorf("its container says %q, want %q", out, "trained")
		}
	})
	t.Run("the machine's network is not used", func(t *testing.T) { checkNetwork(t, c) })
}

// client are the arguments by which kubectl runs the app in the client's container.
func client(args ...string) []string {
	return append([]string{"exec", "-n", "web", "deployment/client", "--", "/app"}, args...)
}

// checkNetwork checks that nothing of the cluster is in the machine's network,
// that no interface of its own leads there, and that pods can talk without a byte
// on the machine's interfaces. Others may use those meanwhile, so one quiet
// exchange of several is enough.
func checkNetwork(t *testing.T, c *Cluster) {
	machine := networkOf(t, os.Getpid())
	for _, pid := range append(c.node.group.pids(), pidsOf(c)...) {
		if networkOf(t, pid) == machine {
			t.Errorf("process %d is in the machine's network", pid)
		}
	}
	out, err := c.node.inside.command(t.Context(), "", "ip", "-brief", "-details", "link")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		if name != "lo" && name != "node0" && name != "pods" && !strings.HasPrefix(name, "veth") {
			t.Errorf("an interface of which nobody knows where it leads: %s", line)
		}
	}
	eventually(t, "an exchange of pods that the machine's interfaces do not count", func() bool {
		before := interfaceCounters(t)
		kubectl(t, c, client("get", "http://web")...)
		return interfaceCounters(t) == before
	})
}

func pidsOf(c *Cluster) []int {
	var pids []int
	for _, pid := range c.PIDs() {
		pids = append(pids, pid)
	}
	return pids
}

func networkOf(t *testing.T, pid int) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may have ended
		t.Fatal(err)
	}
	return link
}

// interfaceCounters returns what the machine's interfaces have counted, but for
// loopback.
func interfaceCounters(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "lo:") {
			kept = append(kept, line)
		}
	}
	if len(kept) <= 2 {
		t.Log("this machine has no interface but loopback")
	}
	return strings.Join(kept, "")
}

// leftovers is what must be gone when a cluster with a node has ended.
type leftovers struct {
	node       *node
	namespaces []string
	settings   string // of the kernel
	record     string
}

func remember(t *testing.T, c *Cluster) *leftovers {
	t.Helper()
	l := &leftovers{node: c.node, settings: readKernelSettings()}
	for _, kind := range []string{"net", "mnt"} {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", c.PIDs()[Kubelet], kind))
		if err != nil {
			t.Fatal(err)
		}
		l.namespaces = append(l.namespaces, link)
	}
	records, err := recordsDir()
	if err != nil {
		t.Fatal(err)
	}
	l.record = filepath.Join(records, c.node.id+".json")
	if !isFile(l.record) {
		t.Errorf("no record of the node at %s", l.record)
	}
	return l
}

func (l *leftovers) check(t *testing.T) {
	t.Helper()
	l.node.group.walk(func(dir string) { t.Errorf("cgroup %s is left", dir) })
	if isFile(l.record) {
		t.Errorf("%s is left", l.record)
	}
	if now := readKernelSettings(); now != l.settings {
		t.Errorf("the machine's kernel settings are %s, and were %s", now, l.settings)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), l.node.dir) {
		t.Errorf("mounts are left below %s:\n%s", l.node.dir, mounts)
	}
	inside := l.inhabitants(t)
	for end := time.Now().Add(killAfter); len(inside) > 0 && time.Now().Before(end); time.Sleep(probeEvery) {
		inside = l.inhabitants(t) // a thread takes a moment to end
	}
	if len(inside) > 0 {
		t.Errorf("the cluster's namespaces are left, with %v", inside)
	}
}

// inhabitants lists the threads of the machine that are in one of the namespaces.
func (l *leftovers) inhabitants(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/*")
	if err != nil {
		t.Fatal(err)
	}
	var inside []string
	for _, path := range links {
		link, _ := os.Readlink(path) // not of a thread that has just ended
		if slices.Contains(l.namespaces, link) {
			inside = append(inside, path)
		}
	}
	return inside
}

func readKernelSettings() string {
	var all []string
	for name := range kernelSettings {
		value, _ := os.ReadFile("/proc/sys/" + name) // not on every kernel
		all = append(all, name+"="+strings.TrimSpace(string(value)))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// appImage builds the app and an image of it.
func appImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "app")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/app")
	build.Env = goEnvironment()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	path := filepath.Join(dir, "app.tar")
	if err := WriteImage(path, "docker.io/library/app:test", program); err != nil {
		t.Fatal(err)
	}
	return path
}

// showPods logs what there is to see of a failure.
func showPods(t *testing.T, c *Cluster) {
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		out, err := c.Kubectl(context.WithoutCancel(t.Context()), args...)
		t.Logf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
