package podrunner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
)

// hurry is the longest time between two probes of a container until it has
// started and is ready. A kubelet waits for a whole period.
const hurry = 500 * time.Millisecond

// handler performs what probes and hooks of a container ask for.
type handler struct {
	spec *corev1.Container
	ip   string
	// exec runs a program in the pod's root and returns an error unless it
	// exits with 0.
	exec func(ctx context.Context, words []string) error
}

// do returns nil if the action succeeds within the time limit.
func (h handler) do(ctx context.Context, action corev1.LifecycleHandler, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch {
	case action.HTTPGet != nil:
		return h.get(ctx, action.HTTPGet, limit)
	case action.TCPSocket != nil:
		return h.connect(ctx, action.TCPSocket)
	case action.Exec != nil:
		return h.exec(ctx, action.Exec.Command)
	case action.Sleep != nil:
		return pause(ctx, time.Duration(action.Sleep.Seconds)*time.Second)
	}
	return errors.New("this kind of handler is not supported")
}

func (h handler) get(ctx context.Context, action *corev1.HTTPGetAction, limit time.Duration) error {
	req, err := httpprobe.NewRequestForHTTPGetAction(action, h.spec, h.ip, "probe")
	if err != nil {
		return err
	}
	result, output, err := httpprobe.New(false).Probe(req.WithContext(ctx), limit)
	if err == nil && result == probe.Failure {
		err = errors.New(output)
	}
	return err
}

func (h handler) connect(ctx context.Context, action *corev1.TCPSocketAction) error {
	port, err := probe.ResolveContainerPort(action.Port, h.spec)
	if err != nil {
		return err
	}
	host := action.Host
	if host == "" {
		host = h.ip
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return conn.Close()
}

// probe asks until the context ends, and tells answer what follows from the last
// results by the probe's thresholds. Before the first success it asks faster than
// the period says.
func (h handler) probe(ctx context.Context, p *corev1.Probe, answer func(ok bool, why error)) {
	if pause(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) != nil {
		return
	}
	period := time.Duration(max(1, p.PeriodSeconds)) * time.Second
	limit := time.Duration(max(1, p.TimeoutSeconds)) * time.Second
	action := corev1.LifecycleHandler{Exec: p.Exec, HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket}
	thresholds := threshold{probe: p, period: period, begun: time.Now()}
	for {
		err := h.do(ctx, action, limit)
		if ctx.Err() != nil {
			return
		}
		if ok, certain := thresholds.count(err == nil, time.Now()); certain {
			answer(ok, err)
		}
		interval := period
		if !thresholds.succeeded {
			interval = min(interval, hurry)
		}
		if pause(ctx, interval) != nil {
			return
		}
	}
}

// threshold makes a verdict of single results.
type threshold struct {
	probe     *corev1.Probe
	period    time.Duration
	begun     time.Time
	succeeded bool // at least once
	good, bad int32
}

// count adds a result and returns the verdict, if there are results enough for
// one. Until the first success time counts, not the number of failures: the
// container has as long to start as it has on a kubelet.
func (t *threshold) count(ok bool, now time.Time) (verdict, certain bool) {
	if ok {
		t.good, t.bad = t.good+1, 0
		certain = t.good >= max(1, t.probe.SuccessThreshold)
		t.succeeded = t.succeeded || certain
		return true, certain
	}
	t.good, t.bad = 0, t.bad+1
	limit := max(1, t.probe.FailureThreshold)
	if t.succeeded {
		return false, t.bad >= limit
	}
	return false, now.Sub(t.begun) >= time.Duration(limit-1)*t.period
}

// pause returns an error if the context ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run starts the command and returns an error unless it ends with 0 in time.
func (c command) run(ctx context.Context) error {
	p, err := c.start()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { p.signal(syscall.SIGKILL) })
	defer stop()
	if code := p.wait(); code != 0 {
		return fmt.Errorf("%s exits with %d", c.exe, code)
	}
	return nil
}
