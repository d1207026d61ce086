package httphook

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// pace is the rate of the paced benchmark: 1,000 requests a second.
const pace = time.Millisecond

// overSocket serves handler on a Unix socket and returns its path.
func overSocket(b *testing.B, handler http.Handler) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(func() { _ = server.Close() })
	return path
}

// bareEcho sends body to a server that sends it back, with net/http alone.
func bareEcho(b *testing.B, body []byte) func() error {
	b.Helper()
	path := overSocket(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
		MaxIdleConnsPerHost: maxIdleConns,
	}}
	return func() error {
		resp, err := client.Post("http://localhost/", contentType, bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
}

// window is how many requests have a percentile of their own.
const window = 500

// BenchmarkPaced sends a hook request and a bare echo of the same size in
// turn, each at 1,000 a second and each from its own goroutine as the clock
// says, and reports the percentiles of both. The hook itself does nothing, so
// all of its time is overhead.
//
// A stall of the machine hits both and drowns the rest, so the 99th percentile
// comes twice: of all requests, and as the median over windows of half a
// second ("typical").
func BenchmarkPaced(b *testing.B) {
	req := sample()
	client, err := NewClient(Config{UnixSocket: overSocket(b, Handler(hookOf(admission.Hold("a"), nil)))})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	ask := func() error {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		_, err := client.Admit(ctx, req)
		return err
	}
	hook, echo := paced(b, ask, bareEcho(b, body(b, req)))
	for name, times := range map[string][]time.Duration{"hook": hook, "echo": echo} {
		b.ReportMetric(micro(percentile(times, 0.5)), name+"-p50-µs")
		b.ReportMetric(micro(percentile(times, 0.99)), name+"-p99-µs")
		b.ReportMetric(micro(typical(times)), name+"-p99-typical-µs")
	}
	b.ReportMetric(micro(percentile(hook, 0.99))/micro(percentile(echo, 0.99)), "p99-ratio")
	b.ReportMetric(micro(typical(hook))/micro(typical(echo)), "p99-typical-ratio")
	b.ReportMetric(0, "ns/op") // the pace, not a result
}

// paced calls two functions b.N times each and returns how long each took, in
// the order of the calls. A late wake-up of the sender itself is not counted.
func paced(b *testing.B, one, other func() error) (ones, others []time.Duration) {
	ones, others = make([]time.Duration, b.N), make([]time.Duration, b.N)
	var group sync.WaitGroup
	start := time.Now()
	for i := range 2 * b.N {
		time.Sleep(time.Until(start.Add(time.Duration(i) * pace / 2)))
		call, took := one, &ones[i/2]
		if i%2 == 1 {
			call, took = other, &others[i/2]
		}
		begin := time.Now()
		group.Go(func() {
			if err := call(); err != nil {
				b.Error(err)
			}
			*took = time.Since(begin)
		})
	}
	group.Wait()
	return ones, others
}

func percentile(times []time.Duration, part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[int(float64(len(sorted)-1)*part)]
}

// typical is the median over windows of their 99th percentile.
func typical(times []time.Duration) time.Duration {
	var all []time.Duration
	for w := range slices.Chunk(times, window) {
		all = append(all, percentile(w, 0.99))
	}
	return percentile(all, 0.5)
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// BenchmarkSocket is one request after the other, with a bare echo beside it.
func BenchmarkSocket(b *testing.B) {
	req := sample()
	client, err := NewClient(Config{UnixSocket: overSocket(b, Handler(hookOf(admission.Hold("a"), nil)))})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	b.Run("hook", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := client.Admit(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
	})
	echo := bareEcho(b, body(b, req))
	b.Run("echo", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := echo(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
