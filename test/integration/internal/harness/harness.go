// Package harness is what the packages of this module share: where the repository is,
// how its programs are built, and the administrator's client.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// Root is the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}

// GoBuild builds packages, as seen from a directory, into a file, or into a directory
// if the path ends in a slash. What it builds is static.
func GoBuild(ctx context.Context, dir, to, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, pkg)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w: %s", pkg, err, out)
	}
	return nil
}

// NewClient makes a client without a limit of its own that knows the kinds of tests.
func NewClient(kubeconfig string) (client.WithWatch, error) {
	scheme := k8sruntime.NewScheme()
	if err := errors.Join(
		clientgoscheme.AddToScheme(scheme), kueue.AddToScheme(scheme), trainer.AddToScheme(scheme), jobset.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return client.NewWithWatch(cfg, client.Options{Scheme: scheme})
}
