package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
)

// What the child of BenchmarkLarge is told.
const (
	childServer = "DISPATCH_BENCH_SERVER"
	childCache  = "DISPATCH_BENCH_CACHE"
)

// BenchmarkLarge measures a controller in a process of its own, with 50,000
// Workloads of which 1,000 wait: its memory once its informers have synced, its
// memory if they kept whole objects and if there were none, the CPU of one idle pass
// with a look at all who wait, and that of a copying list of all Workloads.
func BenchmarkLarge(b *testing.B) {
	if server := os.Getenv(childServer); server != "" {
		if err := largeChild(b, server, os.Getenv(childCache)); err != nil {
			b.Fatal(err)
		}
		return
	}
	cluster := replay{workloads: 50_000, waiting: waitingOfLarge}
	one, err := json.Marshal(replayedWorkload(0, true))
	if err != nil {
		b.Fatal(err)
	}
	server := cluster.start(b)
	slim, whole, empty := largeRun(b, server, "slim"), largeRun(b, server, "whole"), largeRun(b, replay{}.start(b), "empty")
	b.ReportMetric(float64(len(one))/1024, "KiB/object")
	b.ReportMetric(slim.Resident, "resident-MiB")
	b.ReportMetric(slim.Peak, "peak-MiB")
	b.ReportMetric(whole.Resident, "whole-resident-MiB")
	b.ReportMetric(empty.Resident, "empty-resident-MiB")
	b.ReportMetric(slim.Resident/whole.Resident, "resident-ratio")
	b.ReportMetric(slim.Pass, "pass-ms")
	b.ReportMetric(slim.Copying, "copying-list-ms")
	b.ReportMetric(slim.Pass/slim.Copying, "pass-ratio")
	b.ReportMetric(0, "ns/op") // one run, whose length says nothing
}

// large is what a child measured: MiB, and milliseconds of CPU.
type large struct{ Resident, Peak, Pass, Copying float64 }

// largeRun measures in a child, whose memory is nobody else's.
func largeRun(b *testing.B, server, cache string) (l large) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkLarge$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), childServer+"="+server, childCache+"="+cache)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	_, line, _ := strings.Cut(string(out), "measured ")
	line, _, _ = strings.Cut(line, "\n")
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return l
}

// waitingOfLarge is how many Workloads wait.
const waitingOfLarge = 1_000

func largeChild(b *testing.B, server, cache string) error {
	b.Helper()
	var writes atomic.Int64
	p, mgr, err := largeManager(b, server, cache == "whole", func() error {
		writes.Add(1)
		return errors.New("an idle pass writes nothing")
	})
	if err != nil {
		return err
	}
	var l large
	debug.FreeOSMemory()
	if l.Resident, l.Peak, err = memoryOf(os.Getpid()); err != nil {
		return err
	}
	if cache == "empty" {
		return tellLarge(l)
	}
	q := workqueue.NewTypedRateLimitingQueue(rateLimiter())
	defer q.ShutDown()
	looked := 0
	pass := func() error {
		if err := p.pass(b.Context(), q); err != nil {
			return err
		}
		for ; q.Len() > 0; looked++ {
			r, _ := q.Get()
			if _, err := p.gate.Reconcile(b.Context(), r); err != nil {
				return err
			}
			q.Done(r)
		}
		return nil
	}
	if l.Pass, err = cpu(20, pass); err != nil {
		return err
	}
	if looked != 20*waitingOfLarge || writes.Load() > 0 {
		return fmt.Errorf("20 passes looked at %d Workloads and wanted to write %d times, want %d each and none", looked, writes.Load(), waitingOfLarge)
	}
	if l.Copying, err = cpu(5, func() error {
		var list kueue.WorkloadList
		no := false
		return mgr.GetClient().List(b.Context(), &list, &client.ListOptions{UnsafeDisableDeepCopy: &no})
	}); err != nil {
		return err
	}
	return tellLarge(l)
}

func tellLarge(l large) error {
	line, err := json.Marshal(l)
	fmt.Printf("measured %s\n", line)
	return err
}

// largeManager is the controller with its informers synced and nothing else running,
// as on a candidate.
func largeManager(b *testing.B, server string, whole bool, held func() error) (*passes, ctrl.Manager, error) {
	b.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kueue.AddToScheme, trainer.AddToScheme, jobset.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, nil, err
		}
	}
	caches := CacheOptions()
	if whole {
		caches.ByObject = nil
	}
	mgr, err := ctrl.NewManager(&rest.Config{Host: server}, ctrl.Options{
		Scheme: scheme, Cache: caches, Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapperOf(scheme), nil },
	})
	if err != nil {
		return nil, nil, err
	}
	p, err := setup(b.Context(), mgr, Options{
		Held: held, Resync: time.Hour, Workers: 1,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Metrics: metrics.New(prometheus.NewRegistry()),
	})
	if err != nil {
		return nil, nil, err
	}
	go func() { _ = mgr.GetCache().Start(b.Context()) }()
	if !mgr.GetCache().WaitForCacheSync(b.Context()) {
		return nil, nil, errors.New("the informers have not synced")
	}
	return p, mgr, nil
}

// mapperOf maps the kinds of a scheme without asking anybody.
func mapperOf(scheme *runtime.Scheme) meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for gvk := range scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		if gvk.Kind == "AdmissionCheck" || gvk.Kind == "ClusterQueue" || gvk.Kind == "ResourceFlavor" || gvk.Kind == "AdmissionGate" {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(gvk, scope)
	}
	return mapper
}

// cpu is the CPU time of one of n calls, in milliseconds, of all threads.
func cpu(n int, call func() error) (float64, error) {
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	for range n {
		if err := call(); err != nil {
			return 0, err
		}
	}
	return (used() - before).Seconds() * 1000 / float64(n), nil
}

// memoryOf reads what memory a process has and had at most, in MiB.
func memoryOf(pid int) (resident, peak float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return 0, 0, err
		}
		switch fields[0] {
		case "VmRSS:":
			resident = kib / 1024
		case "VmHWM:":
			peak = kib / 1024
		}
	}
	return resident, peak, nil
}
