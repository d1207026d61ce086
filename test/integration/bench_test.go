package integration

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

const (
	// benchPaced is how many jobs of each side are answered one after the other, and
	// benchBacklog how many at once.
	benchPaced, benchBacklog = 250, 500
	// benchPace is the time between two jobs, of either side: 10 a second each.
	benchPace = 50 * time.Millisecond
	// benchRounds is how often each side clears a backlog.
	benchRounds = 5
	// benchPatience is how long a step may last.
	benchPatience = 5 * time.Minute
)

// BenchmarkAdmission compares the gate with a bare client that makes the same two
// writes for each job and nothing else: no Lease, no caches, no precondition, no
// decision. Both have as many workers, no limit of their own, the same rights and the
// same proxy before the same API server, and take turns, so that both meet the same
// noise. Jobs have a second check that nobody answers, so that none starts.
//
// Times are from the quota of a Workload to the answer to its check, as a third sees
// both. The ratios are the gate's to the bare client's.
func BenchmarkAdmission(b *testing.B) {
	parked := unique("parked") + "-foreign"
	newForeignCheck(b, parked)
	p := newProxy(b)
	gate := newSide(b, unique("check"), parked)
	bare := newSide(b, unique("bare")+"-foreign", parked)
	startLeading(b, run{name: "gate", via: &p.endpoint, flags: []string{"-kube-api-qps=-1"}})
	newBareClient(b, p, bare)
	both := []*side{gate, bare}

	tick := time.NewTicker(benchPace)
	for i := range 2 * benchPaced {
		<-tick.C
		both[i%2].submit()
	}
	tick.Stop()
	for _, s := range both {
		s.await("is answered", (*moments).answered)
	}
	ratios(b, "paced", gate.times(), bare.times())

	for _, s := range both {
		for len(s.jobs) < benchBacklog {
			s.submit()
		}
		s.await("is answered", (*moments).answered)
	}
	drain(b, both)
	for _, s := range both {
		s.queue.setStopPolicy(kueue.None)
	}
	for _, s := range both {
		s.await("is answered", (*moments).answered)
	}
	ratios(b, "burst", gate.times(), bare.times())

	var rates []float64
	for round := range benchRounds {
		drain(b, both)
		resume := []func(){p.holdAll(gate.queue.in(anyWrite)), p.holdAll(bare.queue.in(anyWrite))}
		for _, s := range both {
			s.queue.setStopPolicy(kueue.None)
		}
		for _, s := range both {
			s.await("has quota", func(m *moments) bool { return !m.reserved.IsZero() })
		}
		rate := make([]float64, 2)
		for turn := range 2 {
			i := (round + turn) % 2
			began := time.Now()
			resume[i]()
			both[i].await("is answered", (*moments).answered)
			rate[i] = benchBacklog / both[i].last().Sub(began).Seconds()
		}
		b.Logf("backlog of %d, per second: gate %.0f, bare client %.0f", benchBacklog, rate[0], rate[1])
		rates = append(rates, rate[0]/rate[1])
		b.ReportMetric(rate[1], "bare-per-s")
	}
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2], "backlog-rate-ratio")
	b.ReportMetric(0, "ns/op") // the pace, not a result
}

func anyWrite(r *http.Request) bool { return r.Method != http.MethodGet }

// side is a queue with plenty of quota and who answers its jobs.
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
	if strings.HasSuffix(check, "-foreign") {
		newForeignCheck(b, check)
	} else {
		newCheck(b, check)
	}
	s := &side{b: b, queue: newQueueOf(b, check, parked), check: check, seen: map[string]*moments{}}
	s.queue.setQuota(strconv.Itoa(4 * benchBacklog))
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

// times are how long each Workload waited for its answer.
func (s *side) times() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var times []time.Duration
	for _, m := range s.seen {
		times = append(times, m.ready.Sub(m.reserved))
	}
	return times
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

// drain takes all quota back and lets the cluster come to rest.
func drain(b *testing.B, sides []*side) {
	b.Helper()
	for _, s := range sides {
		s.queue.setStopPolicy(kueue.HoldAndDrain)
	}
	for _, s := range sides {
		s.await("has no quota", func(m *moments) bool { return m.reserved.IsZero() })
		s.takeBack()
	}
	time.Sleep(5 * time.Second)
}

