package lifecycle

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// request is one finished request in the API server's audit log.
type request struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"responseStatus"`
}

// TestZRights compares the rights of the Jobs and of the test pod with what they asked
// for in the whole run, both ways: nothing was denied, and nothing is granted in vain.
// Those of the controller are compared where the gate is tested.
func TestZRights(t *testing.T) {
	used := map[string]bool{}
	for _, r := range audit(t) {
		// Those of the controller end before it does when Helm removes a release.
		role := r.User.Username[strings.LastIndex(r.User.Username, "-")+1:]
		if !strings.HasPrefix(r.User.Username, "system:serviceaccount:r-") || role != "wiring" && role != "test" {
			continue
		}
		if r.ResponseStatus.Code == 403 && strings.Contains(r.ResponseStatus.Message, r.User.Username) {
			t.Errorf("denied to %s: %s %s: %s", r.User.Username, r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
		used[role+": "+r.Verb+" "+strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")+"."+r.ObjectRef.APIGroup] = true
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

// audit reads the requests of the whole run.
func audit(t *testing.T) []request {
	t.Helper()
	f, err := os.Open(shared.cluster.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err == nil && r.Stage == "ResponseComplete" {
			out = append(out, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
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
	s.wantNothingOf(strings.ReplaceAll(kindsOfRelease, "admissionchecks.kueue.x-k8s.io,", ""))
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
