package integration

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// benchPatience is how long a step may last.
const benchPatience = 5 * time.Minute

// side is a queue with plenty of quota, and the check that its jobs wait for.
type side struct {
	b     *testing.B
	queue *queue
	check string
	jobs  []*trainer.TrainJob

	mu sync.Mutex
	// seen is by the name of the Workload.
	seen map[string]*moments
}

// moments are when a Workload got quota and an answer in its present attempt.
type moments struct{ reserved, ready time.Time }

func (m *moments) answered() bool { return !m.ready.IsZero() }

func newSide(b *testing.B, check, parked string) *side {
	b.Helper()
	newCheck(b, check)
	s := &side{b: b, queue: newQueueOf(b, check, parked), check: check, seen: map[string]*moments{}}
	s.queue.setQuota(strconv.Itoa(4 * benchKills))
	followWorkloads(b, shared.admin, s.queue.name, func(wl *kueue.Workload) { s.see(wl, time.Now()) })
	return s
}

// followWorkloads calls f with every version of every Workload of a namespace, as a
// watch tells of it, until the end of the benchmark.
func followWorkloads(b *testing.B, api client.WithWatch, namespace string, f func(*kueue.Workload)) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			events, err := api.Watch(ctx, &kueue.WorkloadList{}, client.InNamespace(namespace))
			if err != nil {
				continue
			}
			for e := range events.ResultChan() {
				if wl, ok := e.Object.(*kueue.Workload); ok && e.Type != watch.Deleted {
					f(wl)
				} else if !ok {
					b.Logf("the watch of %s tells %+v", namespace, e)
				}
			}
			b.Logf("the watch of %s has ended", namespace) // the API server ends a slow one
		}
	})
	b.Cleanup(func() {
		cancel()
		ended.Wait()
	})
}

// see notes what is new about a Workload.
func (s *side) see(wl *kueue.Workload, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.seen[wl.Name]
	if m == nil {
		m = &moments{}
		s.seen[wl.Name] = m
	}
	reserved, ready := has(wl, kueue.WorkloadQuotaReserved) && !has(wl, kueue.WorkloadEvicted), checkOf(wl, s.check).State == kueue.CheckStateReady
	switch {
	case !reserved:
		*m = moments{}
	case m.reserved.IsZero():
		m.reserved = now
		fallthrough
	default:
		if ready && m.ready.IsZero() {
			m.ready = now
		}
	}
}

func (s *side) submit() {
	s.b.Helper()
	s.jobs = append(s.jobs, s.queue.submit(dispatchName()))
}

// await waits until all Workloads of the side are as wanted.
func (s *side) await(what string, ok func(*moments) bool) {
	s.b.Helper()
	eventually(s.b, benchPatience, "every job of the side "+what, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, m := range s.seen {
			if ok(m) {
				n++
			}
		}
		if n != len(s.jobs) {
			return fmt.Errorf("%d of %d are", n, len(s.jobs))
		}
		return nil
	})
}

// last is when the last answer came.
func (s *side) last() (last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.seen {
		if m.ready.After(last) {
			last = m.ready
		}
	}
	return last
}

// benchKills is how many leaders die.
const benchKills = 10

// BenchmarkFailover kills leaders and measures how long the next gate is closed: from
// the kill to the answer to a job that is submitted at that moment. The bounds are
// what the Lease allows: client-go tries again after the retry period and up to 1.2
// times as much more, so that the worst case has two such waits, and a second to
// answer.
func BenchmarkFailover(b *testing.B) {
	const duration, retry = 5 * time.Second, 500 * time.Millisecond // those of brisk
	parked := unique("parked") + "-foreign"
	newForeignCheck(b, parked)
	s := newSide(b, unique("check"), parked)
	leader := startLeading(b, run{name: "gate-0", flags: brisk})
	var times []time.Duration
	for i := range benchKills {
		next := start(b, run{name: fmt.Sprintf("gate-%d", i+1), flags: brisk})
		time.Sleep(3 * time.Second) // its informers have synced, and the leader has renewed
		leader.signal(syscall.SIGKILL)
		began := time.Now()
		s.submit()
		s.await("is answered", (*moments).answered)
		times = append(times, s.last().Sub(began))
		b.Logf("kill %d: closed for %s", i+1, times[i].Round(time.Millisecond))
		leader = next
	}
	worst := duration + time.Duration(math.Round(4.4*float64(retry))) + time.Second
	typical := duration + retry + time.Second
	b.ReportMetric(percentile(times, 50).Seconds(), "closed-median-s")
	b.ReportMetric(percentile(times, 100).Seconds(), "closed-worst-s")
	b.ReportMetric(percentile(times, 50).Seconds()/typical.Seconds(), "median-to-bound")
	b.ReportMetric(percentile(times, 100).Seconds()/worst.Seconds(), "worst-to-bound")
	b.ReportMetric(0, "ns/op") // one run of many kills, not a result
}
