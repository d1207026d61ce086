package cluster

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// program is one Go main that a cluster needs.
type program struct {
	name   string // file name in the cache
	pkg    string // import path
	module string // the module whose version it carries
}

var programs = []program{
	{"etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", modKubernetes},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", modKubernetes},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", modKubernetes},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl", modKubernetes},
	{"helm", "helm.sh/helm/v3/cmd/helm", modHelm},
	{"kwok", "sigs.k8s.io/kwok/cmd/kwok", modKwok},
	{"kueue", "sigs.k8s.io/kueue/cmd/kueue", modKueue},
	{"jobset", "sigs.k8s.io/jobset", modJobSet},
	{"trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", modTrainer},
}

const (
	modKubernetes = "k8s.io/kubernetes"
	modHelm       = "helm.sh/helm/v3"
	modKwok       = "sigs.k8s.io/kwok"
	modKueue      = "sigs.k8s.io/kueue"
	modJobSet     = "sigs.k8s.io/jobset"
	modTrainer    = "github.com/kubeflow/trainer/v2"
)

var majorSuffix = regexp.MustCompile(`^v[0-9]+$`)

// builtName is the file name that go build gives the main package pkg.
func builtName(pkg string) string {
	parts := strings.Split(pkg, "/")
	last := parts[len(parts)-1]
	if majorSuffix.MatchString(last) && len(parts) > 1 {
		return parts[len(parts)-2]
	}
	return last
}

// module is what the go command knows of one pinned module.
type module struct {
	Version string
	Dir     string
}

// listModules asks the go command, in this module, for the versions and source
// directories of the programs' modules. It downloads them first: those that are not
// there have no directory.
func listModules(ctx context.Context, src string, of []program) (map[string]module, error) {
	names := moduleNames(of)
	if _, err := runGo(ctx, src, append([]string{"mod", "download"}, names...)...); err != nil {
		return nil, fmt.Errorf("download the programs' modules: %w", err)
	}
	out, err := runGo(ctx, src, append([]string{"list", "-m", "-f", "{{.Path}}\t{{.Version}}\t{{.Dir}}"}, names...)...)
	if err != nil {
		return nil, fmt.Errorf("read the pinned versions: %w", err)
	}
	return parseModules(out)
}

// moduleNames lists the modules of programs, each once.
func moduleNames(of []program) []string {
	var names []string
	for _, p := range of {
		if !slices.Contains(names, p.module) {
			names = append(names, p.module)
		}
	}
	return names
}

func parseModules(text string) (map[string]module, error) {
	found := map[string]module{}
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(fields) != 3 {
			return nil, fmt.Errorf("unexpected line of go list -m: %q", line)
		}
		found[fields[0]] = module{Version: fields[1], Dir: fields[2]}
	}
	return found, nil
}

// linkerFlags stamps the versions that a released build would carry. Without
// them Kueue refuses the API server as too old, and helm templates charts for
// Kubernetes 1.20.
func linkerFlags(mods map[string]module) (string, error) {
	kubernetes := mods[modKubernetes].Version
	major, minor, err := majorMinor(kubernetes)
	if err != nil {
		return "", err
	}
	flags := []string{"-s", "-w"}
	set := func(variable, value string) { flags = append(flags, "-X", variable+"="+value) }
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		set(pkg+".gitVersion", kubernetes)
		set(pkg+".gitMajor", major)
		set(pkg+".gitMinor", minor)
		set(pkg+".gitTreeState", "clean")
	}
	for _, pkg := range []string{modHelm + "/pkg/chartutil", modHelm + "/pkg/lint/rules"} {
		set(pkg+".k8sVersionMajor", major)
		set(pkg+".k8sVersionMinor", minor)
	}
	set(modHelm+"/internal/version.version", mods[modHelm].Version)
	set(modKueue+"/pkg/version.GitVersion", mods[modKueue].Version)
	set(modJobSet+"/pkg/version.GitVersion", mods[modJobSet].Version)
	return strings.Join(flags, " "), nil
}

// majorMinor splits "v1.36.2" into "1" and "36".
func majorMinor(version string) (major, minor string, err error) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return "", "", fmt.Errorf("version %q of %s: want vMAJOR.MINOR.PATCH", version, modKubernetes)
	}
	return parts[0], parts[1], nil
}
