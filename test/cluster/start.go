package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// startLimit is far more than a start takes, also on a slow machine with many of them.
const startLimit = 10 * time.Minute

// Start builds the programs if need be, starts a cluster and returns when all of
// it is ready. The context bounds the start only; end the cluster with Stop.
// Nothing is left running if it returns an error.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if config.Progress == nil {
		config.Progress = io.Discard
	}
	config.Progress = &syncWriter{w: config.Progress}
	if err := config.check(); err != nil { // before anything takes minutes
		return nil, err
	}
	tools, err := Build(ctx, config.Progress)
	if err != nil {
		return nil, err
	}
	var forNode *Toolbox
	if config.Node {
		if forNode, err = BuildNode(ctx, config.Progress); err != nil {
			return nil, err
		}
	}
	c, err := newCluster(ctx, config, tools, forNode)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %s", startLimit))
	defer cancel()
	startCtx, abort := context.WithCancelCause(limited)
	defer abort(nil)
	c.abort = abort
	if err := c.bringUp(startCtx); err != nil {
		if broken := c.Err(); broken != nil {
			err = broken // the cause; others only waited in vain
		}
		c.temporary = false // its logs are worth keeping
		return nil, errors.Join(err, c.Stop())
	}
	c.say("ready: KUBECONFIG=%s", c.Kubeconfig())
	return c, nil
}

// check refuses what no cluster can be.
func (config *Config) check() error {
	if config.Node && len(config.Programs) > 0 {
		return errors.New("Config.Node and Config.Programs exclude each other: a real node runs all pods as containers; leave Programs out and give the node their images by LoadImage, or leave Node out")
	}
	if config.Node {
		return CheckNode()
	}
	return checkPrograms(config.Programs)
}

// newCluster prepares everything that can be prepared before a process runs.
// Without a node, forNode is nil.
func newCluster(ctx context.Context, config Config, tools, forNode *Toolbox) (*Cluster, error) {
	c := &Cluster{
		config: config, tools: tools, nodeTools: forNode, ports: newPortSet(), begin: time.Now(),
		running: map[Component]*process{}, done: make(chan struct{}),
	}
	if err := c.makeDirs(); err != nil {
		return nil, err
	}
	var err error
	if c.pki, err = newPKI(c.path("pki")); err != nil {
		return nil, fmt.Errorf("create certificates: %w", err)
	}
	// Trainer looks for its certificate below its directory for temporary files.
	if err := os.Symlink(c.pki.path("webhook"), c.path("trainer-tmp", "k8s-webhook-server", "serving-certs")); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.path("audit-policy.yaml"), []byte(auditPolicy), 0o644); err != nil {
		return nil, err
	}
	if config.Node {
		if err := c.makeNode(ctx); err != nil {
			return nil, err
		}
	}
	c.probes = newProbes(c.dialer())
	c.comps = c.components()
	for _, comp := range c.comps {
		if err := c.ports.reserve(comp.ports...); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	if c.node != nil {
		var err error
		if c.node.door, err = c.ports.file(portAPI); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// makeNode prepares what a node needs beside the control plane.
func (c *Cluster) makeNode(ctx context.Context) error {
	if err := checkVisible(c.dir, c.tools.Dir, c.nodeTools.Dir); err != nil {
		return err
	}
	if err := c.pki.writeKubeletClient(); err != nil {
		return err
	}
	var err error
	c.node, err = newNode(ctx, c.dir, c.config.Detached)
	return err
}

// dialer connects to the cluster's programs.
func (c *Cluster) dialer() dialFunc {
	if c.node != nil {
		return c.node.inside.dial
	}
	return new(net.Dialer).DialContext
}

func (c *Cluster) makeDirs() error {
	c.dir = c.config.Dir
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "cluster-")
		if err != nil {
			return err
		}
		c.dir, c.temporary = dir, true
	}
	if entries, err := os.ReadDir(c.dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("directory %s is not empty: a cluster needs one of its own", c.dir)
	}
	for _, sub := range []string{"logs", "certs", "home", "tmp", "kubeconfigs", "trainer-tmp/k8s-webhook-server"} {
		if err := os.MkdirAll(c.path(sub), 0o755); err != nil {
			return fmt.Errorf("create the cluster's directory: %w", err)
		}
	}
	return nil
}

