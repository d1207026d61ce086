package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

const gateCRD = "admissiongates." + v1alpha1.GroupName

// gateOf builds an AdmissionGate as an operator writes it: a spec in YAML, which
// Go's types could not hold where it is wrong. "-" stands for no spec at all.
func gateOf(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	gate := &unstructured.Unstructured{}
	gate.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.AdmissionGateKind))
	gate.SetName(name)
	if spec != "-" {
		gate.Object["spec"] = fromYAML(t, spec)
	}
	return gate
}

func fromYAML(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

// tryGate asks the API server whether it would take a gate.
func tryGate(t *testing.T, name, spec string) error {
	t.Helper()
	return shared.admin.Create(t.Context(), gateOf(t, name, spec), client.DryRunAll)
}

// endpoint is a hook with one more field.
func endpoint(field string) string {
	return "{hook: {endpoint: {unixSocket: /run/hook.sock}, " + field + "}}"
}

func TestCRDDefaults(t *testing.T) {
	const hook = `
readmission: {waitForPods: true, podTimeout: 10m, onUngated: Report}
hook:
  endpoint: {unixSocket: /run/hook.sock}
  timeout: 2s
  failurePolicy: Hold
  breaker: {failures: 5, cooldown: 30s}
  hold: {reofferInterval: 30s, keepQuotaFor: 1m, window: 24h}
  mode: Enforce
`
	const plain = `readmission: {waitForPods: true, podTimeout: 10m, onUngated: Report}`
	cases := map[string]struct {
		reason, spec, want string
	}{
		"NoSpec":    {"a gate may be a name only", "-", plain},
		"EmptySpec": {"no hook is made up", "{}", plain},
		"NullHook":  {"null is as not set", "{hook: null}", plain},
		"Hook":      {"the endpoint is all that a hook needs", "{hook: {endpoint: {unixSocket: /run/hook.sock}}}", hook},
		"Parts": {"a part that is named gets its defaults too", endpoint("breaker: {}, hold: {window: 24h}, timeout: null"),
			hook},
		"NullParts": {"and so does one that is null", endpoint("breaker: null, hold: null, mode: null, failurePolicy: null"), hook},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			gate := gateOf(t, unique("defaults"), tc.spec)
			create(t, gate)
			if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(gate), gate); err != nil {
				t.Fatal(err)
			}
			if want := fromYAML(t, tc.want); !reflect.DeepEqual(gate.Object["spec"], want) {
				t.Errorf("%s: got %v, want %v", tc.reason, gate.Object["spec"], want)
			}
		})
	}
}

