package preflight

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// says tests a line: its state, and words of it.
func (l Line) says(t *testing.T, name string, state State, words ...string) {
	t.Helper()
	all := l.What + ": " + l.Found + ": " + l.Fix
	if l.State != state || (l.Fix == "") != (state == OK) {
		t.Errorf("%s: %s, want %s, with a fix if that is not ok: %s", name, l.State, state, all)
	}
	for _, w := range words {
		if !strings.Contains(all, w) {
			t.Errorf("%s: %q is missing: %s", name, w, all)
		}
	}
}

func TestVersions(t *testing.T) {
	judgeKubernetes("v1.36.2").says(t, "new", OK, "v1.36.2")
	judgeKubernetes("v1.33.0-gke.1200").says(t, "with a suffix", OK)
	judgeKubernetes("v1.32.9").says(t, "old", Wrong, "v1.32.9", "upgrade to Kubernetes 1.33")
	judgeKubernetes("main").says(t, "unreadable", OK)
	kueue, ours := components[0], components[3]
	kueue.judge(true, "v0.19.2").says(t, "Kueue", OK, "v0.19.2", "v1beta2 is served")
	kueue.judge(true, "v0.16.5").says(t, "old Kueue", Wrong, "v0.16.5", "install Kueue v0.17 or newer")
	kueue.judge(true, "").says(t, "Kueue outside", OK, "its version is not known")
	kueue.judge(true, "latest").says(t, "Kueue of some tag", OK, "latest")
	kueue.judge(false, "").says(t, "no Kueue", Wrong, "does not serve kueue.x-k8s.io/v1beta2", "install Kueue")
	ours.judge(true, "").says(t, "our CRD", OK)
	ours.judge(false, "").says(t, "no CRD of ours", Wrong, "crds.enabled")
	judgeRuntimePatches(true).says(t, "Trainer", OK)
	judgeRuntimePatches(false).says(t, "old Trainer", Wrong, "Trainer v2.2")
}

func TestSplitImage(t *testing.T) {
	for image, want := range map[string][2]string{
		"example.com:5000/kueue/kueue:v0.19.2":      {"kueue", "v0.19.2"},
		"example.com/jobset:v0.12.0@sha256:0123":    {"jobset", "v0.12.0"},
		"example.com:5000/trainer@sha256:0123":      {"trainer", ""},
		"example.com:5000/trainer":                  {"trainer", ""},
		"kueue":                                     {"kueue", ""},
		"example.com/trainer-controller-manager:v2": {"trainer-controller-manager", "v2"},
	} {
		if name, tag := splitImage(image); name != want[0] || tag != want[1] {
			t.Errorf("%s: %q, %q", image, name, tag)
		}
	}
}

// TestRightsAreTheCharts: what preflight asks for is what the chart grants.
func TestRightsAreTheCharts(t *testing.T) {
	granted := chartRules(t, "clusterrole.yaml")
	var asked []rbacv1.PolicyRule
	for _, r := range rights {
		asked = append(asked, rule(r))
	}
	if diff := cmp.Diff(flat(granted), flat(asked)); diff != "" {
		t.Errorf("-chart +preflight\n%s", diff)
	}
	granted = chartRules(t, "role.yaml")
	granted = slices.DeleteFunc(granted, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "secrets") })
	asked = nil
	for _, r := range leaseRights {
		asked = append(asked, rule(r))
	}
	for i := range granted {
		granted[i].ResourceNames = nil // the Lease
	}
	if diff := cmp.Diff(flat(granted), flat(asked)); diff != "" {
		t.Errorf("-chart +preflight\n%s", diff)
	}
}

// What templates have that is no YAML: lines of their own, lists, and values.
var (
	templating = regexp.MustCompile(`(?m)^\s*\{\{.*\}\}\s*$`)
	list       = regexp.MustCompile(`(?m): \{\{.*\}\}$`)
	value      = regexp.MustCompile(`\{\{.*\}\}`)
)

