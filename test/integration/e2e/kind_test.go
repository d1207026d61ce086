package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	kindcluster "sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/cluster/nodes"
	"sigs.k8s.io/kind/pkg/cluster/nodeutils"
	"sigs.k8s.io/kind/pkg/cmd"
	"sigs.k8s.io/kind/pkg/exec"
)

// kind is a cluster in a container, of the Kubernetes version that this version of
// kind comes with.
type kind struct {
	*kindcluster.Provider
	dir  string
	node nodes.Node
}

const (
	// kindName is that of the cluster. There is one, so that the next run removes what
	// one that was killed has left.
	kindName = "dispatch-admission-e2e"
	// kindLimit is how long kind's control plane may take to get ready, after its
	// image has been pulled.
	kindLimit = 5 * time.Minute
	// Where the node has what the API server reads and writes.
	auditDir = "/var/log/kubernetes"
	policy   = "/etc/kubernetes/audit-policy.yaml"
)

const kindAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, userGroups: ["system:serviceaccounts:` + namespace + `"]}]
`

// kindPatch makes kubeadm's API server write an audit log.
const kindPatch = `kind: ClusterConfiguration
apiServer:
  extraArgs: {audit-policy-file: ` + policy + `, audit-log-path: ` + auditDir + `/audit.log, audit-log-maxsize: "100000"}
  extraVolumes:
  - {name: audit-policy, hostPath: ` + policy + `, mountPath: ` + policy + `, readOnly: true, pathType: File}
  - {name: audit-logs, hostPath: ` + auditDir + `, mountPath: ` + auditDir + `, readOnly: false, pathType: DirectoryOrCreate}
`

// newKind returns kind on the container engine that this machine has, or that the
// variable names which kind's own command goes by.
func newKind() (*kindcluster.Provider, error) {
	var engine kindcluster.ProviderOption
	var err error
	switch name := os.Getenv("KIND_EXPERIMENTAL_PROVIDER"); name {
	case "":
		engine, err = kindcluster.DetectNodeProvider()
	case "docker":
		engine = kindcluster.ProviderWithDocker()
	case "podman":
		engine = kindcluster.ProviderWithPodman()
	case "nerdctl", "finch", "nerdctl.lima":
		engine = kindcluster.ProviderWithNerdctl(name)
	default:
		err = fmt.Errorf("KIND_EXPERIMENTAL_PROVIDER=%s is unknown", name)
	}
	if err != nil {
		return nil, fmt.Errorf("kind needs docker, podman or nerdctl: %w", err)
	}
	return kindcluster.NewProvider(engine, kindcluster.ProviderWithLogger(cmd.NewLogger())), nil
}

func checkKind() error {
	p, err := newKind()
	if err != nil {
		return err
	}
	if _, err := p.List(); err != nil {
		return fmt.Errorf("kind needs docker, podman or nerdctl, and it must run: %w", told(err))
	}
	return nil
}

func startKind(_ context.Context, dir string) (provider, error) {
	p, err := newKind()
	if err != nil {
		return nil, err
	}
	k := &kind{Provider: p, dir: dir}
	if err := k.Stop(false); err != nil {
		return nil, fmt.Errorf("remove what an earlier run has left: %w", err)
	}
	policyFile := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policyFile, []byte(kindAuditPolicy), 0o644); err != nil {
		return nil, err
	}
	if err := k.create(policyFile); err != nil {
		return nil, errors.Join(fmt.Errorf("create the cluster %s: %w", kindName, told(err)), k.seesPolicy(), k.Stop(true))
	}
	return k, nil
}

func (k *kind) create(policyFile string) error {
	err := k.Create(kindName,
		kindcluster.CreateWithV1Alpha4Config(&v1alpha4.Cluster{
			TypeMeta: v1alpha4.TypeMeta{Kind: "Cluster", APIVersion: "kind.x-k8s.io/v1alpha4"},
			Nodes: []v1alpha4.Node{{
				Role:        v1alpha4.ControlPlaneRole,
				ExtraMounts: []v1alpha4.Mount{{HostPath: policyFile, ContainerPath: policy, Readonly: true}},
			}},
			KubeadmConfigPatches: []string{kindPatch},
		}),
		kindcluster.CreateWithKubeconfigPath(k.Kubeconfig()),
		kindcluster.CreateWithWaitForReady(kindLimit),
		kindcluster.CreateWithRetain(true), // so that Stop can keep its logs
	)
	if err != nil {
		return err
	}
	all, err := k.ListInternalNodes(kindName)
	if err != nil {
		return err
	}
	if len(all) != 1 {
		return fmt.Errorf("it has %d nodes, want one", len(all))
	}
	k.node = all[0]
	return nil
}

// seesPolicy returns an error if the node has not got the file that it mounts.
func (k *kind) seesPolicy() error {
	all, err := k.ListInternalNodes(kindName)
	if err != nil || len(all) != 1 || all[0].Command("test", "-f", policy).Run() == nil {
		return nil // it is something else
	}
	return fmt.Errorf("the container engine does not see %s; set TMPDIR to a directory that it shares", k.dir)
}

func (k *kind) Kubeconfig() string { return filepath.Join(k.dir, "kind.kubeconfig") }

func (k *kind) LoadImage(_ context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	return told(nodeutils.LoadImageArchive(k.node, f))
}

func (k *kind) RestartContainerd(ctx context.Context) error {
	return k.run(ctx, "systemctl", "restart", "containerd")
}

func (k *kind) SignalContainer(ctx context.Context, id string, sig syscall.Signal) error {
	return k.run(ctx, "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal", strconv.Itoa(int(sig)), strings.TrimPrefix(id, "containerd://"))
}

func (k *kind) AuditLog(ctx context.Context) (io.ReadCloser, error) {
	f, err := os.Create(filepath.Join(k.dir, "audit.log"))
	if err != nil {
		return nil, err
	}
	if err := k.node.CommandContext(ctx, "cat", auditDir+"/audit.log").SetStdout(f).Run(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

func (k *kind) Stop(failed bool) error {
	var err error
	if failed {
		err = told(k.CollectLogs(kindName, filepath.Join(k.dir, "logs")))
	}
	return errors.Join(err, told(k.Delete(kindName, k.Kubeconfig())))
}

// run runs a command in the node.
func (k *kind) run(ctx context.Context, command string, args ...string) error {
	return told(k.node.CommandContext(ctx, command, args...).Run())
}

// told adds to an error what the command said that failed.
func told(err error) error {
	if failed := exec.RunErrorForError(err); failed != nil {
		if output := bytes.TrimSpace(failed.Output); len(output) > 0 {
			return fmt.Errorf("%w: %s", err, output)
		}
	}
	return err
}
