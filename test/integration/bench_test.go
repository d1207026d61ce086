package integration

import (
	"fmt"
	"math"
	"strconv"
	"syscall"
	"testing"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// BenchmarkFailover kills leaders and measures how long the next gate is closed: from
// the kill to the answer to a job that is submitted at that moment. The bounds are
// what the Lease allows: client-go tries again after the retry period and up to 1.2
// times as much more, so that the worst case has two such waits, and a second to
// answer.
func BenchmarkFailover(b *testing.B) {
	const (
		kills           = 10
		duration, retry = 5 * time.Second, 500 * time.Millisecond // those of brisk
	)
	check := unique("check")
	q := newQueue(b, check, unique("parked")+"-foreign") // which nobody answers, so that none starts
	q.setQuota(strconv.Itoa(2 * kills))
	leader := startLeading(b, run{name: "gate-0", flags: brisk})
	var times []time.Duration
	for i := range kills {
		next := start(b, run{name: fmt.Sprintf("gate-%d", i+1), flags: brisk})
		time.Sleep(3 * time.Second) // its informers have synced, and the leader has renewed
		leader.signal(syscall.SIGKILL)
		began := time.Now()
		awaitCheck(b, q.submit(dispatchName()), check, kueue.CheckStateReady)
		times = append(times, time.Since(began))
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
