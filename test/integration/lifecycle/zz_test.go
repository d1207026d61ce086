package lifecycle

import (
	"flag"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// TestZRights compares the rights of the Jobs and of the test pod with what they asked
// for in the whole run, both ways: nothing was denied, and nothing is granted in vain.
// Those of the controller are compared where the gate is tested.
func TestZRights(t *testing.T) {
	used := map[string]bool{}
	_, err := harness.Audit(shared.cluster.AuditLog(), 0, func(r harness.Request) {
		// Those of the controller end before it does when Helm removes a release.
		role := r.User.Username[strings.LastIndex(r.User.Username, "-")+1:]
		if !strings.HasPrefix(r.User.Username, "system:serviceaccount:r-") || role != "wiring" && role != "test" {
			return
		}
		if r.ResponseStatus.Code == 403 && strings.Contains(r.ResponseStatus.Message, r.User.Username) {
			t.Errorf("denied to %s: %s %s: %s", r.User.Username, r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
		used[role+": "+r.Verb+" "+r.Target()+"."+r.ObjectRef.APIGroup] = true
	})
	if err != nil {
		t.Fatal(err)
	}
	if pattern := flag.Lookup("test.run").Value.String(); pattern != "" {
		t.Skipf("only the tests %q ran, so a right that was not used proves nothing", pattern)
	}
	s := newSite(t, shared.cluster.Bin("helm"))
	s.install()
	defer s.run("uninstall", "--timeout=3m")
	for _, name := range []string{"wiring", "test"} {
		var roles rbacv1.ClusterRoleList
		if err := shared.admin.List(t.Context(), &roles, client.MatchingLabels{"app.kubernetes.io/instance": s.release, "app.kubernetes.io/component": name}); err != nil {
			t.Fatal(err)
		}
		if len(roles.Items) != 1 {
			t.Fatalf("%d ClusterRoles for %s, want 1", len(roles.Items), name)
		}
		for _, rule := range roles.Items[0].Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if right := name + ": " + verb + " " + resource + "." + rule.APIGroups[0]; !used[right] {
						t.Errorf("granted and never used: %s", right)
					}
				}
			}
		}
	}
}

// TestZKueueGone comes last: a release can be removed although Kueue and all of its
// kinds are gone.
func TestZKueueGone(t *testing.T) {
	s := newSite(t, shared.cluster.Bin("helm"))
	s.install()
	if err := shared.cluster.StopComponent(cluster.Kueue); err != nil {
		t.Fatal(err)
	}
	out, err := shared.cluster.Kubectl(t.Context(), "get", "crds", "-o", `jsonpath={range .items[?(@.spec.group=="kueue.x-k8s.io")]}{.metadata.name}{"\n"}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	for crd := range strings.FieldsSeq(out) {
		removeKind(t, crd)
	}
	// Else nobody could create a Job any more.
	for _, does := range []string{"mutating", "validating"} {
		s.kubectl("delete", does+"webhookconfiguration", "kueue-"+does+"-webhook-configuration")
	}
	s.run("uninstall", "--timeout=3m")
	s.wantNothingBut("admissionchecks.kueue.x-k8s.io")
}

// removeKind removes a kind. Its objects have finalizers that nobody is there to
// honour, so they are left behind, as when somebody forces it.
func removeKind(t *testing.T, crd string) {
	t.Helper()
	if out, err := shared.cluster.Kubectl(t.Context(), "delete", "crd", crd, "--wait=false"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := shared.cluster.Kubectl(t.Context(), "patch", "crd", crd, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	if err != nil && !strings.Contains(err.Error(), "NotFound") { // one without objects is gone
		t.Fatalf("%v: %s", err, out)
	}
}