func TestCRDRefuses(t *testing.T) {
	const eitherURL = "must be a URL with a host that begins with https://"
	const socketOnly = "is for an https url only; leave it out"
	cases := map[string]struct {
		reason, spec string
		want         []string // parts of the answer: the field and the way out
	}{
		"NoEndpoint":       {"a hook is somewhere", "{hook: {}}", []string{"spec.hook.endpoint: Required"}},
		"EmptyEndpoint":    {"neither", "{hook: {endpoint: {}}}", []string{"spec.hook.endpoint:", "exactly one of unixSocket and url must be set"}},
		"BothEndpoints":    {"both", "{hook: {endpoint: {unixSocket: /s, url: 'https://h'}}}", []string{"spec.hook.endpoint:", "exactly one of unixSocket and url must be set"}},
		"RelativeSocket":   {"whose folder?", "{hook: {endpoint: {unixSocket: run/s}}}", []string{"spec.hook.endpoint.unixSocket:", "must be an absolute path, such as"}},
		"EmptySocket":      {"no path", "{hook: {endpoint: {unixSocket: ''}}}", []string{"spec.hook.endpoint.unixSocket:", "must be an absolute path"}},
		"LongSocket":       {"Linux knows 107 bytes", "{hook: {endpoint: {unixSocket: /" + strings.Repeat("s", 107) + "}}}", []string{"spec.hook.endpoint.unixSocket:", "107"}},
		"RemoteHTTP":       {"anybody could answer", "{hook: {endpoint: {url: 'http://hook.example.com'}}}", []string{"spec.hook.endpoint.url:", eitherURL, "http:// is for localhost"}},
		"DisguisedHTTP":    {"a name that begins like this machine", "{hook: {endpoint: {url: 'http://localhost.example.com'}}}", []string{"spec.hook.endpoint.url:", eitherURL}},
		"DisguisedUser":    {"a user that looks like this machine", "{hook: {endpoint: {url: 'http://localhost:80@example.com'}}}", []string{"spec.hook.endpoint.url:", eitherURL}},
		"NoLoopback":       {"127.0.0.256 is no address", "{hook: {endpoint: {url: 'http://127.0.0.256'}}}", []string{"spec.hook.endpoint.url:", eitherURL}},
		"NoScheme":         {"no URL", "{hook: {endpoint: {url: hook.example.com}}}", []string{"spec.hook.endpoint.url:", eitherURL}},
		"OtherScheme":      {"not HTTP", "{hook: {endpoint: {url: 'unix:///run/s'}}}", []string{"spec.hook.endpoint.url:", eitherURL}},
		"NoHost":           {"nobody", "{hook: {endpoint: {url: 'https://:8443'}}}", []string{"spec.hook.endpoint.url:", eitherURL}},
		"EmptyURL":         {"nothing", "{hook: {endpoint: {url: ''}}}", []string{"spec.hook.endpoint.url:", eitherURL}},
		"User":             {"everybody may read it", "{hook: {endpoint: {url: 'https://user:secret@h'}}}", []string{"spec.hook.endpoint.url:", "must not have a user, a query or a fragment; clientCertificateSecret"}},
		"Query":            {"the path goes behind it", "{hook: {endpoint: {url: 'https://h?a=b'}}}", []string{"spec.hook.endpoint.url:", "must not have a user, a query"}},
		"WholePath":        {"it is added", "{hook: {endpoint: {url: 'https://h/v1/admit/'}}}", []string{"spec.hook.endpoint.url:", "must not end with /v1/admit, which is added"}},
		"SocketCA":         {"nothing to verify", "{hook: {endpoint: {unixSocket: /s, caBundle: YQ==}}}", []string{"spec.hook.endpoint.caBundle:", socketOnly}},
		"HTTPName":         {"nothing to verify", "{hook: {endpoint: {url: 'http://localhost', serverName: a}}}", []string{"spec.hook.endpoint.serverName:", socketOnly}},
		"SocketSecret":     {"nobody asks for it", "{hook: {endpoint: {unixSocket: /s, clientCertificateSecret: a}}}", []string{"spec.hook.endpoint.clientCertificateSecret:", socketOnly}},
		"SecretName":       {"no Secret is called so", "{hook: {endpoint: {url: 'https://h', clientCertificateSecret: A_b}}}", []string{"spec.hook.endpoint.clientCertificateSecret:", "must be the name of a Secret"}},
		"CAText":           {"not base64", "{hook: {endpoint: {url: 'https://h', caBundle: '-----'}}}", []string{"spec.hook.endpoint.caBundle:", "byte"}},
		"LongTimeout":      {"a worker waits", endpoint("timeout: 31s"), []string{"spec.hook.timeout:", "must be a duration from 100ms to 30s, such as 2s"}},
		"ShortTimeout":     {"nobody answers in time", endpoint("timeout: 50ms"), []string{"spec.hook.timeout:", "must be a duration from 100ms to 30s"}},
		"WordyTimeout":     {"no duration", endpoint("timeout: soon"), []string{"spec.hook.timeout:", "must be a duration from 100ms to 30s"}},
		"BareTimeout":      {"seconds? minutes?", endpoint("timeout: '2'"), []string{"spec.hook.timeout:", "must be a duration from 100ms to 30s"}},
		"NumberTimeout":    {"not even text", endpoint("timeout: 2"), []string{"spec.hook.timeout:", "string"}},
		"HugeTimeout":      {"more than Go counts", endpoint("timeout: 99999999999999h"), []string{"spec.hook.timeout:", "must be a duration from 100ms to 30s"}},
		"NoFailures":       {"never asked", endpoint("breaker: {failures: 0}"), []string{"spec.hook.breaker.failures:", "greater than or equal to 1"}},
		"ManyFailures":     {"never skipped", endpoint("breaker: {failures: 1001}"), []string{"spec.hook.breaker.failures:", "less than or equal to 1000"}},
		"ShortCooldown":    {"no pause", endpoint("breaker: {cooldown: 999ms}"), []string{"spec.hook.breaker.cooldown:", "must be a duration from 1s to 1h"}},
		"LongReoffer":      {"over its own ceiling", endpoint("hold: {reofferInterval: 5m1s}"), []string{"spec.hook.hold.reofferInterval:", "must be a duration from 1s to 5m"}},
		"LongKeep":         {"others wait", endpoint("hold: {keepQuotaFor: 25h}"), []string{"spec.hook.hold.keepQuotaFor:", "at most 24h", "0s gives the quota back"}},
		"NegativeWindow":   {"before it began", endpoint("hold: {window: -1h}"), []string{"spec.hook.hold.window:", "at most 87600h", "0s means for ever"}},
		"LongWindow":       {"for ever is 0s", endpoint("hold: {window: 87601h}"), []string{"spec.hook.hold.window:", "0s means for ever"}},
		"LowerMode":        {"words are exact", endpoint("mode: enforce"), []string{"spec.hook.mode: Unsupported", `"Enforce", "Audit"`}},
		"UnknownPolicy":    {"Kubernetes' word, not ours", endpoint("failurePolicy: Fail"), []string{"spec.hook.failurePolicy: Unsupported", `"Hold", "Admit"`}},
		"EmptyPolicy":      {"neither", endpoint("failurePolicy: ''"), []string{"spec.hook.failurePolicy: Unsupported"}},
		"UnknownOnUngated": {"no such thing", "{readmission: {onUngated: Delete}}", []string{"spec.readmission.onUngated: Unsupported", `"Report", "Evict"`}},
		"NoPodTimeout":     {"there is another way", "{readmission: {podTimeout: 0s}}", []string{"spec.readmission.podTimeout:", "set waitForPods to false"}},
		"TwiceAllowed":     {"a slip", endpoint("allowlist: {priorityClasses: [a, b, a]}"), []string{"spec.hook.allowlist.priorityClasses[2]: Duplicate", `"a"`}},
		"TwiceAccount":     {"a slip", endpoint("allowlist: {serviceAccounts: [a, a]}"), []string{"spec.hook.allowlist.serviceAccounts[1]: Duplicate"}},
		"NoClassName":      {"no class is called so", endpoint("allowlist: {priorityClasses: [High]}"), []string{"spec.hook.allowlist.priorityClasses[0]:", "must be the name of a PriorityClass"}},
		"EmptyAccount":     {"no account is called so", endpoint("allowlist: {serviceAccounts: ['']}"), []string{"spec.hook.allowlist.serviceAccounts[0]:", "must be the name of a ServiceAccount"}},
		"NoSource":         {"from where?", endpoint("attempt: {tenantID: {}}"), []string{"spec.hook.attempt.tenantID:", "exactly one of label and annotation must be set"}},
		"TwoSources":       {"from which?", endpoint("attempt: {runID: {label: a, annotation: a}}"), []string{"spec.hook.attempt.runID:", "exactly one of label and annotation must be set"}},
		"NoLabelKey":       {"no key", endpoint("attempt: {dagID: {label: a b}}"), []string{"spec.hook.attempt.dagID.label:", "must be the key of a label, such as"}},
		"EmptyKey":         {"no key", endpoint("attempt: {taskID: {annotation: ''}}"), []string{"spec.hook.attempt.taskID.annotation:", "must be the key of an annotation"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			expectRefusal(t, tc.reason, tryGate(t, "refused", tc.spec), tc.want...)
		})
	}
	for name, gate := range map[string]string{"Dots": "a.b", "Long": strings.Repeat("a", 64)} {
		t.Run("Name"+name, func(t *testing.T) {
			expectRefusal(t, "no check can name it", tryGate(t, gate, "{}"), "metadata.name must be a lower-case DNS label of at most 63 characters", "AdmissionCheck")
		})
	}
}

