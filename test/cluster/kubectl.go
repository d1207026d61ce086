package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Kubectl runs kubectl on one cluster.
type Kubectl struct {
	// Program and Kubeconfig are paths.
	Program, Kubeconfig string
	// Cache is the directory for what kubectl learns of the API server.
	Cache string
}

// Run runs kubectl and returns its standard output.
func (k Kubectl) Run(ctx context.Context, args ...string) (string, error) {
	return k.run(ctx, nil, args...)
}

// Apply applies manifests, one or several YAML documents, on the server's side;
// it takes over fields that others own.
func (k Kubectl) Apply(ctx context.Context, manifests string) error {
	_, err := k.run(ctx, strings.NewReader(manifests), "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

func (k Kubectl) run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, k.Program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.Kubeconfig, "KUBECACHEDIR="+k.Cache)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
