package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// provider is a cluster with one node on which pods are containers, and with nothing
// installed. All that differs between the clusters that the tests can run on is here.
type provider interface {
	node
	// Kubeconfig is the path of the administrator's.
	Kubeconfig() string
	// AuditLog is the API server's, one JSON event a line.
	AuditLog(ctx context.Context) (io.ReadCloser, error)
	// Stop removes the cluster. It returns an error too if the cluster broke. After a
	// failure of the tests it leaves logs in the directory of the cluster.
	Stop(failed bool) error
}

// node is what can be done to the node of a cluster.
type node interface {
	// LoadImage gives it the image in a tar file.
	LoadImage(ctx context.Context, path string) error
	// RestartContainerd ends its containerd and starts it again.
	RestartContainerd(ctx context.Context) error
	// SignalContainer sends a signal to the first process of a container, by the id
	// that the status of its pod has.
	SignalContainer(ctx context.Context, id string, sig syscall.Signal) error
}

// providers are the clusters that the tests can run on, by the name that -provider
// has. Check tells whether the machine can have one, before anything takes minutes;
// start keeps what it writes in a directory.
var providers = map[string]struct {
	check func() error
	start func(ctx context.Context, dir string) (provider, error)
}{
	"local": {checkLocal, startLocal},
	"kind":  {checkKind, startKind},
}

// local is the cluster of test/cluster.
type local struct{ *cluster.Cluster }

func checkLocal() error {
	if testing.Short() {
		return errors.New("-short leaves out what needs a real node")
	}
	return cluster.CheckNode()
}

func startLocal(ctx context.Context, dir string) (provider, error) {
	c, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster"), Progress: os.Stderr, Node: true, Bare: true})
	if err != nil {
		return nil, err
	}
	return local{c}, nil
}

func (l local) RestartContainerd(ctx context.Context) error {
	return l.Restart(ctx, cluster.Containerd)
}

func (l local) AuditLog(context.Context) (io.ReadCloser, error) {
	return os.Open(l.Cluster.AuditLog())
}

func (l local) Stop(bool) error { return errors.Join(l.Err(), l.Cluster.Stop()) }

// installManagers makes Kueue, JobSet and Trainer run as pods.
func (w *world) installManagers(ctx context.Context, dir string) error {
	managers, err := cluster.Managers(ctx, w.tools, dir)
	if err != nil {
		return err
	}
	for _, m := range managers {
		if err := errors.Join(w.LoadImage(ctx, m.Image), w.client.Apply(ctx, m.Manifests)); err != nil {
			return fmt.Errorf("install %s: %w", m.Name, err)
		}
	}
	for _, m := range managers { // they start side by side
		_, err := w.client.Run(ctx, "rollout", "status", "deployment/"+m.Deployment, "-n", m.Namespace, "--timeout=8m") // a kubelet may take minutes to bring them their certificates
		if err != nil {
			out, _ := w.client.Run(ctx, "describe", "pods", "-n", m.Namespace)
			logs, _ := w.client.Run(ctx, "logs", "-n", m.Namespace, "deployment/"+m.Deployment, "--tail=40")
			return fmt.Errorf("start %s: %w\n%s\n%s", m.Name, err, strings.TrimSpace(out), strings.TrimSpace(logs))
		}
	}
	return nil
}
