package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/controller"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/lease"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
)

const controllerProgram = "dispatch-admission"

// errLostLease is the end of a leader that did not mean to stop.
var errLostLease = errors.New("lost the leader-election Lease")

// Exit codes.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
)

// Controller runs dispatch-admission with the given command line, without the
// program's name, until ctx ends. It returns the exit code: 0 when ctx ended
// it, 2 for a wrong command line, 1 for everything else. Each error is one line
// on stderr, beside the log.
func Controller(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := ParseConfig(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, Usage())
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", controllerProgram, err)
		return exitUsage
	case cfg.Version:
		fmt.Fprintf(stdout, "%s %s\n", controllerProgram, version())
		return exitOK
	}
	if err := run(ctx, cfg, newLogger(cfg, stderr)); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", controllerProgram, err)
		return exitFault
	}
	return exitOK
}

// run is the composition root of the controller.
func run(ctx context.Context, cfg Config, log *slog.Logger) error {
	bridge := logr.FromSlogHandler(log.Handler())
	ctrl.SetLogger(bridge)
	klog.SetLogger(bridge)

	api, err := restConfig(cfg)
	if err != nil {
		return err
	}
	if err := probe(ctx, api); err != nil {
		return err
	}
	lock, err := lease.New(lease.Config{
		Namespace: cfg.LeaseNamespace, Name: cfg.LeaseName, Identity: cfg.Identity,
		Duration: cfg.LeaseDuration, RenewDeadline: cfg.RenewDeadline,
	}, api)
	if err != nil {
		return err
	}
	mgr, err := newManager(cfg, api, lock)
	if err != nil {
		return err
	}
	m := metrics.New(ctrlmetrics.Registry)
	if err := controller.Setup(ctx, mgr, controller.Options{
		Held: lock.Held, Resync: cfg.Resync, Workers: cfg.Workers, Log: log, Metrics: m, SecretNamespace: cfg.LeaseNamespace,
		Wanted: cfg.Wanted, Mend: cfg.Mend,
	}); err != nil {
		return err
	}
	return lead(ctx, mgr, log.With("identity", cfg.Identity), m)
}

// lead runs the manager to its end and says when this replica leads.
func lead(ctx context.Context, mgr ctrl.Manager, log *slog.Logger, m *metrics.Metrics) error {
	ended := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-mgr.Elected():
			m.Leading.Set(1)
			log.Info("leading")
		case <-ended:
		}
	}()
	err := mgr.Start(ctx)
	close(ended)
	<-told

	asked, elected := ctx.Err() != nil, isClosed(mgr.Elected())
	if elected {
		m.Leading.Set(0)
		log.Info("stopped leading")
	}
	if elected && !asked {
		log.Error("the controller ended by itself", "error", err)
	}
	return ending(asked, elected, err)
}

// ending is what the end of the manager means: nothing if it was asked for, the
// loss of the Lease if a leader ended, else whatever kept it from leading.
func ending(asked, elected bool, err error) error {
	switch {
	case asked:
		return nil
	case elected, err == nil:
		return errLostLease
	default:
		return err
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func newManager(cfg Config, api *rest.Config, lock *lease.Lock) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	grace := 10 * time.Second
	mgr, err := ctrl.NewManager(api, ctrl.Options{
		Scheme:                              scheme,
		Cache:                               controller.CacheOptions(),
		Metrics:                             metricsserver.Options{BindAddress: cfg.MetricsAddress},
		HealthProbeBindAddress:              cfg.ProbeAddress,
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock,
		LeaseDuration:                       &cfg.LeaseDuration,
		RenewDeadline:                       &cfg.RenewDeadline,
		RetryPeriod:                         &cfg.RetryPeriod,
		GracefulShutdownTimeout:             &grace,
	})
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	ready := func(r *http.Request) error {
		if !mgr.GetCache().WaitForCacheSync(r.Context()) {
			return errors.New("the informers have not synced")
		}
		return nil
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("informers", ready)); err != nil {
		return nil, fmt.Errorf("setting up health checks: %w", err)
	}
	return mgr, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(
		clientgoscheme.AddToScheme(scheme), kueue.AddToScheme(scheme), trainer.AddToScheme(scheme),
		jobset.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("setting up the scheme: %w", err)
	}
	return scheme, nil
}
