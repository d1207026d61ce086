package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/isolation"
)

const programPods = `apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: lab}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: lab}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: lab}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {kind: ServiceAccount, name: reader, namespace: lab}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: lab}
data: {key: one}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: lab}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 65532}
      containers:
      - name: web
        image: registry.example.com:5000/org/testprogram:v1
        args: [-about, "-serve=:8080"]
        env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: EXPANDED, value: at-$(POD_IP)}
        ports: [{name: http, containerPort: 8080}]
        startupProbe: {tcpSocket: {port: 8080}}
        readinessProbe: {httpGet: {path: /ok, port: http}}
        livenessProbe: {httpGet: {path: /ok, port: http}}
        volumeMounts: [{name: settings, mountPath: /etc/settings}]
      volumes:
      - {name: settings, configMap: {name: settings}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: ends, namespace: lab}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: c, image: testprogram, command: [testprogram, -about]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: fails, namespace: lab}
spec:
  backoffLimit: 1
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: c, image: testprogram, args: [-exit=3], terminationMessagePolicy: FallbackToLogsOnError}
---
apiVersion: batch/v1
kind: Job
metadata: {name: rights, namespace: lab}
spec:
  template:
    spec:
      serviceAccountName: reader
      restartPolicy: Never
      containers:
      - {name: allowed, image: testprogram, args: [-get=/api/v1/namespaces/lab/configmaps]}
      - {name: forbidden, image: testprogram, args: [-get=/api/v1/namespaces/lab/secrets]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: shared, namespace: lab}
spec:
  template:
    spec:
      restartPolicy: Never
      initContainers:
      - {name: first, image: testprogram, args: [-write=/here/a=1], volumeMounts: [{name: dir, mountPath: /here}]}
      - name: side
        image: testprogram
        restartPolicy: Always
        args: [-await=/there/a=1, -write=/there/b=2, "-serve=:9090"]
        ports: [{containerPort: 9090}]
        startupProbe: {exec: {command: [testprogram, -await=/there/b=2]}, timeoutSeconds: 10}
        volumeMounts: [{name: dir, mountPath: /there}]
      containers:
      - {name: main, image: testprogram, args: [-await=/here/b=2], volumeMounts: [{name: dir, mountPath: /here}]}
      volumes:
      - {name: dir, emptyDir: {}}
---
apiVersion: v1
kind: Pod
metadata: {name: polite, namespace: lab}
spec:
  containers:
  - {name: c, image: testprogram, args: ["-serve=:8080", -linger=1s], ports: [{containerPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stubborn, namespace: lab}
spec:
  terminationGracePeriodSeconds: 3
  containers:
  - {name: c, image: testprogram, args: ["-serve=:8080", -linger=1h], ports: [{containerPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unhealthy, namespace: lab}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: c
    image: testprogram
    args: ["-serve=:8080"]
    ports: [{containerPort: 8080}]
    livenessProbe: {tcpSocket: {port: 1}, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: missing, namespace: lab}
spec:
  containers:
  - {name: c, image: testprogram, command: [nothing]}
---
apiVersion: v1
kind: Pod
metadata: {name: refused, namespace: lab}
spec:
  securityContext: {runAsNonRoot: true}
  containers:
  - {name: c, image: testprogram}
---
apiVersion: v1
kind: Pod
metadata: {name: simulated, namespace: lab}
spec:
  containers:
  - {name: c, image: example.com/other}
  - {name: d, image: testprogram}
`

// TestProgramPods runs pods whose containers are processes of this machine.
func TestProgramPods(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a real cluster")
	}
	if err := isolation.Check(); err != nil {
		t.Skip(err)
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./internal/testprogram")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test program: %v\n%s", err, out)
	}
	c, err := Start(t.Context(), Config{
		Dir: t.TempDir(), Progress: testWriter{t, 0}, Programs: map[string]string{"testprogram": bin},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checkPodsStop(t, c) })
	apply(t, c, programPods)
	t.Run("a Deployment becomes ready", func(t *testing.T) { runDeployment(t, c) })
	t.Run("Jobs end as their programs do", func(t *testing.T) { runJobs(t, c) })
	t.Run("a pod has the rights of its account", func(t *testing.T) { useRights(t, c) })
	t.Run("sidecars share volumes and end last", func(t *testing.T) { runSidecar(t, c) })
	t.Run("what cannot start says why", func(t *testing.T) { explainStarts(t, c) })
	t.Run("a failed probe restarts", func(t *testing.T) {
		eventually(t, "a restart", func() bool {
			p := getPod(t, c, "unhealthy")
			return p.container(t).RestartCount > 0 && p.container(t).LastState.Terminated != nil
		})
	})
	t.Run("other images stay with kwok", func(t *testing.T) {
		eventually(t, "a pod that only seems to run", func() bool { return getPod(t, c, "simulated").Status.Phase == "Running" })
		if _, err := c.PodLogs("lab", "simulated", "d"); err == nil {
			t.Error("a program of it was run")
		}
	})
	t.Run("deletion waits for the programs", func(t *testing.T) { deletePods(t, c) })
	t.Run("a changed ConfigMap reaches the files", func(t *testing.T) { changeSettings(t, c) })
	t.Run("a restart of the API server is survived", func(t *testing.T) {
		if err := c.Kill(APIServer); err != nil {
			t.Fatal(err)
		}
		if err := c.StartComponent(t.Context(), APIServer); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a Deployment is rolled", func(t *testing.T) { rollDeployment(t, c) })
	t.Run("a restart of the runner restarts programs", func(t *testing.T) { restartRunner(t, c) })
	t.Run("only accounts of pods are in the audit log", func(t *testing.T) {
		log, err := os.ReadFile(c.AuditLog())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(log), "system:serviceaccount:lab:reader") || strings.Contains(string(log), `"username":"`+podRunnerUser) {
			t.Error("want requests of lab:reader and none of the pod runner")
		}
	})
}

