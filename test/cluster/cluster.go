package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Config says how a cluster differs from the default one. The zero value is fine.
type Config struct {
	// Dir holds everything of the cluster: logs, configurations, etcd's data. It
	// must be empty or not exist. If it is "", a temporary directory is used,
	// and removed by Stop unless a component failed.
	Dir string
	// Kueue changes Kueue's configuration.
	Kueue KueueConfig
	// Bare leaves Kueue, JobSet and Trainer out, for callers who install them as
	// pods: see Managers.
	Bare bool
	// APIServerArgs are added to the API server's flags.
	APIServerArgs []string
	// Programs makes pods run that are only simulated otherwise: it maps the name
	// of an image, the last element of its repository without tag and digest, to
	// the absolute path of a directory with the static binaries of the image. See
	// the README for what such a pod has of a real one.
	Programs map[string]string
	// Progress, if not nil, is told what happens.
	Progress io.Writer
	// Node gives the cluster one real node, on which pods run as containers,
	// instead of the fake ones. CheckNode tells whether this machine has what it
	// takes; the README says what of the machine is shared.
	Node bool
	// Detached lets the cluster outlive this process; StopDir ends it then.
	// Otherwise its processes are killed when this process dies.
	Detached bool
}

// Cluster is a running control plane.
type Cluster struct {
	config    Config
	dir       string
	temporary bool
	tools     *Toolbox
	ports     *portSet
	pki       *pki
	api       *apiClient
	comps     map[Component]*component
	probes    *http.Client // for health endpoints
	node      *node        // nil without one
	nodeTools *Toolbox     // nil without a node
	begin     time.Time

	mu      sync.Mutex
	running map[Component]*process
	ready   bool
	err     error
	stopped bool
	abort   context.CancelCauseFunc // of Start, while it runs
	done    chan struct{}
	ending  sync.Once
	saving  sync.Mutex
}

// ComponentError says that a component ended, or did not get ready.
type ComponentError struct {
	Component Component
	// Err is the cause, for instance how the process ended.
	Err error
	// Output is the end of the component's log.
	Output string
	// Log is the path of the whole log.
	Log string
}

// Error names the component and shows the end of its log.
func (e *ComponentError) Error() string {
	output := strings.ReplaceAll(e.Output, "\n", "\n  | ")
	return fmt.Sprintf("%s: %v; the end of %s:\n  | %s", e.Component, e.Err, e.Log, output)
}

// Unwrap returns the cause.
func (e *ComponentError) Unwrap() error { return e.Err }

// Tools returns the programs the cluster runs, kubectl and helm among them.
func (c *Cluster) Tools() *Toolbox { return c.tools }

// Bin returns the path of a program, such as "kubectl" or "helm".
func (c *Cluster) Bin(name string) string { return c.tools.Bin(name) }

// Dir returns the directory that holds everything of the cluster.
func (c *Cluster) Dir() string { return c.dir }

// AuditLog returns the path of the API server's audit log, one JSON event a line.
func (c *Cluster) AuditLog() string { return c.path("logs", "audit.log") }

// Logs returns the path of a component's log.
func (c *Cluster) Logs(name Component) string { return logPath(c.dir, name) }

func logPath(dir string, name Component) string {
	return filepath.Join(dir, "logs", string(name)+".log")
}

// PIDs returns the process ids of the components that run.
func (c *Cluster) PIDs() map[Component]int {
	pids := map[Component]int{}
	for name, p := range c.processes() {
		if p.running() {
			pids[name] = p.PID
		}
	}
	return pids
}

// Done is closed when a component has ended unasked, or Stop is called.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err returns a *ComponentError of the first component that ended unasked, nil
// if there is none.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Apply applies manifests, one or several YAML documents, on the server's side;
// it takes over fields that others own.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	return c.client().Apply(ctx, manifests)
}

// Kubectl runs kubectl as the administrator and returns its standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.client().Run(ctx, args...)
}

// client is kubectl as the administrator uses it.
func (c *Cluster) client() Kubectl {
	return Kubectl{Program: c.Bin("kubectl"), Kubeconfig: c.Kubeconfig(), Cache: c.path("kubectl-cache")}
}

// Stop ends every process of the cluster and returns when all are gone.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.ending.Do(func() { close(c.done) })
	c.ports.releaseAll()
	err := c.stopAll()
	if c.node != nil && err == nil {
		err = c.node.close()
	}
	if c.temporary && err == nil && c.Err() == nil {
		err = os.RemoveAll(c.dir)
	}
	return err
}

// stopAll ends the components in the reverse order of their dependencies.
func (c *Cluster) stopAll() error {
	procs := c.processes()
	var errs []error
	for _, wave := range stopWaves {
		var jobs []func() error
		for _, name := range wave {
			if p := procs[name]; p != nil {
				jobs = append(jobs, func() error { return wrap(name, "stop", p.stop()) })
			}
		}
		errs = append(errs, together(jobs...))
	}
	return errors.Join(errs...)
}

// stopWaves lists the components so that none loses what it depends on before
// it is asked to end itself.
var stopWaves = [][]Component{
	{PodRunner, Kueue, Trainer, JobSet, Kwok, Scheduler, ControllerManager, Kubelet, KubeProxy, CoreDNS},
	{APIServer, Containerd}, {Etcd, Forward},
}

// fail records that the cluster is broken, and stops a Start that still runs.
func (c *Cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.err != nil {
		return
	}
	c.err = err
	c.abort(err)
	c.ending.Do(func() { close(c.done) })
}

func (c *Cluster) processes() map[Component]*process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.running)
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// say tells what has happened and when.
func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintf(c.config.Progress, "%5.1fs  %s\n", time.Since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}

func wrap(name Component, doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", doing, name, err)
}
