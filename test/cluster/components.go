package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Component names one process of a cluster. It also is the name of its log.
type Component string

// The components, in the order of their dependencies.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	Kwok              Component = "kwok"
	JobSet            Component = "jobset"
	Trainer           Component = "trainer"
	Kueue             Component = "kueue"
	// PodRunner runs the pods of Config.Programs; without those it is not there.
	PodRunner Component = "pod-runner"
)

// Components lists the components that every cluster without a node has unless it
// is bare, in the order of their dependencies.
func Components() []Component {
	return []Component{Etcd, APIServer, ControllerManager, Scheduler, Kwok, JobSet, Trainer, Kueue}
}

// Names of the ports of a cluster.
const (
	portEtcd          = "etcd"
	portEtcdPeer      = "etcd-peer"
	portAPI           = "kube-apiserver"
	portController    = "kube-controller-manager"
	portScheduler     = "kube-scheduler"
	portKwok          = "kwok"
	portJobSet        = "jobset"
	portJobSetProbe   = "jobset-probe"
	portTrainer       = "trainer"
	portTrainerProbe  = "trainer-probe"
	portTrainerStatus = "trainer-status"
	portKueue         = "kueue"
	portKueueProbe    = "kueue-probe"
	portPodRunner     = "pod-runner"
)

const (
	serviceRange   = "10.0.0.0/24"
	serviceIP      = "10.0.0.1" // of kubernetes.default
	frontProxyUser = "front-proxy-client"
)

// manager says where the shipped manifests of a manager expect it.
type manager struct{ namespace, serviceAccount string }

const (
	kueueNamespace   = "kueue-system"
	kueueSecret      = "kueue-webhook-server-cert"
	kueueWebhookHost = "kueue-webhook-service.kueue-system.svc"
)

var managers = map[Component]manager{
	JobSet:  {"jobset-system", "jobset-controller-manager"},
	Trainer: {"kubeflow-system", "kubeflow-trainer-controller-manager"},
	Kueue:   {kueueNamespace, "kueue-controller-manager"},
}

// component is how one program is run and known to be ready.
type component struct {
	name  Component
	ports []string
	// prepare writes what the program reads; it runs whenever the ports are new.
	prepare func() error
	args    func() []string
	env     []string
	// exe is the program's path, if it is not in the toolbox under its name.
	exe string
	// files are what the program inherits, from file descriptor 3 on.
	files func() []*os.File
	ready func(context.Context) error
	// moved tells others that the ports have changed.
	moved func(context.Context) error
}

// components describes all programs of this cluster.
func (c *Cluster) components() map[Component]*component {
	all := append(c.nodeComponents(), c.etcd(), c.apiServer(), c.controllerManager(), c.scheduler())
	if !c.config.Bare {
		all = append(all, c.jobSet(), c.trainer(), c.kueue())
	}
	if c.node == nil {
		all = append(all, c.kwok())
	}
	m := map[Component]*component{}
	for _, comp := range all {
		m[comp.name] = comp
	}
	if len(c.config.Programs) > 0 {
		m[PodRunner] = c.podRunner()
	}
	return m
}

func (c *Cluster) etcd() *component {
	return &component{
		name:  Etcd,
		ports: []string{portEtcd, portEtcdPeer},
		args: func() []string {
			client, peer := "http://"+c.ports.address(portEtcd), "http://"+c.ports.address(portEtcdPeer)
			return []string{
				"--data-dir=" + c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
				"--quota-backend-bytes=8589934592",
				"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
				"--initial-cluster=default=" + peer,
			}
		},
		ready: func(ctx context.Context) error { return c.probe(ctx, "http://"+c.ports.address(portEtcd)+"/readyz") },
	}
}

func (c *Cluster) apiServer() *component {
	return &component{
		name:    APIServer,
		ports:   []string{portAPI},
		prepare: c.connect,
		args: func() []string {
			return slices.Concat([]string{
				"--etcd-servers=http://" + c.ports.address(portEtcd),
				fmt.Sprintf("--secure-port=%d", c.ports.get(portAPI)),
				"--service-cluster-ip-range=" + serviceRange,
				"--allow-privileged=true", "--authorization-mode=Node,RBAC",
				"--enable-admission-plugins=NodeRestriction",
				"--client-ca-file=" + c.pki.path("ca.crt"), "--cert-dir=" + c.pki.dir,
				"--tls-cert-file=" + c.pki.path("apiserver.crt"), "--tls-private-key-file=" + c.pki.path("apiserver.key"),
				"--requestheader-client-ca-file=" + c.pki.path("ca.crt"),
				"--requestheader-allowed-names=" + frontProxyUser,
				"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
				"--requestheader-extra-headers-prefix=X-Remote-Extra-",
				"--proxy-client-cert-file=" + c.pki.path("front-proxy.crt"),
				"--proxy-client-key-file=" + c.pki.path("front-proxy.key"),
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file=" + c.pki.path("sa.pub"),
				"--service-account-signing-key-file=" + c.pki.path("sa.key"),
				"--audit-policy-file=" + c.path("audit-policy.yaml"), "--audit-log-path=" + c.AuditLog(),
				"--audit-log-maxsize=100000", // in one file, whatever its size
			}, c.reachArgs(), c.config.APIServerArgs)
		},
		ready: func(ctx context.Context) error { return c.api.get(ctx, "/readyz", nil) },
	}
}

