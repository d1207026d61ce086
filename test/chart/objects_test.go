package chart

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-admission/dispatch-admission/test/chart/matrix"
)

// clusterScoped are the kinds that have no namespace, of those that the chart renders.
var clusterScoped = []string{
	"AdmissionCheck", "AdmissionGate", "ClusterQueue", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition",
	"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ResourceFlavor",
}

// foreign are the groups whose types are not those of Kubernetes itself.
var foreign = []string{
	"apiextensions.k8s.io", "cert-manager.io", "dispatch.phpboyscout.uk", "kueue.x-k8s.io", "monitoring.coreos.com",
}

var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// typed decodes an object as its type, and wants no field that the type does not have;
// nil for a type of another project.
func typed(t *testing.T, o matrix.Object) runtime.Object {
	t.Helper()
	group, _, _ := strings.Cut(o.Text("apiVersion"), "/")
	if slices.Contains(foreign, group) {
		return nil
	}
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := strict.Decode(text, nil, nil)
	if err != nil {
		t.Fatalf("%s: %v", o, err)
	}
	return object
}

// all decodes the objects of one type.
func all[T runtime.Object](t *testing.T, r matrix.Rendered) []T {
	t.Helper()
	var found []T
	for _, o := range r.Objects {
		if object, ok := typed(t, o).(T); ok {
			found = append(found, object)
		}
	}
	return found
}

// podTemplate is what makes a pod, whoever does.
type podTemplate struct {
	owner string
	meta  metav1.ObjectMeta
	spec  corev1.PodSpec
}

// containers are all of a pod, those that run before the others first.
func (p podTemplate) containers() []corev1.Container {
	return slices.Concat(p.spec.InitContainers, p.spec.Containers)
}

// podTemplates are those of Deployments, Jobs and bare pods, hooks and tests included.
func podTemplates(t *testing.T, r matrix.Rendered) []podTemplate {
	t.Helper()
	var found []podTemplate
	for _, o := range r.Objects {
		switch object := typed(t, o).(type) {
		case *appsv1.Deployment:
			found = append(found, podTemplate{o.String(), object.Spec.Template.ObjectMeta, object.Spec.Template.Spec})
		case *batchv1.Job:
			found = append(found, podTemplate{o.String(), object.Spec.Template.ObjectMeta, object.Spec.Template.Spec})
		case *corev1.Pod:
			found = append(found, podTemplate{o.String(), object.ObjectMeta, object.Spec})
		}
	}
	return found
}

// TestFields wants every field of every object to exist, so that none is lost for
// being misspelt or in the wrong place.
func TestFields(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		for _, o := range r.Objects {
			typed(t, o)
		}
	})
}

func TestNamespaces(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		for _, o := range r.Objects {
			_, has := o["metadata"].(map[string]any)["namespace"]
			if want := !slices.Contains(clusterScoped, o.Text("kind")); has != want {
				t.Errorf("%s: has a namespace: %t, want %t; without one, `helm template | kubectl apply` puts it anywhere", o, has, want)
			}
		}
	})
}

// longestJobName leaves room for the dash and the five characters that the name of a
// pod adds; what is longer is cut off, and the pod no longer says whose it is.
const longestJobName = 63 - 6

func TestNames(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		seen := map[string]bool{}
		for _, o := range r.Objects {
			name := o.Text("metadata", "name")
			problems := validation.IsDNS1123Label(name)
			if slices.Contains(clusterScoped, o.Text("kind")) { // pods.dispatch.phpboyscout.uk and the like
				problems = validation.IsDNS1123Subdomain(name)
			}
			if len(problems) > 0 || len(name) > 63 {
				t.Errorf("%s: %q has %d characters, %v", o, name, len(name), problems)
			}
			if o.Text("kind") == "Job" && len(name) > longestJobName {
				t.Errorf("%s: %d characters, want at most %d", o, len(name), longestJobName)
			}
			if o.Text("kind") == "Service" && len(validation.IsDNS1035Label(name)) > 0 {
				t.Errorf("%s: %v", o, validation.IsDNS1035Label(name))
			}
			if key := o.String(); seen[key] {
				t.Errorf("%s: rendered twice", key)
			}
			seen[o.String()] = true
		}
	})
}

