package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// The components that a cluster with a node has instead of Kwok.
const (
	// Forward relays connections to the API server into the cluster's network.
	Forward    Component = "forward"
	Containerd Component = "containerd"
	Kubelet    Component = "kubelet"
	KubeProxy  Component = "kube-proxy"
	CoreDNS    Component = "coredns"
)

var nodeOnly = []Component{Forward, Containerd, Kubelet, KubeProxy, CoreDNS}

// What the node's programs serve for probes, in the cluster's own network, where
// nobody else can have taken a port.
const (
	kubeletHealth   = "127.0.0.1:10248"
	kubeProxyHealth = "127.0.0.1:10256"
	dnsHealth       = "127.0.0.1:8181"
)

const (
	kubeletAPIUser = "system:kube-apiserver-kubelet-client"
	nodeUser       = "system:node:" + NodeName
	proxyUser      = "system:kube-proxy" // bound to its role by the API server
	dnsUser        = "system:coredns"
	pauseImage     = "docker.io/library/pause:local"
)

// nodeRights are what the node's programs may do beyond what every API server
// grants to nodes and to kube-proxy.
const nodeRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:kube-apiserver-to-kubelet}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:kubelet-api-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "` + kubeletAPIUser + `"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [services, namespaces, pods], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "` + dnsUser + `"}]
`

// nodeComponents describes the programs of the node.
func (c *Cluster) nodeComponents() []*component {
	if c.node == nil {
		return nil
	}
	return []*component{c.forward(), c.containerd(), c.kubelet(), c.kubeProxy(), c.coreDNS()}
}

func (c *Cluster) forward() *component {
	return &component{
		name:  Forward,
		exe:   c.nodeTools.Bin("forward"),
		args:  func() []string { return []string{c.ports.address(portAPI)} },
		files: func() []*os.File { return []*os.File{c.node.door} },
		// It serves as soon as it runs. That it does is seen with the API server.
		ready: func(context.Context) error { return nil },
	}
}

func (c *Cluster) containerd() *component {
	config := c.path("containerd.toml")
	return &component{
		name: Containerd,
		exe:  systemProgram("containerd"),
		prepare: func() error {
			text, err := c.containerdConfig()
			if err != nil {
				return err
			}
			network := filepath.Join(c.node.dir, "run", "cni")
			return errors.Join(
				os.WriteFile(config, []byte(text), 0o644),
				os.MkdirAll(network, 0o755),
				os.WriteFile(filepath.Join(network, "10-bridge.conflist"), []byte(podNetwork), 0o644),
			)
		},
		args: func() []string { return []string{"--config=" + config} },
		ready: func(ctx context.Context) error {
			_, err := c.ctr(ctx, "version")
			return err
		},
	}
}

// systemProgram returns the path of an installed program as the kernel tells it
// of a process. CheckNode has found it.
func systemProgram(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return name
	}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	return path
}

// containerdConfig is the configuration of containerd 1.x; 2.x reads it too.
func (c *Cluster) containerdConfig() (string, error) {
	store, err := snapshotter(c.node.dir)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true # where the cluster itself may not be preferred
  disable_apparmor = true       # its profiles belong to the whole machine
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "/run/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        ShimCgroup = "/%s/%s"
`, pauseImage, cniPlugins, store, c.node.id, shims), nil
}

// podNetwork connects pods to each other and to the node by a bridge.
const podNetwork = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podRange + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

func (c *Cluster) kubelet() *component {
	config, client := c.path("kubelet.yaml"), c.path("kubelet.kubeconfig")
	return &component{
		name: Kubelet,
		exe:  c.nodeTools.Bin("kubelet"),
		prepare: func() error {
			return errors.Join(
				c.pki.writeNode(),
				c.writeClientKubeconfig(client, subject{name: nodeUser, groups: []string{"system:nodes"}}),
				writeYAML(config, c.kubeletConfig()),
			)
		},
		args: func() []string {
			return []string{"--config=" + config, "--kubeconfig=" + client, "--hostname-override=" + NodeName, "--node-ip=" + nodeIP}
		},
		ready: func(ctx context.Context) error { return c.probe(ctx, "http://"+kubeletHealth+"/healthz") },
	}
}

