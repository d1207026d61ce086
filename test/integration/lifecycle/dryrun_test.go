package lifecycle

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// elsewhere are kinds of others that this cluster does not have. What the chart renders
// of them is compared with golden files where it is tested without a cluster.
var elsewhere = []string{"Certificate", "PrometheusRule", "ServiceMonitor"}

var account = regexp.MustCompile("serviceAccountName: .*")

// TestServerTakesEveryObject has the API server check, by a dry run, every object that
// the chart can render: its schemas, CEL rules and webhooks know more than we do.
func TestServerTakesEveryObject(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(harness.Root(), "test", "chart", "testdata", "cases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	namespace := unique("dry")
	s := &site{t: t}
	for _, name := range []string{namespace, "team-a", "leases", "grafana"} {
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	kinds := map[string]int{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			var c struct {
				Release     string         `json:"release"`
				APIVersions []string       `json:"apiVersions"`
				Parent      bool           `json:"parent"`
				Values      map[string]any `json:"values"`
			}
			data, err := os.ReadFile(file)
			if err == nil {
				err = yaml.Unmarshal(data, &c)
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.Parent {
				return // renders what the others do, in another chart
			}
			if c.Release == "" {
				c.Release = "dry"
			}
			args := []string{"template", c.Release, chart(), "--namespace", namespace, "--kube-version=1.36.0", "--values=-"}
			for _, v := range c.APIVersions {
				args = append(args, "--api-versions="+v)
			}
			values, err := json.Marshal(c.Values)
			if err != nil {
				t.Fatal(err)
			}
			helm := exec.CommandContext(t.Context(), shared.cluster.Bin("helm"), args...)
			helm.Stdin = strings.NewReader(string(values))
			out, err := helm.CombinedOutput()
			if err != nil {
				t.Fatalf("helm: %v: %s", err, out)
			}
			var known []string
			for doc := range strings.SplitSeq(string(out), "\n---\n") {
				var o struct{ Kind string }
				if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
					t.Fatal(err)
				}
				if o.Kind == "Pod" { // its own was created in a dry run only
					doc = account.ReplaceAllString(doc, "serviceAccountName: default")
				}
				if kinds[o.Kind]++; o.Kind != "" && !slices.Contains(elsewhere, o.Kind) {
					known = append(known, doc)
				}
			}
			apply := exec.CommandContext(t.Context(), shared.cluster.Bin("kubectl"), "--kubeconfig", shared.cluster.Kubeconfig(),
				"apply", "--dry-run=server", "--validate=strict", "-f", "-")
			apply.Stdin = strings.NewReader(strings.Join(known, "\n---\n"))
			if out, err := apply.CombinedOutput(); err != nil {
				t.Errorf("the API server does not take it: %v: %s", err, out)
			}
		})
	}
	for _, kind := range append([]string{"Deployment", "AdmissionGate", "ClusterQueue", "Job", "NetworkPolicy", "MutatingAdmissionPolicy"}, elsewhere...) {
		if kinds[kind] == 0 {
			t.Errorf("no case has a %s", kind)
		}
	}
}