// expectRefusal wants the API server to call the object wrong and to say how.
func expectRefusal(t *testing.T, reason string, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: was accepted", reason)
		return
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: the answer %q does not say %q", reason, err, part)
		}
	}
}

func TestCRDAccepts(t *testing.T) {
	for name, spec := range map[string]string{
		"Socket":         endpoint("timeout: 100ms"),
		"LongestSocket":  "{hook: {endpoint: {unixSocket: /" + strings.Repeat("s", 106) + "}}}",
		"Timeout":        endpoint("timeout: 30s"),
		"Fraction":       endpoint("timeout: 1.5s"),
		"FromGo":         endpoint("hold: {window: 23h59m59.999999999s, keepQuotaFor: 24h0m0s}"),
		"Breaker":        endpoint("breaker: {failures: 1000, cooldown: 1h}"),
		"SmallBreaker":   endpoint("breaker: {failures: 1, cooldown: 1s}"),
		"NoQuota":        endpoint("hold: {keepQuotaFor: 0s, window: 0s, reofferInterval: 1s}"),
		"BareZero":       endpoint("hold: {keepQuotaFor: '0', window: '0'}"),
		"Longest":        endpoint("hold: {keepQuotaFor: 24h, window: 87600h, reofferInterval: 5m}"),
		"HTTPS":          "{hook: {endpoint: {url: 'https://hook.example.com:8443/base/', caBundle: YQ==, serverName: a.example.com, clientCertificateSecret: a.b}}}",
		"HTTPSAddress":   "{hook: {endpoint: {url: 'https://[2001:db8::1]'}}}",
		"AtInPath":       "{hook: {endpoint: {url: 'https://h/team@site'}}}",
		"Localhost":      "{hook: {endpoint: {url: 'http://localhost:9000'}}}",
		"Loopback":       "{hook: {endpoint: {url: 'http://127.255.255.254/x'}}}",
		"Loopback6":      "{hook: {endpoint: {url: 'http://[::1]:9000'}}}",
		"AllowNothing":   endpoint("allowlist: {priorityClasses: [], serviceAccounts: []}"),
		"AllowDots":      endpoint("allowlist: {priorityClasses: [system-cluster-critical, a.b]}"),
		"Names":          endpoint("attempt: {tenantID: {label: example.com/tenant}, dagID: {annotation: Example.com/Dag}, runID: {label: run}, taskID: {label: a.b/c}}"),
		"ShortWait":      "{readmission: {waitForPods: false, podTimeout: 1ms, onUngated: Evict}}",
		"EverythingElse": endpoint("mode: Audit, failurePolicy: Admit"),
	} {
		t.Run(name, func(t *testing.T) {
			if err := tryGate(t, "accepted", spec); err != nil {
				t.Error(err)
			}
		})
	}
	if err := tryGate(t, strings.Repeat("a", 63), "{}"); err != nil {
		t.Error(err)
	}
}

