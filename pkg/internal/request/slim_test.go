package request

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// plant fills everything below v, and writes the path of every text into it.
func plant(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("<" + path + ">")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint('x')
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		plant(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		plant(v.Index(0), path)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		plant(key, path+" key")
		plant(value, path)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[resource.Quantity]() {
			v.Set(reflect.ValueOf(resource.MustParse("3")))
			return
		}
		for field, value := range v.Fields() {
			if field.IsExported() {
				plant(value, strings.TrimPrefix(path+"."+field.Name, "."))
			}
		}
	default:
		panic("plant: " + v.Kind().String())
	}
}

// TestSlimKeeps: the whole of what is kept, so that a field that Kubernetes adds
// later is dropped until somebody decides otherwise.
func TestSlimKeeps(t *testing.T) {
	var ps kueue.PodSet
	plant(reflect.ValueOf(&ps).Elem(), "")
	data, err := json.Marshal(Slim([]kueue.PodSet{ps}))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for part := range strings.SplitSeq(strings.NewReplacer(`\u003c`, "\n<", `\u003e`, ">\n").Replace(string(data)), "\n") {
		if strings.HasPrefix(part, "<") {
			texts = append(texts, strings.Trim(part, "<>"))
		}
	}
	slices.Sort(texts)
	want := []string{
		"Name",
		"Template.ObjectMeta.Annotations", "Template.ObjectMeta.Annotations key",
		"Template.ObjectMeta.Labels", "Template.ObjectMeta.Labels key",
		"Template.Spec.Containers.Image", "Template.Spec.Containers.Name",
		"Template.Spec.Containers.Resources.Limits key", "Template.Spec.Containers.Resources.Requests key",
		"Template.Spec.DeprecatedServiceAccount",
		"Template.Spec.InitContainers.Image", "Template.Spec.InitContainers.Name",
		"Template.Spec.InitContainers.Resources.Limits key", "Template.Spec.InitContainers.Resources.Requests key",
		"Template.Spec.InitContainers.RestartPolicy",
		"Template.Spec.NodeSelector", "Template.Spec.NodeSelector key",
		"Template.Spec.Overhead key", "Template.Spec.PriorityClassName",
		"Template.Spec.Resources.Limits key", "Template.Spec.Resources.Requests key",
		"Template.Spec.ServiceAccountName",
		"Template.Spec.Tolerations.Effect", "Template.Spec.Tolerations.Key", "Template.Spec.Tolerations.Operator", "Template.Spec.Tolerations.Value",
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// secret is planted wherever a pod may have one.
const secret = "s3cr3t"

// randomInput has a random subset of everything that Build reads, and secrets all
// over the rest.
func randomInput(r *rand.Rand) Input {
	kinds := []func(*Input){
		owners(), trainJob("tj"), trainJob(ulidName), owners(ref("batch/v1", "Job", "j", true)), owners(ref("v1", "Pod", "p", true)),
	}
	in := input(kinds[r.IntN(len(kinds))], podSets())
	for _, name := range []string{"launcher", "node", "third"}[:1+r.IntN(3)] {
		podSetOf(name, int32(r.IntN(4)))(&in)
	}
	for i := range in.Workload.Spec.PodSets {
		randomTemplate(r, &in.Workload.Spec.PodSets[i].Template)
	}
	return in
}

func randomTemplate(r *rand.Rand, t *corev1.PodTemplateSpec) {
	some := func(set func()) {
		if r.IntN(2) == 0 {
			set()
		}
	}
	some(func() { t.Labels = strs{"l": fmt.Sprint(r.IntN(3)), ancestorLabel: ancestorTrainer} })
	some(func() {
		t.Annotations = strs{"a": "1", defaultContainerAnnotation: fmt.Sprint("c", r.IntN(4)), "kubectl.kubernetes.io/last-applied-configuration": secret}
	})
	some(func() { t.Spec.ServiceAccountName = "robot" })
	some(func() { t.Spec.DeprecatedServiceAccount = "old" })
	some(func() { t.Spec.PriorityClassName = "high" })
	some(func() { t.Spec.NodeSelector = strs{"n": "1"} })
	some(func() { t.Spec.Tolerations = []corev1.Toleration{{Key: "k", TolerationSeconds: new(int64(4))}} })
	some(func() { t.Spec.Overhead = list("cpu", "100m") })
	some(func() {
		t.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu", "3"), Limits: list("memory", "1Gi")}
	})
	t.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}}
	t.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	t.Spec.InitContainers, t.Spec.Containers = nil, nil
	for i := range r.IntN(3) {
		t.Spec.InitContainers = append(t.Spec.InitContainers, randomContainer(r, i))
	}
	for i := range 1 + r.IntN(3) {
		t.Spec.Containers = append(t.Spec.Containers, randomContainer(r, i))
	}
}