// takeBack makes the checks of the side Pending again, unless whoever answers them has
// done so: Kueue leaves answers standing where a job loses its quota unstarted.
func (s *side) takeBack() {
	s.b.Helper()
	var list kueue.WorkloadList
	if err := shared.admin.List(s.b.Context(), &list, client.InNamespace(s.queue.name)); err != nil {
		s.b.Fatal(err)
	}
	for i := range list.Items {
		if !strings.HasSuffix(s.check, "-foreign") || checkOf(&list.Items[i], s.check).State == kueue.CheckStatePending {
			continue
		}
		if err := applyCheck(s.b.Context(), shared.admin, &list.Items[i], s.check, kueue.CheckStatePending); err != nil {
			s.b.Fatal(err)
		}
	}
}

// bareOwner is the field manager of the bare client.
const bareOwner = client.FieldOwner("bare")

// applyCheck gives a check of a Workload a state, as the bare client does.
func applyCheck(ctx context.Context, api client.Client, wl *kueue.Workload, check string, state kueue.CheckState) error {
	status := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"admissionChecks": []any{map[string]any{
		"name": check, "state": string(state), "message": "Answered.", "podSetUpdates": []any{},
		"lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}}}}
	status.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("Workload"))
	status.SetNamespace(wl.Namespace)
	status.SetName(wl.Name)
	return api.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(status), bareOwner, client.ForceOwnership)
}

// ratios reports two percentiles of the gate's times, and how they compare.
func ratios(b *testing.B, name string, gate, bare []time.Duration) {
	b.Helper()
	for _, p := range []int{50, 99} {
		g, o := percentile(gate, p), percentile(bare, p)
		b.ReportMetric(g.Seconds()*1000, fmt.Sprintf("%s-p%d-ms", name, p))
		b.ReportMetric(g.Seconds()/o.Seconds(), fmt.Sprintf("%s-p%d-ratio", name, p))
	}
}

// bareClient answers a check by the two writes that the gate makes.
type bareClient struct {
	b      *testing.B
	side   *side
	client client.WithWatch
	work   chan *kueue.Workload

	mu sync.Mutex
	// done is which attempt of a Workload was answered last, counts its answers.
	done   map[string]string
	counts map[string]int
}

// benchWorkers is the gate's default.
const benchWorkers = 16

func newBareClient(b *testing.B, p *proxy, s *side) {
	b.Helper()
	kubeconfig, err := shared.cluster.ServiceAccountKubeconfigVia(b.Context(), p.endpoint, namespace, release)
	if err != nil {
		b.Fatal(err)
	}
	c := &bareClient{b: b, side: s, work: make(chan *kueue.Workload, benchBacklog), done: map[string]string{}, counts: map[string]int{}}
	if c.client, err = harness.NewClient(kubeconfig); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for range benchWorkers {
		workers.Go(func() {
			for wl := range c.work {
				if err := c.answer(ctx, wl); err != nil && ctx.Err() == nil {
					b.Errorf("the bare client: %v", err)
				}
			}
		})
	}
	b.Cleanup(func() {
		cancel()
		close(c.work)
		workers.Wait()
	})
	followWorkloads(b, c.client, s.queue.name, func(wl *kueue.Workload) {
		if c.asks(wl) {
			c.work <- wl
		}
	})
}

// asks tells whether a Workload begins to wait for an answer.
func (c *bareClient) asks(wl *kueue.Workload) bool {
	if !has(wl, kueue.WorkloadQuotaReserved) || has(wl, kueue.WorkloadEvicted) || checkOf(wl, c.side.check).State != kueue.CheckStatePending {
		return false
	}
	attempt := reservedAt(wl)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done[wl.Name] == attempt {
		return false
	}
	c.done[wl.Name] = attempt
	c.counts[wl.Name]++
	return true
}

func (c *bareClient) answer(ctx context.Context, wl *kueue.Workload) error {
	c.mu.Lock()
	count := c.counts[wl.Name]
	c.mu.Unlock()
	var names []any
	for i := range wl.Spec.PodSets {
		names = append(names, map[string]any{"name": string(wl.Spec.PodSets[i].Name), "template": map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{"example.com/count": strconv.Itoa(count), "example.com/attempt": reservedAt(wl)}}}}}})
	}
	job := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"runtimePatches": []any{map[string]any{"manager": "example.com/bare",
		"trainingRuntimeSpec": map[string]any{"template": map[string]any{"spec": map[string]any{"replicatedJobs": names}}}}}}}}
	job.SetGroupVersionKind(trainer.SchemeGroupVersion.WithKind("TrainJob"))
	job.SetNamespace(wl.Namespace)
	job.SetName(wl.OwnerReferences[0].Name)
	if err := c.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(job), bareOwner, client.ForceOwnership); err != nil {
		return err
	}
	return applyCheck(ctx, c.client, wl, c.side.check, kueue.CheckStateReady)
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
