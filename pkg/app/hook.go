package app

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/adapter"
	"github.com/dispatch-admission/dispatch-admission/pkg/startgate"
)

const hookProgram = "dispatch-hook"

// Hook runs the adapter, dispatch-hook, with the given command line, without the
// program's name, until ctx ends: it serves hook, and what else its configuration
// asks for. A nil hook is the policy of the configuration. Any other takes its
// place, so that a configuration with both is an error.
//
// It returns the exit code: 0 when ctx ended it, 2 for a wrong command line, 1
// for everything else. Help and version go to standard output, log and errors to
// standard error, each error on a line of its own.
func Hook(ctx context.Context, args []string, hook admission.Hook) int {
	return runHook(ctx, args, hook, os.Stdout, os.Stderr)
}

// hookFlags is the command line of the adapter. It shares what it can with that
// of the controller.
type hookFlags struct {
	Config
	file  string
	check bool
}

func runHook(ctx context.Context, args []string, hook admission.Hook, stdout, stderr io.Writer) int {
	f, err := parseHookFlags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, hookUsage())
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", hookProgram, err)
		return exitUsage
	case f.Version:
		fmt.Fprintf(stdout, "%s %s\n", hookProgram, version())
		return exitOK
	}
	log := newLogger(f.Config, stderr)
	options := adapter.Options{Config: f.file, MetricsAddress: f.MetricsAddress, Hook: hook, Start: f.start(log), Log: log}
	run := adapter.Run
	if f.check {
		run = func(_ context.Context, o adapter.Options) error { return adapter.Check(o) }
	}
	if err := run(ctx, options); err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "%s: %s\n", hookProgram, strings.TrimSuffix(line, "\n"))
		}
		return exitFault
	}
	if f.check {
		fmt.Fprintf(stdout, "%s: valid\n", f.file)
	}
	return exitOK
}

// start makes the start gate from what the command line says of the cluster.
func (f *hookFlags) start(log *slog.Logger) adapter.Start {
	return func(k adapter.Kueue, policy admission.Hook) (adapter.StartGate, error) {
		bridge := logr.FromSlogHandler(log.Handler())
		ctrl.SetLogger(bridge)
		klog.SetLogger(bridge)
		api, err := restConfig(f.Config)
		if err != nil {
			return nil, fmt.Errorf("kueue is configured, so there is a start gate, which needs the cluster: %w", err)
		}
		api.UserAgent = hookProgram + "/" + version().Version
		gate, err := startgate.New(api, startgate.Options{
			AdmissionLease: types.NamespacedName{Namespace: k.LeaseNamespace, Name: k.LeaseName},
			LocalQueue:     k.LocalQueue, Namespace: k.Namespace, Policy: policy, Log: log,
		})
		if err != nil {
			return nil, err // and no gate, which a nil pointer would be
		}
		return gate, nil
	}
}

func parseHookFlags(args []string) (*hookFlags, error) {
	f, fs := newHookFlags()
	fs.SetOutput(io.Discard)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("%w (%w)", err, errUsage)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: this program takes flags only (%w)", fs.Arg(0), errUsage)
	}
	if f.Version {
		return f, nil
	}
	for _, check := range []func() error{f.validateSource, f.validateServing, f.validateLog, f.validateFile} {
		if err := check(); err != nil {
			return nil, fmt.Errorf("%w (%w)", err, errUsage)
		}
	}
	return f, nil
}

func (f *hookFlags) validateFile() error {
	if f.file == "" {
		return errors.New("-config is missing: give it the path of the configuration file")
	}
	return nil
}

func hookUsage() string {
	_, fs := newHookFlags()
	var b bytes.Buffer
	b.WriteString("dispatch-hook serves an admission hook, and the start gate if its configuration has kueue.\n\nFlags:\n")
	fs.SetOutput(&b)
	fs.PrintDefaults()
	return b.String()
}

func newHookFlags() (*hookFlags, *flag.FlagSet) {
	f := &hookFlags{Config: Config{QPS: -1, Burst: -1, ProbeAddress: "0"}} // the start gate only watches
	fs := flag.NewFlagSet(hookProgram, flag.ContinueOnError)
	fs.StringVar(&f.file, "config", "", "`path` of the configuration file; its policy and the certificates it names are read again when they change")
	fs.BoolVar(&f.check, "validate", false, "read the configuration, the policy and the certificates, say what is wrong, and exit")
	fs.StringVar(&f.MetricsAddress, "metrics-bind-address", ":8082", "`address` to serve /metrics, /healthz and /readyz on (host:port); 0: off")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", "", "`path` of a kubeconfig, for the start gate; empty: $KUBECONFIG, then the in-cluster configuration")
	fs.StringVar(&f.Context, "context", "", "`name` of a context of the kubeconfig; empty: its current context")
	fs.BoolVar(&f.InCluster, "in-cluster", false, "use the in-cluster configuration only; conflicts with -kubeconfig and -context")
	fs.StringVar(&f.LogLevel, "log-level", "info", "least `level` to log: debug, info, warn or error")
	fs.StringVar(&f.LogFormat, "log-format", "text", "`format` of log lines: text or json")
	fs.BoolVar(&f.Version, "version", false, "print version, commit and Go version, and exit")
	return f, fs
}
