package podrunner

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// having returns a runner that has seen the objects.
func having(t *testing.T, objects ...runtime.Object) *runner {
	t.Helper()
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	maps, secrets := index(), index()
	for _, o := range objects {
		to := maps
		if _, ok := o.(*corev1.Secret); ok {
			to = secrets
		}
		if err := to.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return &runner{
		Config:     Config{APIHost: "127.0.0.1", APIPort: "6443"},
		configMaps: corelisters.NewConfigMapLister(maps), secrets: corelisters.NewSecretLister(secrets),
	}
}

func onNode() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "p", UID: "u", Labels: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{NodeName: "node-0", ServiceAccountName: "sa"},
		Status:     corev1.PodStatus{PodIP: "127.64.0.1", HostIP: hostIP},
	}
}

func TestEnvironment(t *testing.T) {
	yes := true
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	key := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: optional,
		}}
	}
	r := having(t,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "m"}, Data: map[string]string{"k": "v"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "s"}, Data: map[string][]byte{"k": []byte("hidden")}},
	)
	for name, tc := range map[string]struct {
		vars    []corev1.EnvVar
		want    string // NAME=VALUE, or the name alone if it is not to be set
		wantErr string
	}{
		"API server":        {nil, "KUBERNETES_SERVICE_HOST=127.0.0.1", ""},
		"value":             {[]corev1.EnvVar{{Name: "A", Value: "x"}}, "A=x", ""},
		"earlier variable":  {[]corev1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: "$(A)y"}}, "B=xy", ""},
		"later variable":    {[]corev1.EnvVar{{Name: "B", Value: "$(A)y"}, {Name: "A", Value: "x"}}, "B=$(A)y", ""},
		"escaped":           {[]corev1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: "$$(A)"}}, "B=$(A)", ""},
		"API server's port": {[]corev1.EnvVar{{Name: "A", Value: "$(KUBERNETES_SERVICE_PORT)"}}, "A=6443", ""},
		"name":              {[]corev1.EnvVar{{Name: "A", ValueFrom: field("metadata.name")}}, "A=p", ""},
		"label":             {[]corev1.EnvVar{{Name: "A", ValueFrom: field("metadata.labels['a']")}}, "A=b", ""},
		"node":              {[]corev1.EnvVar{{Name: "A", ValueFrom: field("spec.nodeName")}}, "A=node-0", ""},
		"address":           {[]corev1.EnvVar{{Name: "A", ValueFrom: field("status.podIP")}}, "A=127.64.0.1", ""},
		"ConfigMap":         {[]corev1.EnvVar{{Name: "A", ValueFrom: key("m", "k", nil)}}, "A=v", ""},
		"missing key":       {[]corev1.EnvVar{{Name: "A", ValueFrom: key("m", "x", nil)}}, "", "couldn't find key x in ConfigMap m"},
		"missing map":       {[]corev1.EnvVar{{Name: "A", ValueFrom: key("x", "k", nil)}}, "", "variable A"},
		"optional key":      {[]corev1.EnvVar{{Name: "A", ValueFrom: key("m", "x", &yes)}}, "A", ""},
		"optional map":      {[]corev1.EnvVar{{Name: "A", ValueFrom: key("x", "k", &yes)}}, "A", ""},
		"Secret": {[]corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k",
		}}}}, "A=hidden", ""},
		"unknown field": {[]corev1.EnvVar{{Name: "A", ValueFrom: field("spec.x")}}, "", "unsupported fieldPath"},
	} {
		t.Run(name, func(t *testing.T) {
			env, err := r.environment(onNode(), &corev1.Container{Env: tc.vars})
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			variable, value, set := strings.Cut(tc.want, "=")
			if got, ok := env[variable]; err == nil && (ok != set || got != value) {
				t.Errorf("%s = %q, set: %t; want %q", variable, got, ok, tc.want)
			}
		})
	}
}

func TestEnvironmentFromWholeObjects(t *testing.T) {
	r := having(t,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "m"}, Data: map[string]string{"K": "v", "L": "v"}})
	env, err := r.environment(onNode(), &corev1.Container{
		EnvFrom: []corev1.EnvFromSource{{Prefix: "P_", ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "m"},
		}}},
		Env: []corev1.EnvVar{{Name: "P_L", Value: "own"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if env["P_K"] != "v" || env["P_L"] != "own" {
		t.Errorf("P_K = %q, P_L = %q; want v, and own before the map's", env["P_K"], env["P_L"])
	}
}

func TestArguments(t *testing.T) {
	ports := []corev1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 80}}
	in := []string{
		"-metrics-bind-address=:8080", ":80", "--listen", ":8080",
		"-addr=0.0.0.0:8080", "-addr=127.0.0.1:80", "-other=:9090", "-x=:18080", "-a=$(A)", "-b=$(B)", "http://h:80",
	}
	want := []string{
		"-metrics-bind-address=1.2.3.4:8080", "1.2.3.4:80", "--listen", "1.2.3.4:8080",
		"-addr=0.0.0.0:8080", "-addr=127.0.0.1:80", "-other=:9090", "-x=:18080", "-a=1.2.3.4:80", "-b=$(B)", "http://h:80",
	}
	if got := arguments(in, map[string]string{"A": ":80"}, ports, "1.2.3.4"); !slices.Equal(got, want) {
		t.Errorf("arguments\n got %q\nwant %q", got, want)
	}
}
