package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	startAttempts = 3
	probeEvery    = 50 * time.Millisecond
)

var errStopped = errors.New("the cluster is stopped")

// launch starts a component for the first time and waits until it is ready. If
// somebody took one of its ports in the moment before it listened, it gets others.
func (c *Cluster) launch(ctx context.Context, name Component) error {
	comp := c.comps[name]
	for attempt := 1; ; attempt++ {
		if comp.prepare != nil {
			if err := comp.prepare(); err != nil {
				return wrap(name, "prepare", err)
			}
		}
		err := c.run(ctx, comp)
		if err == nil {
			c.say("%s ready", name)
			return nil
		}
		if attempt == startAttempts || !portTaken(err) {
			return err
		}
		c.say("%s: a port was taken meanwhile, trying others", name)
		if err := c.ports.reserve(comp.ports...); err != nil {
			return err
		}
		if comp.moved != nil {
			if err := comp.moved(ctx); err != nil {
				return err
			}
		}
	}
}

// run starts a component once and waits until it is ready or has ended.
func (c *Cluster) run(ctx context.Context, comp *component) error {
	c.ports.release(comp.ports...)
	how := command{
		exe: c.Bin(string(comp.name)), args: comp.args(), env: c.environment(comp.env),
		log: c.Logs(comp.name), detached: c.config.Detached,
	}
	if comp.exe != "" {
		how.exe = comp.exe
	}
	if comp.files != nil {
		how.files = comp.files()
	}
	if c.node != nil {
		how.inside = c.node.inside
	}
	p, err := spawn(how)
	if err != nil {
		return wrap(comp.name, "start", err)
	}
	if err := c.register(comp.name, p); err != nil {
		return err
	}
	if err := c.saveState(); err != nil {
		return err
	}
	return c.awaitReady(ctx, comp, p)
}

// environment is what every component gets: nothing of the caller's that could
// redirect it, such as a proxy or a kubeconfig.
func (c *Cluster) environment(own []string) []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.path("home"), "TMPDIR=" + c.path("tmp"),
	}, own...)
}

// register makes the process the component's current one and watches over it.
func (c *Cluster) register(name Component, p *process) error {
	go func() {
		if p.wait() {
			c.fail(c.ended(name, p))
		}
	}()
	c.mu.Lock()
	stopped := c.stopped
	c.running[name] = p
	c.mu.Unlock()
	if stopped {
		return errors.Join(wrap(name, "start", errStopped), p.stop())
	}
	return nil
}

// awaitReady polls the component's readiness while its process lives.
func (c *Cluster) awaitReady(ctx context.Context, comp *component, p *process) error {
	for {
		err := comp.ready(ctx)
		if err == nil {
			p.markReady()
		}
		if !p.running() {
			return c.ended(comp.name, p)
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return c.ended(comp.name, p)
		case <-ctx.Done():
			cause := fmt.Errorf("not ready: %w; last: %w", context.Cause(ctx), err)
			return &ComponentError{comp.name, cause, p.output(), p.log}
		case <-time.After(probeEvery):
		}
	}
}

// ended describes how a component's process ended.
func (c *Cluster) ended(name Component, p *process) error {
	err := p.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return &ComponentError{name, fmt.Errorf("ended by itself: %w", err), p.output(), p.log}
}

// portTaken reports whether a component ended because its port was not free.
func portTaken(err error) bool {
	ended, ok := errors.AsType[*ComponentError](err)
	return ok && inUse(ended.Output)
}

// current returns the component's process.
func (c *Cluster) current(name Component) (*process, error) {
	if p := c.processes()[name]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("component %q: there is no such component", name)
}

// StopComponent ends one component; the others go on.
func (c *Cluster) StopComponent(name Component) error {
	p, err := c.current(name)
	if err != nil {
		return err
	}
	return wrap(name, "stop", p.stop())
}

// Kill ends one component without giving it a chance to clean up.
func (c *Cluster) Kill(name Component) error {
	p, err := c.current(name)
	if err != nil {
		return err
	}
	p.expectExit()
	if err := ignoreGone(p.signal(syscall.SIGKILL)); err != nil {
		return wrap(name, "kill", err)
	}
	<-p.done
	return nil
}

// Signal sends a signal to one component, for instance SIGSTOP and SIGCONT. To
// end it, StopComponent and Kill are better: they wait.
func (c *Cluster) Signal(name Component, sig syscall.Signal) error {
	p, err := c.current(name)
	if err != nil {
		return err
	}
	switch sig {
	case syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP:
		p.expectExit()
	}
	return wrap(name, "signal", p.signal(sig))
}

// StartComponent starts a component again that has ended, with the ports and the
// files it had, and waits until it is ready.
func (c *Cluster) StartComponent(ctx context.Context, name Component) error {
	p, err := c.current(name)
	if err != nil {
		return err
	}
	if p.running() {
		return fmt.Errorf("start %s: it runs already", name)
	}
	for attempt := 1; ; attempt++ {
		err := c.run(ctx, c.comps[name])
		if err == nil || attempt == startAttempts || !portTaken(err) {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// Restart ends a component and starts it again. The API server and etcd take
// SIGTERM as a wish to drain and are killed after five seconds; Kill and
// StartComponent are faster. After a restart of the API server the other
// components reconnect with client-go's backoff: soon after a first one, within
// up to a minute after several in a row. Restarting them resets it.
func (c *Cluster) Restart(ctx context.Context, name Component) error {
	if err := c.StopComponent(name); err != nil {
		return err
	}
	return c.StartComponent(ctx, name)
}

// ConfigureKueue changes Kueue's configuration; it takes effect when Kueue is
// restarted.
func (c *Cluster) ConfigureKueue(config KueueConfig) error {
	c.config.Kueue = config
	return wrap(Kueue, "configure", c.comps[Kueue].prepare())
}