// chartRules reads the rules of a role of the chart, without rendering it.
func chartRules(t *testing.T, file string) []rbacv1.PolicyRule {
	t.Helper()
	data, err := os.ReadFile("../../../../charts/dispatch-admission/templates/controller/" + file)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "\nrules:")
	text, _, _ = strings.Cut(text, "\n---") // the binding
	text = templating.ReplaceAllString("rules:"+text, "")
	text = value.ReplaceAllString(list.ReplaceAllString(text, ": []"), "x")
	var role rbacv1.ClusterRole
	if err := yaml.Unmarshal([]byte(text), &role); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return role.Rules
}

func rule(r right) rbacv1.PolicyRule {
	p := rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{strings.TrimSuffix(r.resource+"/"+r.subresource, "/")}, Verbs: r.verbs}
	if r.name != "" {
		p.ResourceNames = []string{r.name}
	}
	return p
}

// flat are rules as a line for each right.
func flat(rules []rbacv1.PolicyRule) []string {
	var lines []string
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					lines = append(lines, fmt.Sprintf("%s %s.%s %v", verb, resource, group, r.ResourceNames))
				}
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func TestJudgeRight(t *testing.T) {
	of := func(resource string) right {
		all := slices.Concat(mendRights, rights, leaseRights)
		return all[slices.IndexFunc(all, func(r right) bool { return r.resource == resource })]
	}
	judgeRight("me", of("trainjobs"), []string{"get", "patch"}, true).says(t, "always", Wrong, "right trainjobs.trainer.kubeflow.org", "me may not get, patch", "ClusterRole of the chart")
	judgeRight("me", of("pods"), []string{"list"}, true).says(t, "pods", Wrong, "rbac.waitForPods")
	judgeRight("me", of("pods"), []string{"list"}, false).says(t, "pods, for nothing", Warning, "a gate with waitForPods would need it")
	judgeRight("me", of("serviceaccounts"), []string{"get"}, true).says(t, "choices", Warning, "hooks can choose neither")
	judgeRight("me", of("clusterqueues"), []string{"patch"}, true).says(t, "mending", Wrong, "without -mend-queues")
	judgeRight("me", of("leases"), []string{"create"}, true).says(t, "lease", Wrong, "namespace of the Lease")
}

func TestJudgeLease(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "x")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "x", errors.New("no"))
	me, renewed := "me", metav1.NewMicroTime(time.Unix(1, 0))
	held := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &me, RenewTime: &renewed}}
	for name, tc := range map[string]struct {
		look  look
		state State
		words string
	}{
		"missing":   {look{err: notFound}, Wrong, "does not exist"},
		"forbidden": {look{err: forbidden}, Unknown, "run this with an account that may read it"},
		"unheld":    {look{lease: &coordinationv1.Lease{}}, Wrong, "nobody holds ns/x"},
	} {
		line, sure := judgeLease(tc.look, "ns/x")
		if !sure {
			t.Errorf("%s: not sure", name)
		}
		line.says(t, name, tc.state, tc.words)
	}
	if _, sure := judgeLease(look{lease: held}, "ns/x"); sure {
		t.Error("one look cannot tell that a Lease is renewed")
	}
	if d := lasts(held); d != defaultDuration {
		t.Error(d)
	}
}

func active(status metav1.ConditionStatus, kind, message string) []metav1.Condition {
	return []metav1.Condition{{Type: kind, Status: status, Message: message}}
}

func check(name, gate string) kueue.AdmissionCheck {
	c := kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kueue.AdmissionCheckSpec{ControllerName: v1alpha1.ControllerName}}
	if gate != "" {
		c.Spec.Parameters = &kueue.AdmissionCheckParametersReference{APIGroup: v1alpha1.GroupName, Kind: v1alpha1.AdmissionGateKind, Name: gate}
	}
	c.Status.Conditions = active(metav1.ConditionTrue, kueue.AdmissionCheckActive, "")
	return c
}

func gate(name string) v1alpha1.AdmissionGate {
	return v1alpha1.AdmissionGate{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.AdmissionGateStatus{
		Endpoint: "unix:/run/hook.sock", Conditions: active(metav1.ConditionTrue, v1alpha1.GateReady, "")}}
}

