package app

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// Config is everything that can be set of the controller. The zero value is not
// valid; ParseConfig fills in the defaults.
type Config struct {
	// Kubeconfig is a path; empty means $KUBECONFIG, then the in-cluster
	// configuration. Context names one of its contexts. InCluster excludes
	// both.
	Kubeconfig string
	Context    string
	InCluster  bool

	// LeaseNamespace and LeaseName name the leader election Lease, Identity
	// this process in it.
	LeaseNamespace string
	LeaseName      string
	Identity       string
	// LeaseDuration > RenewDeadline > 1.2 × RetryPeriod > 0. LeaseDuration is in
	// whole seconds, because other replicas go by what the Lease can say.
	LeaseDuration time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration

	// Resync is the time between full passes, > 0. Workers is how many
	// Workloads are reconciled at once, ≥ 1.
	Resync  time.Duration
	Workers int

	// Wanted says which ClusterQueues are to have which of our checks; the zero value
	// wants nothing. Mend puts there what is missing.
	Wanted wiring.Wanted
	Mend   bool

	// QPS and Burst limit requests to the API server, per second and at once;
	// -1 means no limit.
	QPS   float64
	Burst int

	// MetricsAddress and ProbeAddress are host:port to serve on, or "0".
	MetricsAddress string
	ProbeAddress   string

	LogLevel  string
	LogFormat string
	// Version asks to print the version and nothing else.
	Version bool
}

// errUsage marks errors of the command line, which exit 2.
var errUsage = errors.New("see -help")

// ParseConfig reads the command line without the program's name. Its errors are
// one line and name the flag. flag.ErrHelp asks for the usage text, which
// Usage has.
func ParseConfig(args []string) (Config, error) {
	c, fs := newFlags()
	fs.SetOutput(io.Discard)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return Config{}, err
		}
		return Config{}, fmt.Errorf("%w (%w)", err, errUsage)
	}
	if fs.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q: this program takes flags only (%w)", fs.Arg(0), errUsage)
	}
	if c.Version {
		return *c, nil
	}
	if c.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return Config{}, fmt.Errorf("-identity is not set and the host name cannot be read: %w", err)
		}
		c.Identity = host + "_" + rand.String(8)
	}
	if err := c.validate(); err != nil {
		return Config{}, fmt.Errorf("%w (%w)", err, errUsage)
	}
	return *c, nil
}

// Usage is the text of -help.
func Usage() string {
	_, fs := newFlags()
	var b bytes.Buffer
	b.WriteString("dispatch-admission serves Kueue AdmissionChecks of the controller " + v1alpha1.ControllerName + ".\n\nFlags:\n")
	fs.SetOutput(&b)
	fs.PrintDefaults()
	return b.String()
}

func newFlags() (*Config, *flag.FlagSet) {
	c := &Config{}
	fs := flag.NewFlagSet("dispatch-admission", flag.ContinueOnError)
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "`path` of a kubeconfig; empty: $KUBECONFIG, then the in-cluster configuration")
	fs.StringVar(&c.Context, "context", "", "`name` of a context of the kubeconfig; empty: its current context")
	fs.BoolVar(&c.InCluster, "in-cluster", false, "use the in-cluster configuration only; conflicts with -kubeconfig and -context")

	fs.StringVar(&c.LeaseNamespace, "lease-namespace", v1alpha1.DefaultLeaseNamespace, "`namespace` of the leader election Lease")
	fs.StringVar(&c.LeaseName, "lease-name", v1alpha1.DefaultLeaseName, "`name` of the leader election Lease")
	fs.DurationVar(&c.LeaseDuration, "lease-duration", 15*time.Second, "how long other replicas wait for a leader that no longer renews the Lease; more than -renew-deadline")
	fs.DurationVar(&c.RenewDeadline, "renew-deadline", 10*time.Second, "how long the leader tries to renew the Lease before it gives up; more than 1.2 times -retry-period")
	fs.DurationVar(&c.RetryPeriod, "retry-period", 2*time.Second, "time between tries to take or renew the Lease")
	fs.StringVar(&c.Identity, "identity", "", "`name` of this replica in the Lease; empty: the host name, _ and a random suffix")

	fs.DurationVar(&c.Resync, "resync", time.Minute, "time between full passes over all checks and waiting Workloads")
	fs.IntVar(&c.Workers, "workers", 16, "`number` of Workloads reconciled at once")
	fs.Var((*names)(&c.Wanted.Queues), "queues", "`names` of ClusterQueues that are to have our checks, with commas between; one that lacks them is reported")
	fs.Var(selector{&c.Wanted.Selector}, "queue-selector", "label `selector` of more such ClusterQueues, for instance team=vision")
	fs.Var((*names)(&c.Wanted.Checks), "queue-checks", "`names` of the AdmissionChecks that these ClusterQueues are to have")
	fs.Var((*names)(&c.Wanted.OnFlavors), "queue-on-flavors", "`names` of ResourceFlavors whose Workloads need the checks; empty: all Workloads")
	fs.BoolVar(&c.Mend, "mend-queues", false, "put a check into ClusterQueues that are to have it and lack it; takes the right to patch ClusterQueues")

	fs.Float64Var(&c.QPS, "kube-api-qps", 200, "`requests` per second to the API server, watches and the Lease not counted; -1: no limit")
	fs.IntVar(&c.Burst, "kube-api-burst", 400, "`requests` to the API server above -kube-api-qps for a short time; -1: no limit")

	fs.StringVar(&c.MetricsAddress, "metrics-bind-address", ":8080", "`address` to serve metrics on (host:port); 0: off")
	fs.StringVar(&c.ProbeAddress, "health-probe-bind-address", ":8081", "`address` to serve /healthz and /readyz on (host:port); 0: off")
	fs.StringVar(&c.LogLevel, "log-level", "info", "least `level` to log: debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "text", "`format` of log lines: text or json")
	fs.BoolVar(&c.Version, "version", false, "print version, commit and Go version, and exit")
	return c, fs
}