func randomContainer(r *rand.Rand, i int) corev1.Container {
	c := corev1.Container{
		Name: fmt.Sprint("c", i), Image: fmt.Sprint("image:", r.IntN(5)), Command: []string{secret}, Args: []string{secret},
		Env:     []corev1.EnvVar{{Name: "KEY", Value: secret}},
		EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}}},
	}
	if r.IntN(2) == 0 {
		c.Resources.Requests = list("cpu", fmt.Sprint(r.IntN(5)), "nvidia.com/gpu", "1")
	}
	if r.IntN(2) == 0 {
		c.Resources.Limits = list("memory", fmt.Sprint(r.IntN(5), "Gi"), "cpu", "8")
	}
	if r.IntN(2) == 0 {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	}
	return c
}

func checkSlim(t *testing.T, seed uint64) {
	t.Helper()
	full := randomInput(rand.New(rand.NewPCG(seed, 1)))
	slim := full
	slim.Workload = full.Workload.DeepCopy()
	slim.Workload.Spec.PodSets = Slim(full.Workload.Spec.PodSets)
	if diff := cmp.Diff(Build(full), Build(slim)); diff != "" {
		t.Fatalf("seed %d: slimmed pod sets make another request (-full +slim):\n%s", seed, diff)
	}
	if diff := cmp.Diff(slim.Workload.Spec.PodSets, Slim(slim.Workload.Spec.PodSets)); diff != "" {
		t.Fatalf("seed %d: slimming twice changes more (-once +twice):\n%s", seed, diff)
	}
	for what, v := range map[string]any{"the request": Build(full), "the slimmed pod sets": slim.Workload.Spec.PodSets} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), secret) {
			t.Fatalf("seed %d: %s have a secret: %s", seed, what, data)
		}
	}
	if data, _ := json.Marshal(full.Workload); !strings.Contains(string(data), secret) {
		t.Fatalf("seed %d: no secret was planted", seed)
	}
}

func TestSlim(t *testing.T) {
	for seed := range uint64(500) {
		checkSlim(t, seed)
	}
	if got := Slim(nil); got != nil {
		t.Errorf("no pod sets became %v", got)
	}
}

func FuzzSlim(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(seed)
	}
	f.Fuzz(checkSlim)
}

func TestWithholds(t *testing.T) {
	cases := map[string]struct {
		reason     string
		key, value string
		want       bool
	}{
		"Kubectl":      {reason: "the whole manifest, whatever it looks like", key: "kubectl.kubernetes.io/last-applied-configuration", value: "x", want: true},
		"UpperCase":    {reason: "annotation keys may have any case", key: "example.com/Last-Applied", value: "x", want: true},
		"NoDomain":     {reason: "nor need they a domain", key: "last-applied", value: "x", want: true},
		"Kopf":         {reason: "the same by another name", key: "kopf.zalando.org/last-handled-configuration", value: "x", want: true},
		"Kapp":         {reason: "the same by yet another name", key: "kapp.k14s.io/original", value: "x", want: true},
		"Rancher":      {reason: "compressed, so that only the key tells", key: "objectset.rio.cattle.io/applied", value: "H4sIAAAA", want: true},
		"Object":       {reason: "any object", key: "a", value: `{"apiVersion":"v1","kind":"Pod","spec":{}}`, want: true},
		"YAML":         {reason: "in either notation", key: "a", value: "apiVersion: v1\nkind: Pod\n", want: true},
		"PodSpec":      {reason: "or a part of one", key: "a", value: `{"containers":[{"image":"x","env":[]}]}`, want: true},
		"Marker":       {reason: "what was withheld stays so", key: "a", value: withheld, want: true},
		"Plain":        {reason: "an ordinary annotation", key: "example.com/note", value: "night run"},
		"JSON":         {reason: "JSON alone is no manifest", key: "k8s.v1.cni.cncf.io/networks", value: `[{"name":"rdma"}]`},
		"OneWord":      {reason: "a word alone is none either", key: "a", value: "which kind of image"},
		"Applied":      {reason: "a namesake of another tool", key: "example.com/applied", value: "x"},
		"RestartedAt":  {reason: "kubectl has harmless ones", key: "kubectl.kubernetes.io/restartedAt", value: "2026-03-02"},
		"EmptyElement": {reason: "nothing to hide", key: "a", value: ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			annotations := strs{tc.key: tc.value, "kept": "k"}
			wantShown, wantKept := maps.Clone(annotations), maps.Clone(annotations)
			if tc.want {
				delete(wantShown, tc.key)
				wantKept[tc.key] = "(withheld)"
			}
			if diff := cmp.Diff(wantShown, shown(annotations)); diff != "" {
				t.Errorf("%s: shown (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(wantKept, SlimAnnotations(annotations)); diff != "" {
				t.Errorf("%s: kept (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
