package integration

import (
	"context"
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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// adapterPolicy holds one job, refuses another and places the rest.
const adapterPolicy = `
policy:
  rules:
  - name: freeze
    when: request.job.name == %q
    hold: weekly freeze
  - name: too-large
    when: request.job.name == "too-large"
    refuse: lower trainer.numNodes
  - name: team
    admit:
      labels: {team: request.tenantID}
`

// clientSecret is the Secret that the chart is told to let the gate read.
const clientSecret = "hook-client"

// TestAdapter: the gate asks dispatch-hook, over its socket and over TLS with
// certificates on both sides, and what the policy file says is what happens. The
// same process answers a dispatcher at the start gate.
func TestAdapter(t *testing.T) {
	startLeading(t, run{name: "gate"})
	dir := t.TempDir()
	frozen := dispatchName()
	socket, address := filepath.Join(dir, "hook.sock"), freeAddress(t)
	ca := adapterCertificates(t, dir)
	config := fmt.Sprintf("listen:\n  unixSocket: %s\n  https: {address: %q, certFile: %s/server.crt, keyFile: %s/server.key, clientCAFile: %s/ca.crt}\nkueue: {}\n",
		socket, address, dir, dir, dir) + fmt.Sprintf(adapterPolicy, frozen)
	path := filepath.Join(dir, "config.yaml")
	write(t, path, config)
	startAdapter(t, path)

	overSocket := newGate(t, nil, func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook = &v1alpha1.Hook{Endpoint: v1alpha1.Endpoint{UnixSocket: socket}, Hold: v1alpha1.Hold{ReofferInterval: seconds(4)}}
	})
	overTLS := newGate(t, nil, func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook = &v1alpha1.Hook{Endpoint: v1alpha1.Endpoint{URL: "https://" + address, CABundle: ca, ClientCertificateSecret: clientSecret}}
	})
	for name, gate := range map[string]*v1alpha1.AdmissionGate{"over the socket": overSocket, "over TLS": overTLS} {
		q := newHookedQueue(t, gate)
		q.setQuota("8")
		job := q.submit(unique("placed"))
		q.awaitStart(job, "")
		if team := ofJob(job, q.pods.live())[0].Labels["team"]; team != q.name {
			t.Errorf("%s: the pods have team %q, want %q", name, team, q.name)
		}
		refused := q.submit("too-large")
		awaitWorkload(t, refused, "is refused "+name, func(wl *kueue.Workload) bool {
			return strings.Contains(conditionOf(wl, v1alpha1.WorkloadRefused).Message, "lower trainer.numNodes")
		})
	}

	q := newQueueOf(t, overSocket.Name)
	job := q.submit(frozen)
	awaitMessage(t, job, overSocket.Name, kueue.CheckStatePending, "weekly freeze")
	askStart(t, socket, q.name, frozen, `"Hold"`, "weekly freeze")
	askStart(t, socket, q.name, "other", `"AdmitWith"`, `"kueue.x-k8s.io/queue-name":"lq"`)
	// The policy is edited, as a ConfigMap would be.
	write(t, path, strings.ReplaceAll(config, frozen, "nobody"))
	q.awaitStart(job, "1")
}

// startAdapter starts dispatch-hook; it is ended with the test.
func startAdapter(t *testing.T, config string) {
	t.Helper()
	var log lines
	cmd := exec.Command(shared.program("dispatch-hook"), "-config", config, "-kubeconfig", shared.cluster.Kubeconfig(), "-metrics-bind-address=0")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of dispatch-hook:\n%s", strings.Join(log.all(), "\n"))
		}
	})
}

// askStart asks the start gate about a job until the answer has all the words.
func askStart(t *testing.T, socket, namespace, job string, words ...string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	body, err := json.Marshal(map[string]any{"tenantID": namespace, "namespace": namespace, "localQueue": "lq", "job": map[string]string{"name": job}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the start gate answers "+strings.Join(words, ", "), func() error {
		resp, err := client.Post("http://hook/v1/start", "application/json", strings.NewReader(string(body)))
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		for _, w := range words {
			if !strings.Contains(string(answer), w) {
				return fmt.Errorf("%s: %s", resp.Status, answer)
			}
		}
		return nil
	})
}

// adapterCertificates writes certificates for the adapter to dir, and that of the
// gate to a Secret. It returns the authority's.
func adapterCertificates(t *testing.T, dir string) (ca []byte) {
	t.Helper()
	certs, err := harness.NewCertificates()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "ca.crt"), string(certs.CA))
	write(t, filepath.Join(dir, "server.crt"), string(certs.Server.Cert))
	write(t, filepath.Join(dir, "server.key"), string(certs.Server.Key))
	create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: clientSecret, Namespace: namespace}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certs.Client.Cert, corev1.TLSPrivateKeyKey: certs.Client.Key},
	})
	return certs.CA
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
