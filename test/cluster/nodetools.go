package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
)

// nodePrograms are what a node needs beside the packages that CheckNode asks for.
var nodePrograms = []program{
	{"kubelet", "k8s.io/kubernetes/cmd/kubelet", modKubernetes},
	{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", modKubernetes},
}

// ownPrograms are parts of this module.
var ownPrograms = []program{
	{"forward", self + "/cmd/forward", self},
	{"pause", self + "/cmd/pause", self},
}

// dnsPrograms are in a module of their own, in the directory dnsModule: CoreDNS
// would change versions that the control plane is pinned to.
var dnsPrograms = []program{{"coredns", self + "/coredns", "github.com/coredns/coredns"}}

const dnsModule = "coredns"

var nodeTools = toolset{
	suffix: "-node",
	source: []string{
		"cmd/forward/main.go", "cmd/pause/main.go",
		dnsModule + "/main.go", dnsModule + "/go.mod", dnsModule + "/go.sum",
	},
	fill: fillNodeTools,
}

func fillNodeTools(ctx context.Context, src string, t *Toolbox, progress io.Writer) error {
	fmt.Fprintln(progress, "building the node's programs, once per set of versions: about three minutes on two cores")
	mods, err := listModules(ctx, src, programs)
	if err != nil {
		return err
	}
	flags, err := linkerFlags(mods)
	if err != nil {
		return err
	}
	if err := t.compile(ctx, src, slices.Concat(nodePrograms, ownPrograms), flags, progress); err != nil {
		return err
	}
	t.note(map[string]module{modKubernetes: mods[modKubernetes]})
	dns := filepath.Join(src, dnsModule)
	if mods, err = listModules(ctx, dns, dnsPrograms); err != nil {
		return err
	}
	t.note(mods)
	return t.compile(ctx, dns, dnsPrograms, "-s -w", progress)
}