func (c *Cluster) kubeletConfig() map[string]any {
	return map[string]any{
		"apiVersion":     "kubelet.config.k8s.io/v1beta1",
		"kind":           "KubeletConfiguration",
		"address":        nodeIP,
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": c.pki.path("ca.crt")}},
		"tlsCertFile":    c.pki.path("node.crt"), "tlsPrivateKeyFile": c.pki.path("node.key"),
		"cgroupRoot": "/" + c.node.id, "cgroupDriver": "cgroupfs", "failCgroupV1": false,
		"enforceNodeAllocatable": []string{"none"}, // the machine is not ours to divide
		"failSwapOn":             false,
		"clusterDNS":             []string{nodeIP}, "clusterDomain": clusterDomain,
		"resolvConf":    "",    // there is nobody else to ask inside
		"syncFrequency": "10s", // Secrets and ConfigMaps reach mounted files that soon, not in a minute or two
		// A full disk of the machine is no reason to evict pods or drop images.
		"evictionHard":                map[string]string{"memory.available": "100Mi"},
		"imageGCHighThresholdPercent": 100,
	}
}

func (c *Cluster) kubeProxy() *component {
	config, client := c.path("kube-proxy.yaml"), c.path("kube-proxy.kubeconfig")
	return &component{
		name: KubeProxy,
		exe:  c.nodeTools.Bin("kube-proxy"),
		prepare: func() error {
			return errors.Join(
				c.writeClientKubeconfig(client, subject{name: proxyUser}),
				writeYAML(config, map[string]any{
					"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
					"kind":             "KubeProxyConfiguration",
					"clientConnection": map[string]any{"kubeconfig": client},
					"mode":             "iptables",
					"clusterCIDR":      podRange,
					"hostnameOverride": NodeName,
					// The limits of connection tracking belong to the whole machine.
					"conntrack": map[string]any{
						"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
					},
				}),
			)
		},
		args:  func() []string { return []string{"--config=" + config} },
		ready: func(ctx context.Context) error { return c.probe(ctx, "http://"+kubeProxyHealth+"/healthz") },
	}
}

func (c *Cluster) coreDNS() *component {
	config, client := c.path("Corefile"), c.path("coredns.kubeconfig")
	return &component{
		name: CoreDNS,
		exe:  c.nodeTools.Bin("coredns"),
		prepare: func() error {
			text := fmt.Sprintf(".:53 {\n  bind %s\n  errors\n  ready %s\n  kubernetes %s in-addr.arpa {\n    kubeconfig %s\n  }\n}\n",
				nodeIP, dnsHealth, clusterDomain, client)
			return errors.Join(
				c.writeClientKubeconfig(client, subject{name: dnsUser}),
				os.WriteFile(config, []byte(text), 0o644),
			)
		},
		args:  func() []string { return []string{"-conf=" + config} },
		ready: func(ctx context.Context) error { return c.probe(ctx, "http://"+dnsHealth+"/ready") },
	}
}

// startNode starts the node's programs and waits until it takes pods.
func (c *Cluster) startNode(ctx context.Context) error {
	if err := firstError(ctx,
		func(ctx context.Context) error { return c.grant(ctx, nodeRights) },
		func(ctx context.Context) error { return c.launch(ctx, Containerd) },
	); err != nil {
		return err
	}
	pause := c.path("tmp", "pause.tar")
	if err := WriteImage(pause, pauseImage, c.nodeTools.Bin("pause")); err != nil {
		return fmt.Errorf("make the image of pause: %w", err)
	}
	if err := c.LoadImage(ctx, pause); err != nil {
		return err
	}
	return firstError(ctx,
		func(ctx context.Context) error { return c.launch(ctx, Kubelet) },
		func(ctx context.Context) error { return c.launch(ctx, KubeProxy) },
		func(ctx context.Context) error { return c.launch(ctx, CoreDNS) },
	)
}

// grant creates objects, given as YAML documents.
func (c *Cluster) grant(ctx context.Context, documents string) error {
	for _, document := range splitDocuments([]byte(documents)) {
		raw, err := yaml.YAMLToJSON(document)
		if err != nil {
			return err
		}
		if err := c.api.ensure(ctx, raw); err != nil {
			return fmt.Errorf("rights of the node's programs: %w", err)
		}
	}
	return nil
}
