package cluster

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestBuiltName(t *testing.T) {
	for pkg, want := range map[string]string{
		"go.etcd.io/etcd/server/v3":              "server",
		"sigs.k8s.io/jobset":                     "jobset",
		"k8s.io/kubernetes/cmd/kube-apiserver":   "kube-apiserver",
		"github.com/x/v2/cmd/controller-manager": "controller-manager",
	} {
		if got := builtName(pkg); got != want {
			t.Errorf("builtName(%q) = %q, want %q", pkg, got, want)
		}
	}
}

// TestToolsMatchPrograms keeps go.mod's tool directives, by which go mod tidy
// keeps the pins, and the programs that are built the same.
func TestToolsMatchPrograms(t *testing.T) {
	data, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, tools, ok := strings.Cut(string(data), "\ntool (\n")
	if !ok {
		t.Fatal("go.mod has no block of tools")
	}
	tools, _, _ = strings.Cut(tools, "\n)")
	all := slices.Concat(programs, nodePrograms)
	if got := len(strings.Split(tools, "\n")); got != len(all) {
		t.Errorf("go.mod names %d tools, programs %d", got, len(all))
	}
	for _, p := range all {
		if !strings.Contains(tools+"\n", "\t"+p.pkg+"\n") {
			t.Errorf("go.mod has no tool line for %s", p.pkg)
		}
	}
}

func TestLinkerFlags(t *testing.T) {
	mods, err := parseModules("k8s.io/kubernetes\tv1.36.2\t/m/k\nhelm.sh/helm/v3\tv3.21.4\t/m/h\n" +
		"sigs.k8s.io/kueue\tv0.19.2\t/m/q\nsigs.k8s.io/jobset\tv0.12.0\t/m/j\n")
	if err != nil {
		t.Fatal(err)
	}
	flags, err := linkerFlags(mods)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.36.2", "-X k8s.io/component-base/version.gitMinor=36",
		"-X k8s.io/client-go/pkg/version.gitVersion=v1.36.2", "-X sigs.k8s.io/kueue/pkg/version.GitVersion=v0.19.2",
		"-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36", "-X helm.sh/helm/v3/internal/version.version=v3.21.4",
	} {
		if !strings.Contains(flags+" ", want+" ") {
			t.Errorf("%q is not in %q", want, flags)
		}
	}
	if _, err := linkerFlags(map[string]module{modKubernetes: {Version: "(devel)"}}); err == nil {
		t.Error("a Kubernetes without a version is accepted")
	}
	if _, err := parseModules("k8s.io/kubernetes v1\n"); err == nil {
		t.Error("a line without tabs is accepted")
	}
}

func TestHashKey(t *testing.T) {
	base := hashKey([]byte("mod"), []byte("sum"))
	if again := hashKey([]byte("mod"), []byte("sum")); again != base {
		t.Errorf("the same input gives %s and %s", base, again)
	}
	for reason, other := range map[string]string{
		"a part changed":          hashKey([]byte("mod"), []byte("sun")),
		"bytes moved":             hashKey([]byte("mods"), []byte("um")),
		"an empty part was added": hashKey([]byte("mod"), []byte("sum"), nil),
	} {
		if other == base {
			t.Errorf("%s, but the key is the same", reason)
		}
	}
}

func TestReadBuild(t *testing.T) {
	var compiled atomic.Int64
	complaints := readBuild(strings.NewReader("internal/abi\ngolang.org/x/net/http2\n# k8s.io/bad\nbad.go:3:1: syntax error\n"+
		"go: downloading x v1.0.0\ngopkg.in/yaml.v3\n"), &compiled)
	if compiled.Load() != 3 {
		t.Errorf("%d packages, want 3", compiled.Load())
	}
	if got := strings.Join(complaints, "|"); got != "# k8s.io/bad|bad.go:3:1: syntax error|go: downloading x v1.0.0" {
		t.Errorf("complaints = %q", got)
	}
}

// TestListModulesDownloads: on a machine that has never built this, a module has
// its sources too.
func TestListModulesDownloads(t *testing.T) {
	had, err := runGo(t.Context(), ".", "env", "GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOPROXY", "file://"+filepath.Join(strings.TrimSpace(had), "cache", "download"))
	t.Setenv("GOMODCACHE", t.TempDir())
	t.Setenv("GONOSUMDB", "*") // go.sum has them
	t.Cleanup(func() {         // whose directories are read-only
		if _, err := runGo(context.WithoutCancel(t.Context()), ".", "clean", "-modcache"); err != nil {
			t.Error(err)
		}
	})
	const yaml = "sigs.k8s.io/yaml"
	mods, err := listModules(t.Context(), ".", []program{{module: yaml}})
	if err != nil {
		t.Fatal(err)
	}
	if dir := mods[yaml].Dir; !isFile(filepath.Join(dir, "yaml.go")) {
		t.Errorf("the sources of %s are in %q, want them there", yaml, dir)
	}
}