// validate returns the first thing wrong, naming the flag and the way out.
func (c *Config) validate() error {
	checks := []func() error{c.validateSource, c.validateLease, c.validateTiming, c.validateLimits, c.validateQueues, c.validateServing, c.validateLog}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) validateSource() error {
	switch {
	case c.InCluster && c.Kubeconfig != "":
		return errors.New("-in-cluster conflicts with -kubeconfig: give one of them")
	case c.InCluster && c.Context != "":
		return errors.New("-in-cluster conflicts with -context: the in-cluster configuration has no contexts")
	}
	return nil
}

func (c *Config) validateLease() error {
	if problems := validation.IsDNS1123Label(c.LeaseNamespace); len(problems) > 0 {
		return fmt.Errorf("-lease-namespace %q: %s", c.LeaseNamespace, problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(c.LeaseName); len(problems) > 0 {
		return fmt.Errorf("-lease-name %q: %s", c.LeaseName, problems[0])
	}
	return nil
}

// jitter is client-go's, by which a retry may be late.
const jitter = 1.2

func (c *Config) validateTiming() error {
	switch {
	case c.RetryPeriod <= 0:
		return fmt.Errorf("-retry-period %s: must be greater than 0", c.RetryPeriod)
	case c.LeaseDuration < time.Second || c.LeaseDuration%time.Second != 0:
		return fmt.Errorf("-lease-duration %s: must be a whole number of seconds, the resolution of the Lease", c.LeaseDuration)
	case c.LeaseDuration <= c.RenewDeadline:
		return fmt.Errorf("-lease-duration %s: must be greater than -renew-deadline %s", c.LeaseDuration, c.RenewDeadline)
	case float64(c.RenewDeadline) <= jitter*float64(c.RetryPeriod):
		return fmt.Errorf("-renew-deadline %s: must be greater than %g times -retry-period %s", c.RenewDeadline, jitter, c.RetryPeriod)
	case c.Resync <= 0:
		return fmt.Errorf("-resync %s: must be greater than 0", c.Resync)
	}
	return nil
}

func (c *Config) validateLimits() error {
	switch {
	case c.Workers < 1:
		return fmt.Errorf("-workers %d: must be at least 1", c.Workers)
	case c.QPS != -1 && !(c.QPS > 0 && c.QPS <= 1e6):
		return fmt.Errorf("-kube-api-qps %g: must be greater than 0 and at most 1000000, or -1 for no limit", c.QPS)
	case c.Burst != -1 && c.Burst < 1:
		return fmt.Errorf("-kube-api-burst %d: must be at least 1, or -1 for no limit", c.Burst)
	}
	return nil
}

func (c *Config) validateServing() error {
	for name, address := range map[string]string{"metrics-bind-address": c.MetricsAddress, "health-probe-bind-address": c.ProbeAddress} {
		if address == "0" {
			continue
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return fmt.Errorf("-%s %q: must be host:port, :port, or 0 to turn it off", name, address)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			return fmt.Errorf("-%s %q: the port must be a number from 0 to 65535", name, address)
		}
	}
	return nil
}

func (c *Config) validateLog() error {
	if _, ok := logLevels[c.LogLevel]; !ok {
		return fmt.Errorf("-log-level %q: must be one of %s", c.LogLevel, strings.Join(logLevelNames, ", "))
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("-log-format %q: must be text or json", c.LogFormat)
	}
	return nil
}
