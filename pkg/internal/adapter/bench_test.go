package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
)

// pace is the rate of the benchmark: 1,000 requests a second.
const pace = time.Millisecond

// window is how many requests have a percentile of their own.
const window = 500

// BenchmarkPaced asks an adapter at its socket and, in turn, a bare echo of
// net/http at another, each 1,000 times a second and each time from a goroutine
// of its own as the clock says. The hook does nothing, so all of its time is
// overhead; log level and metrics are those of production.
//
// A stall of the machine hits both and drowns the rest, so the 99th percentile
// comes twice: of all requests, and as the median over windows of half a second
// ("typical").
func BenchmarkPaced(b *testing.B) {
	f := newFolder(b)
	f.write(b, "config.yaml", f.listen())
	log := slog.New(slog.NewTextHandler(io.Discard, nil)) //nolint:sloglint // it is to format what it discards
	start(b, Options{Config: f.config(), Hook: hookOf(admission.Hold("a")), Log: log})
	c := f.client(b)
	req := hooktest.Samples()[0].Request
	ask := func() error {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		_, err := c.Admit(ctx, req)
		return err
	}
	hook, echo := paced(b, ask, bareEcho(b, req))
	for name, times := range map[string][]time.Duration{"hook": hook, "echo": echo} {
		b.ReportMetric(micro(percentile(times, 0.5)), name+"-p50-µs")
		b.ReportMetric(micro(percentile(times, 0.99)), name+"-p99-µs")
		b.ReportMetric(micro(typical(times)), name+"-p99-typical-µs")
	}
	b.ReportMetric(micro(percentile(hook, 0.99))/micro(percentile(echo, 0.99)), "p99-ratio")
	b.ReportMetric(micro(typical(hook))/micro(typical(echo)), "p99-typical-ratio")
	b.ReportMetric(0, "ns/op") // the pace, not a result
}

// bareEcho sends the request to a server that sends it back.
func bareEcho(b *testing.B, req *admission.Request) func() error {
	b.Helper()
	path := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })}
	go func() { _ = server.Serve(l) }()
	b.Cleanup(func() { _ = server.Close() })
	c := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
		MaxIdleConnsPerHost: 64,
	}}
	text, err := json.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	return func() error {
		resp, err := c.Post("http://localhost/", "application/json", bytes.NewReader(text))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
}

// paced calls two functions b.N times each and returns how long each took. A
// late wake-up of the sender itself is not counted.
func paced(b *testing.B, one, other func() error) (ones, others []time.Duration) {
	b.Helper()
	ones, others = make([]time.Duration, b.N), make([]time.Duration, b.N)
	var group sync.WaitGroup
	begin := time.Now()
	for i := range 2 * b.N {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * pace / 2)))
		call, took := one, &ones[i/2]
		if i%2 == 1 {
			call, took = other, &others[i/2]
		}
		sent := time.Now()
		group.Go(func() {
			if err := call(); err != nil {
				b.Error(err)
			}
			*took = time.Since(sent)
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