// TestCRDKeepsEmptyLists follows an allowlist from Go through the API server back
// to Go, where nil is no rule and empty allows nothing, and through an update.
func TestCRDKeepsEmptyLists(t *testing.T) {
	for name, list := range map[string][]string{"nil": nil, "empty": {}, "one": {"a"}} {
		t.Run(name, func(t *testing.T) {
			gate := &v1alpha1.AdmissionGate{ObjectMeta: metav1.ObjectMeta{Name: unique("lists")}, Spec: v1alpha1.AdmissionGateSpec{
				Hook: &v1alpha1.Hook{Endpoint: v1alpha1.Endpoint{UnixSocket: "/run/hook.sock"},
					Allowlist: v1alpha1.Allowlist{PriorityClasses: list, ServiceAccounts: list}}}}
			create(t, gate)
			gate.Spec.Hook.Mode = v1alpha1.ModeAudit
			if err := shared.admin.Update(t.Context(), gate); err != nil {
				t.Fatal(err)
			}
			var got v1alpha1.AdmissionGate
			if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(gate), &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Spec.Hook.Allowlist, v1alpha1.Allowlist{PriorityClasses: list, ServiceAccounts: list}) {
				t.Errorf("the allowlist came back as %#v", got.Spec.Hook.Allowlist)
			}
			if d := got.Spec.Hook.Timeout; d == nil || d.Duration != 2*time.Second {
				t.Errorf("the default of timeout came as %v", d)
			}
		})
	}
}