// TestWorld shows the lines about what is ours.
func TestWorld(t *testing.T) {
	broken, spare, skipped, unseen := gate("broken"), gate("spare"), gate("skipped"), gate("unseen")
	broken.Status.Conditions = active(metav1.ConditionFalse, v1alpha1.GateReady, "spec.hook.endpoint.url: no such host")
	skipped.Status.Breaker, skipped.Status.LastError = v1alpha1.BreakerOpen, "connection refused"
	unseen.Status.Conditions = nil
	inactive := check("inactive", "broken")
	inactive.Status.Conditions = active(metav1.ConditionFalse, kueue.AdmissionCheckActive, "spec.parameters names the AdmissionGate")
	w := world{
		checks: []kueue.AdmissionCheck{check("plain", ""), check("policy", "skipped"), inactive},
		gates:  []v1alpha1.AdmissionGate{broken, spare, skipped, unseen, gate("lonely")},
		queues: []wiring.Status{
			{Queue: "a", Check: "plain", Wired: true, Active: true},
			{Queue: "b", Check: "inactive", Wired: true, WhyNot: "references inactive AdmissionCheck(s): inactive."},
			{Queue: "c", Check: "plain", Wired: true, Active: true, WhyNot: "the check: it is being deleted"},
			{Queue: "d", Active: true, WhyNot: "no check of ours"},
		},
	}
	want := []struct {
		what  string
		state State
		words string
	}{
		{"AdmissionCheck plain", OK, "Active"},
		{"AdmissionCheck policy", OK, "Active"},
		{"AdmissionCheck inactive", Wrong, "not Active: spec.parameters names"},
		{"AdmissionGate broken", Wrong, "not Ready: spec.hook.endpoint.url"},
		{"AdmissionGate spare", Warning, "no check names it"},
		{"AdmissionGate skipped", Warning, "its hook is skipped for now: connection refused"},
		{"AdmissionGate unseen", Warning, "no gate has looked"},
		{"AdmissionGate lonely", Warning, "no check names it"},
		{"ClusterQueue a", OK, "active with check plain"},
		{"ClusterQueue b", Wrong, "is not active: references"},
		{"ClusterQueue c", Wrong, "jobs that come will wait"},
		{"wiring", OK, "ungated: d"},
	}
	lines := w.lines()
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %+v", len(lines), len(want), lines)
	}
	for i, l := range lines {
		if l.What != want[i].what {
			t.Errorf("line %d is about %s, want %s", i, l.What, want[i].what)
		}
		l.says(t, l.What, want[i].state, want[i].words)
	}
	if !Failed(lines) || !w.waitForPods() {
		t.Error("it fails, and a gate waits for pods unless it says otherwise")
	}
}

func TestBareWorld(t *testing.T) {
	w := world{queues: []wiring.Status{{Queue: "a", Active: true}}}
	lines := w.lines()
	lines[0].says(t, "no check", Wrong, "none has controllerName")
	if len(lines) != 1 || w.waitForPods() {
		t.Errorf("%+v", lines)
	}
	w.checks = []kueue.AdmissionCheck{check("plain", "")}
	lines = w.lines()
	lines[len(lines)-1].says(t, "not wired", Warning, "nothing is gated", "dispatchctl queues attach")
	if Failed(lines) {
		t.Errorf("a gate that nobody uses yet is ready: %+v", lines)
	}
	w = world{checksErr: &meta.NoKindMatchError{}, gatesErr: errors.New("timed out"), queuesErr: &meta.NoKindMatchError{}}
	lines = w.lines()
	if len(lines) != 1 || !w.waitForPods() {
		t.Errorf("%+v", lines)
	}
	lines[0].says(t, "gates", Unknown, "AdmissionGates", "timed out")
}

func TestPodPolicy(t *testing.T) {
	judgePodPolicy(nil).says(t, "there", OK, v1alpha1.PodPolicyName)
	judgePodPolicy(&meta.NoKindMatchError{}).says(t, "old", Warning, "1.36")
	judgePodPolicy(apierrors.NewNotFound(schema.GroupResource{}, "x")).says(t, "missing", Warning, "podPolicy.enabled")
	judgePodPolicy(errors.New("timed out")).says(t, "unread", Warning, "timed out")
}

func TestUnknownIsNotRight(t *testing.T) {
	if !Failed([]Line{ok("a", "b"), unknown("c", errors.New("d"))}) || Failed([]Line{ok("a", "b"), warn("c", "d", "e")}) {
		t.Error("what is unknown fails, and a warning does not")
	}
}