// pod is what of a pod is looked at.
type pod struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Phase             string            `json:"phase"`
		PodIP             string            `json:"podIP"`
		ContainerStatuses []containerStatus `json:"containerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	RestartCount int
	Ready        bool
	State        containerState
	LastState    containerState
}

type containerState struct {
	Waiting    *struct{ Reason, Message string }
	Terminated *struct {
		ExitCode                    int
		Reason, Message, FinishedAt string
	}
}

func (p pod) container(t *testing.T) containerStatus {
	t.Helper()
	if len(p.Status.ContainerStatuses) == 0 {
		return containerStatus{}
	}
	return p.Status.ContainerStatuses[0]
}

func getPod(t *testing.T, c *Cluster, name string) pod {
	t.Helper()
	var p pod
	if err := json.Unmarshal([]byte(kubectl(t, c, "get", "pod", "-n", "lab", name, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func listPods(t *testing.T, c *Cluster, selector string) []pod {
	t.Helper()
	var list struct{ Items []pod }
	if err := json.Unmarshal([]byte(kubectl(t, c, "get", "pods", "-n", "lab", "-l", selector, "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func podLog(t *testing.T, c *Cluster, name, container string) string {
	t.Helper()
	text, err := c.PodLogs("lab", name, container)
	if err != nil {
		t.Error(err)
	}
	return text
}

func runDeployment(t *testing.T, c *Cluster) {
	waitFor(t, c, "deployment/web", "condition=Available")
	addresses := map[string]bool{}
	for _, p := range listPods(t, c, "app=web") {
		addresses[p.Status.PodIP] = true
		host := p.Metadata.Name
		if os.Geteuid() != 0 {
			host, _ = os.Hostname() // only root gives processes another
		}
		want := fmt.Sprintf("host=%s uid=65532 ip=%s expanded=at-%[2]s\nserving at %[2]s:8080\n", host, p.Status.PodIP)
		if got := podLog(t, c, p.Metadata.Name, "web"); got != want {
			t.Errorf("log %q, want %q", got, want)
		}
	}
	if len(addresses) != 2 {
		t.Errorf("addresses %v, want two", addresses)
	}
}

func runJobs(t *testing.T, c *Cluster) {
	waitFor(t, c, "job/ends", "condition=Complete")
	if p := listPods(t, c, "job-name=ends"); len(p) != 1 || p[0].Status.Phase != "Succeeded" ||
		p[0].container(t).State.Terminated.Reason != "Completed" {
		t.Errorf("pods of the Job that ends: %+v", p)
	}
	waitFor(t, c, "job/fails", "condition=Failed")
	failed := listPods(t, c, "job-name=fails")
	if len(failed) != 2 { // a backoffLimit of 1
		t.Errorf("%d pods failed, want 2", len(failed))
	}
	for _, p := range failed {
		end := p.container(t).State.Terminated
		if p.Status.Phase != "Failed" || end == nil || end.ExitCode != 3 || end.Reason != "Error" ||
			end.Message != "exiting with 3 as asked\n" || end.FinishedAt == "" {
			t.Errorf("%s: %s, %+v", p.Metadata.Name, p.Status.Phase, end)
		}
	}
}

func useRights(t *testing.T, c *Cluster) {
	waitFor(t, c, "job/rights", "condition=Complete")
	name := listPods(t, c, "job-name=rights")[0].Metadata.Name
	for container, want := range map[string]string{
		"allowed": "/api/v1/namespaces/lab/configmaps 200\n", "forbidden": "/api/v1/namespaces/lab/secrets 403\n",
	} {
		if got := podLog(t, c, name, container); got != want {
			t.Errorf("%s: %q, want %q", container, got, want)
		}
	}
}

func runSidecar(t *testing.T, c *Cluster) {
	waitFor(t, c, "job/shared", "condition=Complete")
	p := listPods(t, c, "job-name=shared")[0]
	if p.Status.Phase != "Succeeded" {
		t.Errorf("phase %s, want Succeeded", p.Status.Phase)
	}
	if got := podLog(t, c, p.Metadata.Name, "side"); !strings.HasSuffix(got, "asked to end\n") {
		t.Errorf("the sidecar's log is %q: it was not asked to end", got)
	}
}

func explainStarts(t *testing.T, c *Cluster) {
	for name, want := range map[string]struct{ reason, message string }{
		"missing": {"CreateContainerError", `"nothing": no such program in the image, which has testprogram`},
		"refused": {"CreateContainerConfigError", "container has runAsNonRoot and image will run as root"},
	} {
		eventually(t, want.reason+" of "+name, func() bool {
			p := getPod(t, c, name)
			w := p.container(t).State.Waiting
			return p.Status.Phase == "Pending" && w != nil && w.Reason == want.reason && strings.Contains(w.Message, want.message)
		})
	}
}

func deletePods(t *testing.T, c *Cluster) {
	for name, want := range map[string]struct{ atLeast, atMost time.Duration }{
		"polite":   {time.Second, 10 * time.Second},
		"stubborn": {3 * time.Second, 12 * time.Second},
	} {
		waitFor(t, c, "pod/"+name, "condition=Ready")
		begin := time.Now()
		kubectl(t, c, "delete", "pod", "-n", "lab", name)
		if took := time.Since(begin); took < want.atLeast || took > want.atMost {
			t.Errorf("%s is gone after %s, want %s to %s", name, took, want.atLeast, want.atMost)
		}
		if got := podLog(t, c, name, "c"); !strings.HasSuffix(got, "asked to end\n") {
			t.Errorf("log of %s is %q: it was not asked to end", name, got)
		}
	}
}

func changeSettings(t *testing.T, c *Cluster) {
	p := listPods(t, c, "app=web")[0]
	serves := func(want string) func() bool {
		return func() bool { return fetch(t, p.Status.PodIP, "/files/etc/settings/key") == want }
	}
	eventually(t, "the first value", serves("one"))
	kubectl(t, c, "patch", "configmap", "-n", "lab", "settings", "-p", `{"data":{"key":"two"}}`)
	eventually(t, "the second value", serves("two"))
}

func fetch(t *testing.T, host, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(host, "8080")+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rollDeployment(t *testing.T, c *Cluster) {
	before := map[string]bool{}
	for _, p := range listPods(t, c, "app=web") {
		before[p.Metadata.Name] = true
	}
	kubectl(t, c, "set", "env", "-n", "lab", "deployment/web", "GENERATION=2")
	kubectl(t, c, "rollout", "status", "-n", "lab", "deployment/web", "--timeout=60s")
	eventually(t, "only new pods", func() bool {
		pods := listPods(t, c, "app=web")
		for _, p := range pods {
			if before[p.Metadata.Name] {
				return false
			}
		}
		return len(pods) == 2
	})
	for name := range before {
		if got := podLog(t, c, name, "web"); !strings.HasSuffix(got, "asked to end\n") {
			t.Errorf("log of %s is %q: it was not asked to end", name, got)
		}
	}
}

func restartRunner(t *testing.T, c *Cluster) {
	if err := c.Kill(PodRunner); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the programs' end with the runner that started them", func() bool { return len(processesIn(t, c.Dir())) == 0 })
	if err := c.StartComponent(t.Context(), PodRunner); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two restarted pods", func() bool {
		restarted := 0
		for _, p := range listPods(t, c, "app=web") {
			if s := p.container(t); s.RestartCount == 1 && s.Ready && s.LastState.Terminated != nil && s.LastState.Terminated.ExitCode == 137 {
				restarted++
			}
		}
		return restarted == 2
	})
}

// checkPodsStop stops the cluster and checks that no program of a pod is left.
func checkPodsStop(t *testing.T, c *Cluster) {
	if len(processesIn(t, c.Dir())) == 0 {
		t.Error("no program runs: that none is left would prove nothing")
	}
	if err := c.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if left := processesIn(t, c.Dir()); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// processesIn lists the processes whose root is below dir.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/root")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		if root, err := os.Readlink(link); err == nil && strings.HasPrefix(root, dir+"/") {
			found = append(found, link)
		}
	}
	return found
}