// TestCRDShows is what an operator sees, and who may write what: the spec is the
// operator's, the status the controller's.
func TestCRDShows(t *testing.T) {
	gate := gateOf(t, unique("shown"), endpoint("mode: Audit"))
	gate.Object["status"] = map[string]any{"endpoint": "dropped"}
	create(t, gate)
	get := func() [][]string {
		out, err := shared.cluster.Kubectl(t.Context(), "get", "admissiongates", gate.GetName())
		if err != nil {
			t.Fatal(err)
		}
		var rows [][]string
		for line := range strings.Lines(out) {
			rows = append(rows, strings.Fields(line))
		}
		return rows
	}
	rows := get()
	if want := []string{"NAME", "ENDPOINT", "POLICY", "MODE", "READY", "AGE"}; !reflect.DeepEqual(rows[0], want) {
		t.Errorf("the columns are %v, want %v", rows[0], want)
	}
	// Without a status, two columns are blank.
	if want := []string{gate.GetName(), "Hold", "Audit"}; !reflect.DeepEqual(rows[1][:3], want) {
		t.Errorf("the row is %v, want %v at first", rows[1], want)
	}
	status := fmt.Sprintf(`{"spec":{"hook":{"mode":"Enforce"}},"status":{"observedGeneration":1,"endpoint":"unix:/run/hook.sock","breaker":"Open","lastError":%q,
		"conditions":[{"type":"Ready","status":"True","reason":"Serving","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, strings.Repeat("ä", 1024))
	if err := shared.admin.Status().Patch(t.Context(), gate, client.RawPatch(types.MergePatchType, []byte(status))); err != nil {
		t.Fatal(err)
	}
	if want, got := []string{gate.GetName(), "unix:/run/hook.sock", "Hold", "Audit", "True"}, get()[1]; !reflect.DeepEqual(got[:5], want) {
		t.Errorf("the row is %v, want %v", got, want)
	}
	for status, want := range map[string]string{
		`{"status":{"breaker":"HalfOpen"}}`:                            `status.breaker: Unsupported value: "HalfOpen"`,
		`{"status":{"lastError":"` + strings.Repeat("x", 1025) + `"}}`: "status.lastError: Too long",
	} {
		err := shared.admin.Status().Patch(t.Context(), gate.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(status)))
		expectRefusal(t, "a status has limits, too", err, want)
	}
}

// TestCRDIsTheGeneratedOne sees that nothing of the CRD is lost on its way through
// the chart.
func TestCRDIsTheGeneratedOne(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(harness.Root(), "charts", "dispatch-admission", "files", "crds", v1alpha1.GroupName+"_admissiongates.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := fromYAML(t, string(data))["spec"].(map[string]any)
	got := getCRD(t)
	if keep := got.GetAnnotations()["helm.sh/resource-policy"]; keep != "keep" {
		t.Errorf("the resource policy of Helm is %q, want keep", keep)
	}
	for _, field := range []string{"group", "scope", "versions"} {
		spec := got.Object["spec"].(map[string]any)
		if wantJSON, gotJSON := mustJSON(t, want[field]), mustJSON(t, spec[field]); wantJSON != gotJSON {
			t.Errorf("%s of the CRD is %s, want %s", field, gotJSON, wantJSON)
		}
	}
}

func getCRD(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: gateCRD}, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// mustJSON is v with its keys in order.
func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