// bringUp starts the components as far side by side as they allow.
func (c *Cluster) bringUp(ctx context.Context) error {
	c.say("starting a cluster in %s", c.dir)
	first, nodes, names := []Component{Etcd, APIServer}, c.startFakeNodes, nodeNames
	if c.node != nil {
		first, nodes, names = []Component{Etcd, Forward, APIServer}, c.startNode, []string{NodeName}
	}
	for _, name := range first {
		if err := c.launch(ctx, name); err != nil {
			return err
		}
	}
	if err := firstError(ctx,
		func(ctx context.Context) error { return c.launch(ctx, ControllerManager) },
		func(ctx context.Context) error { return c.launch(ctx, Scheduler) },
		nodes,
		c.startPodRunner,
		c.startManagers,
	); err != nil {
		return err
	}
	if err := c.usable(ctx, names); err != nil {
		return err
	}
	c.mu.Lock()
	c.ready = true
	c.mu.Unlock()
	return c.saveState()
}

// startManagers installs what Kueue, JobSet and Trainer ship, and starts them.
func (c *Cluster) startManagers(ctx context.Context) error {
	if c.config.Bare {
		return nil
	}
	var installs, launches []func(context.Context) error
	for _, b := range bundles {
		installs = append(installs, func(ctx context.Context) error { return c.applyBundle(ctx, b.name) })
		launches = append(launches, func(ctx context.Context) error { return c.launch(ctx, b.name) })
	}
	if err := firstError(ctx, installs...); err != nil {
		return err
	}
	if err := c.createKueueSecret(ctx); err != nil {
		return err
	}
	c.say("manifests applied")
	for _, b := range bundles {
		if err := c.writeManagerKubeconfig(ctx, b.name); err != nil {
			return err
		}
	}
	return firstError(ctx, launches...)
}

func (c *Cluster) writeManagerKubeconfig(ctx context.Context, name Component) error {
	m := managers[name]
	token, err := c.Token(ctx, m.namespace, m.serviceAccount)
	if err != nil {
		return wrap(name, "start", err)
	}
	return writeKubeconfig(c.path(string(name)+".kubeconfig"), c.Endpoint(), userFor{Token: token}, m.namespace)
}

// hasCondition returns an error unless the object at path has the condition.
func (c *Cluster) hasCondition(ctx context.Context, path, condition string) error {
	var obj struct {
		Status struct {
			Conditions []struct{ Type, Status string } `json:"conditions"`
		} `json:"status"`
	}
	if err := c.api.get(ctx, path, &obj); err != nil {
		return err
	}
	for _, have := range obj.Status.Conditions {
		if have.Type == condition && have.Status == "True" {
			return nil
		}
	}
	return fmt.Errorf("%s is not %s", path, condition)
}

func (c *Cluster) startFakeNodes(ctx context.Context) error {
	return firstError(ctx, func(ctx context.Context) error { return c.launch(ctx, Kwok) }, c.createNodes)
}

func (c *Cluster) createNodes(ctx context.Context) error {
	for i, name := range nodeNames {
		body, err := fakeNodeObject(i)
		if err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		if err := c.api.post(ctx, "/api/v1/nodes", body, nil); err != nil {
			return fmt.Errorf("create node %s: %w", name, err)
		}
	}
	return nil
}

// usable waits for what the first pod needs: nodes and a service account.
func (c *Cluster) usable(ctx context.Context, nodes []string) error {
	for _, name := range nodes {
		ready := func(ctx context.Context) error { return c.hasCondition(ctx, "/api/v1/nodes/"+name, "Ready") }
		if err := poll(ctx, "node "+name, ready); err != nil {
			return err
		}
	}
	return poll(ctx, "service account default", func(ctx context.Context) error {
		return c.api.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newProbes returns a client for health endpoints.
func newProbes(dial dialFunc) *http.Client {
	return &http.Client{
		Timeout: 2 * time.Second,
		Transport: &http.Transport{
			DialContext: dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
	}
}

// probe asks a health endpoint, whose certificate, if any, nobody else knows.
func (c *Cluster) probe(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.probes.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// syncWriter lets the components report side by side.
type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write passes one line on at a time.
func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