// TestNamesTellReleasesApart: nothing of two releases has the same name, not even if
// only the last character of their names differs. What a user named is not ours.
func TestNamesTellReleasesApart(t *testing.T) {
	cases, err := matrix.Cases(testdata)
	if err != nil {
		t.Fatal(err)
	}
	c := cases[slices.IndexFunc(cases, func(c matrix.Case) bool { return c.Name == "long-release-name" })]
	fixed := []string{"AdmissionCheck", "AdmissionGate", "CustomResourceDefinition"}
	names := map[string]bool{}
	for i, last := range []string{"3", "4"} {
		c.Release = c.Release[:len(c.Release)-1] + last
		r, err := render(t, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range r.Objects {
			if i > 0 && names[o.String()] && !slices.Contains(fixed, o.Text("kind")) {
				t.Errorf("%s is of both releases", o)
			}
			names[o.String()] = true
		}
	}
}

func TestLabels(t *testing.T) {
	each(t, func(t *testing.T, r rendering) {
		for _, o := range r.Objects {
			checkLabels(t, o.String(), o.At("metadata", "labels"))
		}
		for _, p := range podTemplates(t, r.Rendered) {
			for key, value := range p.meta.Labels {
				checkLabel(t, p.owner+", pods", key, value)
			}
			// A new chart alone must not restart the leader.
			for _, key := range []string{"helm.sh/chart", "app.kubernetes.io/version"} {
				if _, ok := p.meta.Labels[key]; ok {
					t.Errorf("%s: its pods have the label %s, which changes with each version", p.owner, key)
				}
			}
		}
	})
}

func checkLabels(t *testing.T, where string, labels any) {
	t.Helper()
	m, _ := labels.(map[string]any)
	for key, value := range m {
		text, ok := value.(string)
		if !ok {
			t.Errorf("%s: the label %s is no string: %v", where, key, value)
		}
		checkLabel(t, where, key, text)
	}
}

func checkLabel(t *testing.T, where, key, value string) {
	t.Helper()
	for _, problem := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)) {
		t.Errorf("%s: the label %s=%s: %s", where, key, value, problem)
	}
}

// TestSelectors compares with what was recorded once and for all: a selector cannot
// change, or no release can be upgraded. No value may change one, and no version.
func TestSelectors(t *testing.T) {
	got := map[string]any{}
	each(t, func(t *testing.T, r rendering) {
		for _, o := range r.Objects {
			selector := o.At("spec", "selector")
			if o.Text("kind") == "Service" {
				selector = map[string]any{"matchLabels": selector}
			}
			if !slices.Contains([]string{"Deployment", "PodDisruptionBudget", "Service"}, o.Text("kind")) {
				continue
			}
			labels := maps.Clone(selector.(map[string]any)["matchLabels"].(map[string]any))
			if labels["app.kubernetes.io/instance"] != r.Release {
				t.Errorf("%s: the instance is %v, want the release %s", o, labels["app.kubernetes.io/instance"], r.Release)
			}
			labels["app.kubernetes.io/instance"] = "(the release)"
			key := o.Text("kind") + " of " + o.Text("metadata", "labels", "app.kubernetes.io/component")
			if diff := cmp.Diff(labels, got[key]); got[key] != nil && diff != "" {
				t.Errorf("%s: -this -others\n%s", o, diff)
			}
			got[key] = labels
		}
	})
	text, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const why = "# No line of this file may ever change: Kubernetes refuses a Deployment with another\n# selector, so nobody could upgrade. A new component is a new entry.\n"
	compareGolden(t, testdata+"/selectors.yaml", append([]byte(why), text...))
}

// TestImages: nothing runs but our image, or the adapter's where it is another.
func TestImages(t *testing.T) {
	ours := regexp.MustCompile(`^(registry\.example\.com/)?dispatch-admission(:|@)`)
	each(t, func(t *testing.T, r rendering) {
		pods := podTemplates(t, r.Rendered)
		for _, p := range pods {
			for _, c := range p.containers() {
				own := r.Name == "adapter-sidecar" && c.Name == "adapter" && c.Image == "registry.example.com/own-hook:v2"
				if !ours.MatchString(c.Image) && !own {
					t.Errorf("%s: %s runs %s", p.owner, c.Name, c.Image)
				}
			}
		}
		if len(pods) == 0 && r.Name != "subchart-disabled" {
			t.Error("there are no pods to look at")
		}
	})
}

// TestCapabilities: of what the cluster serves, the chart looks at two kinds only, for
// what is decided by more differs between `helm install` and `helm template`.
func TestCapabilities(t *testing.T) {
	known := []string{
		"admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
		"dispatch.phpboyscout.uk/v1alpha1/AdmissionGate",
	}
	asked := regexp.MustCompile(`Capabilities\.([A-Za-z.]+)\s*"?([^")\s]*)`)
	uses := 0
	for _, file := range loadChart(t).Templates {
		for _, m := range asked.FindAllStringSubmatch(string(file.Data), -1) {
			uses++
			if m[1] != "APIVersions.Has" || !slices.Contains(known, m[2]) {
				t.Errorf("%s: asks for %s", file.Name, m[0])
			}
		}
	}
	if uses == 0 {
		t.Error("no use was found: this test looks at nothing")
	}
}

// TestExtraObjects: an object and a text are templates both.
func TestExtraObjects(t *testing.T) {
	r, err := renderValues(t, map[string]any{"extraObjects": []any{
		map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "{{ .Release.Name }}-a", "namespace": "x"}},
		"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Values.lease.name }}-b\n  namespace: {{ .Release.Namespace }}\n",
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ConfigMap x/gate-a", "ConfigMap gates/dispatch-admission-b"} {
		if !slices.ContainsFunc(r.Objects, func(o matrix.Object) bool { return o.String() == want }) {
			t.Errorf("%s was not rendered", want)
		}
	}
}