// reachArgs say who can reach the API server, and how it reaches a kubelet.
func (c *Cluster) reachArgs() []string {
	if c.node == nil {
		return []string{"--bind-address=" + loopback, "--advertise-address=" + loopback, "--endpoint-reconciler-type=none"}
	}
	return []string{
		"--bind-address=0.0.0.0", "--advertise-address=" + nodeIP, // in the cluster's own network
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-certificate-authority=" + c.pki.path("ca.crt"),
		"--kubelet-client-certificate=" + c.pki.path("kubelet-client.crt"),
		"--kubelet-client-key=" + c.pki.path("kubelet-client.key"),
	}
}

func (c *Cluster) controllerManager() *component {
	config := c.path("kube-controller-manager.kubeconfig")
	return &component{
		name:  ControllerManager,
		ports: []string{portController},
		prepare: func() error {
			return c.writeClientKubeconfig(config, subject{name: "system:kube-controller-manager"})
		},
		args: func() []string {
			return append(c.controlPlaneArgs(config, portController),
				"--use-service-account-credentials=true",
				"--service-account-private-key-file="+c.pki.path("sa.key"), "--root-ca-file="+c.pki.path("ca.crt"),
				"--cluster-signing-cert-file="+c.pki.path("ca.crt"), "--cluster-signing-key-file="+c.pki.path("ca.key"))
		},
		ready: c.healthy(portController),
	}
}

func (c *Cluster) scheduler() *component {
	config := c.path("kube-scheduler.kubeconfig")
	return &component{
		name:  Scheduler,
		ports: []string{portScheduler},
		prepare: func() error {
			return c.writeClientKubeconfig(config, subject{name: "system:kube-scheduler"})
		},
		args:  func() []string { return c.controlPlaneArgs(config, portScheduler) },
		ready: c.healthy(portScheduler),
	}
}

// controlPlaneArgs are what controller manager and scheduler have in common.
func (c *Cluster) controlPlaneArgs(kubeconfig, port string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + loopback, fmt.Sprintf("--secure-port=%d", c.ports.get(port)),
		"--cert-dir=" + c.path("certs", port), "--leader-elect=false",
	}
}

// healthy probes the health endpoint of a control plane program.
func (c *Cluster) healthy(port string) func(context.Context) error {
	return func(ctx context.Context) error { return c.probe(ctx, "https://"+c.ports.address(port)+"/healthz") }
}

func (c *Cluster) kwok() *component {
	config := c.path("kwok.kubeconfig")
	return &component{
		name:  Kwok,
		ports: []string{portKwok},
		prepare: func() error {
			if err := c.writeStages(); err != nil {
				return err
			}
			return c.writeClientKubeconfig(config, subject{name: kwokUser, groups: []string{"system:masters"}})
		},
		args: func() []string {
			return []string{
				"--kubeconfig=" + config, "--config=" + c.path("stages.yaml"),
				"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=" + fakeNode + "=fake",
				"--node-lease-duration-seconds=40", "--server-address=" + c.ports.address(portKwok),
			}
		},
		ready: func(ctx context.Context) error { return c.probe(ctx, "http://"+c.ports.address(portKwok)+"/healthz") },
	}
}

func (c *Cluster) jobSet() *component {
	return c.managed(JobSet, []string{portJobSet, portJobSetProbe}, portJobSetProbe, c.jobSetConfig)
}

func (c *Cluster) trainer() *component {
	t := c.managed(Trainer, []string{portTrainer, portTrainerProbe, portTrainerStatus}, portTrainerProbe, c.trainerConfig)
	// Trainer has no setting for the directory of its certificate, but looks
	// below the one for temporary files.
	t.env = []string{"TMPDIR=" + c.path("trainer-tmp")}
	return t
}

func (c *Cluster) kueue() *component {
	return c.managed(Kueue, []string{portKueue, portKueueProbe}, portKueueProbe, c.kueueConfig)
}

// managed describes a manager that runs under its shipped ServiceAccount. The
// first of its ports is that of its webhooks.
func (c *Cluster) managed(name Component, ports []string, probePort string, config func() map[string]any) *component {
	file := c.path(string(name) + ".yaml")
	return &component{
		name:    name,
		ports:   ports,
		prepare: func() error { return writeYAML(file, config()) },
		args: func() []string {
			return []string{"--kubeconfig=" + c.path(string(name)+".kubeconfig"), "--config=" + file, "--zap-log-level=2"}
		},
		ready: func(ctx context.Context) error { return c.probe(ctx, "http://"+c.ports.address(probePort)+"/readyz") },
		moved: func(ctx context.Context) error { return c.applyBundle(ctx, name) },
	}
}

// inUse reports whether a program complained that its port is taken.
func inUse(output string) bool { return strings.Contains(output, "address already in use") }
