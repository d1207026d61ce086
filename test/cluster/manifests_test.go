package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const shipped = `---
apiVersion: v1
kind: Namespace
metadata: {name: some-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: manager, namespace: some-system}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  maximum: 9223372036854775807
  description: |
    A line
    --- that is no separator
  conversion:
    strategy: Webhook
    webhook:
      clientConfig: {service: {name: s, namespace: n, path: /convert}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: others.example.com}
spec: {conversion: {strategy: None}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: v}
webhooks:
- name: a
  clientConfig: {service: {name: s, namespace: n, path: /validate}}
- name: b
  clientConfig: {service: {name: s, namespace: n}}
`

func TestRewrite(t *testing.T) {
	data, err := rewrite([]byte(shipped))
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	if err := json.Unmarshal(data, &objects); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, o := range objects {
		kinds = append(kinds, o.Kind)
	}
	want := []string{"Namespace", "CustomResourceDefinition", "CustomResourceDefinition", "ValidatingWebhookConfiguration"}
	if !reflect.DeepEqual(kinds, want) {
		t.Errorf("kinds = %v, want %v", kinds, want)
	}
	text := string(data)
	for reason, part := range map[string]string{
		"webhooks point at loopback":        `{"caBundle":"@CABUNDLE@","url":"https://@ADDRESS@/validate"}`,
		"a webhook without a path":          `{"caBundle":"@CABUNDLE@","url":"https://@ADDRESS@/"}`,
		"so does the conversion":            `{"caBundle":"@CABUNDLE@","url":"https://@ADDRESS@/convert"}`,
		"large numbers keep their digits":   `9223372036854775807`,
		"text is not cut at inner dashes":   `--- that is no separator`,
		"other conversions are left alone ": `{"conversion":{"strategy":"None"}}`,
	} {
		if !strings.Contains(text, part) {
			t.Errorf("%s: %s is not in %s", reason, part, text)
		}
	}
	if strings.Contains(text, `"service"`) {
		t.Errorf("a service reference is left in %s", text)
	}
}

func TestRewriteRefusesWhatItDoesNotKnow(t *testing.T) {
	for reason, doc := range map[string]string{
		"unknown kind":              "kind: Gizmo",
		"webhook without a service": "kind: MutatingWebhookConfiguration\nwebhooks: [{clientConfig: {url: 'https://x'}}]",
		"no YAML":                   "kind: [",
	} {
		if got, err := rewrite([]byte(doc)); err == nil {
			t.Errorf("%s: accepted as %s", reason, got)
		}
	}
}

func TestDropThirdParty(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kustomization.yaml")
	if err := os.WriteFile(file, []byte("resources:\n- a\n- ../third-party/x # remote\n- b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dropThirdParty(file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "resources:\n- a\n- b\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCollection(t *testing.T) {
	for manifest, want := range map[string]string{
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}}`:                                            "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"x","namespace":"n"}}`:                       "/api/v1/namespaces/n/serviceaccounts",
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"x","namespace":"n"}}`:       "/apis/rbac.authorization.k8s.io/v1/namespaces/n/roles",
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"x.y"}}`:      "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"x:manager"}}`: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	} {
		var o object
		if err := json.Unmarshal([]byte(manifest), &o); err != nil {
			t.Fatal(err)
		}
		if got, err := o.collection(); err != nil || got != want {
			t.Errorf("%s: collection = %q, %v, want %q", manifest, got, err, want)
		}
	}
	if got, err := (object{Kind: "Deployment"}).collection(); err == nil {
		t.Errorf("collection of a kind that is left out = %q", got)
	}
}

func TestWithImage(t *testing.T) {
	const deployment = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: manager, namespace: some-system}
spec: {template: {spec: {containers: [{name: manager, image: "elsewhere:main", imagePullPolicy: Always, args: [-v]}]}}}
`
	const secret = `
apiVersion: v1
kind: Secret
metadata: {name: s}
`
	manifests, name, err := withImage([]byte(secret+deployment), "here:v1")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}}
---
{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"manager","namespace":"some-system"},"spec":{"template":{"spec":{"containers":[{"args":["-v"],"image":"here:v1","imagePullPolicy":"Never","name":"manager"}]}}}}`
	if name != "manager" || manifests != want {
		t.Errorf("withImage = %s, %q, want\n%s", manifests, name, want)
	}
	for stream, want := range map[string]string{
		secret:                  "no Deployment",
		deployment + deployment: "more than one Deployment",
		strings.ReplaceAll(deployment, "}]}}}", "}, {name: sidecar}]}}}"): "2 containers, want one",
	} {
		if _, _, err := withImage([]byte(stream), "here:v1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
