package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// helmRelease is a release of the chart with one check, whose gate asks a hook.
type helmRelease struct {
	t          *testing.T
	name, gate string
}

func (r *helmRelease) helm(args ...string) {
	r.t.Helper()
	args = append(args, "--namespace", namespace, "--kubeconfig", shared.cluster.Kubeconfig())
	if out, err := exec.CommandContext(r.t.Context(), shared.cluster.Bin("helm"), args...).CombinedOutput(); err != nil {
		r.t.Fatalf("helm %v: %v: %s", args, err, out)
	}
}

// roll installs or upgrades the release with the host of its hook.
func (r *helmRelease) roll(verb, host string) {
	r.t.Helper()
	args := []string{verb, r.name, filepath.Join(harness.Root(), "charts", "dispatch-admission"),
		"--set", "controller.replicas=0,jobs.enabled=false,test.enabled=false,podPolicy.enabled=false", // one release has the policy, and that is another
		"--set-json", fmt.Sprintf(`admissionChecks=[{"name":%q,"gate":{"hook":{"endpoint":{"url":"https://%s"}}}}]`, r.gate, host)}
	if verb == "install" {
		args = append(args, "--wait") // until the CRD is served
	}
	r.helm(args...)
}

// want sees where the gate asks; "" stands for no gate.
func (r *helmRelease) want(host string) {
	r.t.Helper()
	var gate v1alpha1.AdmissionGate
	err := shared.admin.Get(r.t.Context(), client.ObjectKey{Name: r.gate}, &gate)
	switch {
	case host == "" && !apierrors.IsNotFound(err):
		r.t.Errorf("the gate is there still, or not to be read: %v", err)
	case host != "" && err != nil:
		r.t.Error(err)
	case host != "" && gate.Spec.Hook.Endpoint.URL != "https://"+host:
		r.t.Errorf("the gate asks %s, want https://%s", gate.Spec.Hook.Endpoint.URL, host)
	}
}

func (r *helmRelease) removeCRD() {
	r.t.Helper()
	if _, err := shared.cluster.Kubectl(r.t.Context(), "delete", "crd", gateCRD, "--wait"); err != nil {
		r.t.Fatal(err)
	}
}

// TestCRDInARelease follows a gate through releases of Helm from the one on that
// brings its CRD. Helm can neither create both at once nor change what it takes
// over, so the chart has to see to it that the gate is always what was asked for.
func TestCRDInARelease(t *testing.T) {
	r := &helmRelease{t: t, name: unique("r"), gate: unique("released")}
	t.Cleanup(func() { // for the tests to come, as it was
		ctx := context.WithoutCancel(t.Context())
		manifests, err := shared.chart(ctx)
		if err == nil {
			err = shared.cluster.Apply(ctx, manifests)
		}
		if err == nil {
			_, err = shared.cluster.Kubectl(ctx, "wait", "--for=condition=Established", "crd/"+gateCRD, "--timeout=30s")
		}
		if err != nil {
			t.Error(err)
		}
	})
	r.removeCRD()
	r.roll("install", "first") // with the CRD
	r.want("first")
	r.roll("upgrade", "second") // taken over, and changed
	r.want("second")
	r.roll("upgrade", "third") // as ever after
	r.want("third")
	r.helm("rollback", r.name, "1") // to before it was of the release
	r.want("first")
	r.roll("upgrade", "fourth")
	r.want("fourth")
	r.helm("uninstall", r.name)
	r.want("")
	if keep := getCRD(t).GetAnnotations()["helm.sh/resource-policy"]; keep != "keep" {
		t.Errorf("the resource policy of the CRD that stayed is %q", keep)
	}
	r.roll("install", "fifth") // with a CRD that is there
	r.want("fifth")
	r.helm("uninstall", r.name)
	r.want("")

	r.removeCRD()
	r.roll("install", "sixth")
	r.helm("uninstall", r.name)
	r.want("sixth")              // was nobody's
	r.roll("install", "seventh") // and is found again
	r.want("seventh")
	r.removeCRD() // whatever the order, an uninstall goes through
	r.helm("uninstall", r.name)
}
