package podrunner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// configError says that what the pod asks for cannot be had as it is written.
type configError struct{ error }

// Unwrap returns the cause.
func (e configError) Unwrap() error { return e.error }

// ensure starts the container unless it runs, has ended for good, or waits after
// a failure.
func (w *worker) ensure(c *container) {
	if c.proc != nil || c.over(&w.pod.Spec) {
		return
	}
	if wait := time.Until(c.notBefore); wait > 0 {
		c.backOff()
		w.pokeAfter(wait)
		return
	}
	err := w.start(c)
	if err == nil {
		return
	}
	reason := "CreateContainerError"
	if errors.As(err, new(configError)) {
		reason = "CreateContainerConfigError"
	}
	if c.state.Terminated != nil {
		c.last = c.state
	}
	c.state = waiting(reason, err.Error())
	c.notBefore = time.Now().Add(retryAfter)
	w.pokeAfter(retryAfter)
}

// start runs the container's program and begins to probe it.
func (w *worker) start(c *container) error {
	cmd, err := w.commandOf(c)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(logPath(w.Logs, w.namespace, w.name, c.spec.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own copy
	if err := createMessageFile(w.root, c.spec); err != nil {
		return err
	}
	cmd.output = log
	p, err := cmd.start()
	if err != nil {
		return err
	}
	now := time.Now()
	cmd.output = nil
	c.command = cmd
	c.begin(p, fmt.Sprintf("process://%d-%d", p.cmd.Process.Pid, now.UnixNano()), now)
	ctx, cancel := context.WithCancel(w.ctx)
	c.stopProbes = cancel
	go func() {
		code := p.wait()
		w.post(func() { w.exited(c, code) })
	}()
	if c.kind != initializer {
		go w.watch(ctx, c, p, w.handler(c))
	}
	return nil
}

func logPath(dir, namespace, pod, container string) string {
	return filepath.Join(dir, namespace+"_"+pod+"_"+container+".log")
}

// commandOf says how the container is run.
func (w *worker) commandOf(c *container) (command, error) {
	u, err := userOf(w.pod, c.spec)
	if err != nil {
		return command{}, configError{err}
	}
	if l := c.spec.Lifecycle; l != nil && l.PostStart != nil {
		return command{}, configError{errors.New("a postStart hook is not supported")}
	}
	env, err := w.environment(w.pod, c.spec)
	if err != nil {
		return command{}, configError{err}
	}
	words := append(slices.Clone(c.spec.Command), c.spec.Args...)
	if len(c.spec.Command) == 0 { // the images' entry point
		words = append([]string{imageName(c.spec.Image)}, words...)
	}
	words = arguments(words, env, c.spec.Ports, w.ip)
	exe, err := findProgram(w.root, words[0], env["PATH"])
	if err != nil {
		return command{}, err
	}
	dir := c.spec.WorkingDir
	if dir == "" {
		dir = "/"
	}
	if err := os.MkdirAll(filepath.Join(w.root, dir), 0o755); err != nil {
		return command{}, err
	}
	return command{
		root: w.root, exe: exe, args: words[1:], env: list(env), dir: dir, hostname: hostname(w.pod), user: u,
	}, nil
}

// exited notes that the container's process has ended.
func (w *worker) exited(c *container, code int32) {
	c.stopProbes()
	c.end(code, lastMessage(w.root, logPath(w.Logs, w.namespace, w.name, c.spec.Name), c.spec, code), time.Now())
}

// watch probes the container while its process p runs.
func (w *worker) watch(ctx context.Context, c *container, p *process, h handler) {
	about := func(f func()) {
		w.post(func() {
			if c.proc == p && !c.ending {
				f()
			}
		})
	}
	if probe := c.spec.StartupProbe; probe != nil {
		startup, end := context.WithCancel(ctx)
		started := false
		h.probe(startup, probe, func(ok bool, why error) {
			started = ok
			if !ok {
				about(func() { w.unhealthy(c, "startup", probe, why) })
			}
			end()
		})
		end()
		if !started {
			return
		}
		about(func() { c.started, c.ready = true, c.spec.ReadinessProbe == nil })
	}
	if probe := c.spec.ReadinessProbe; probe != nil {
		go h.probe(ctx, probe, func(ok bool, _ error) { about(func() { c.ready = ok }) })
	}
	if probe := c.spec.LivenessProbe; probe != nil {
		h.probe(ctx, probe, func(ok bool, why error) {
			if !ok {
				about(func() { w.unhealthy(c, "liveness", probe, why) })
			}
		})
	}
}

func (w *worker) handler(c *container) handler {
	cmd := c.command
	return handler{spec: c.spec, ip: w.ip, exec: func(ctx context.Context, words []string) error {
		if len(words) == 0 {
			return errors.New("exec without a command")
		}
		exe, err := findProgram(cmd.root, words[0], searchPath)
		if err != nil {
			return err
		}
		run := cmd
		run.exe, run.args = exe, words[1:]
		return run.run(ctx)
	}}
}

// unhealthy ends a container whose probe fails; the restart policy says whether
// it starts again.
func (w *worker) unhealthy(c *container, which string, probe *corev1.Probe, why error) {
	w.say("container %s failed its %s probe and is ended: %v", c.spec.Name, which, why)
	grace := w.grace()
	if probe.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*probe.TerminationGracePeriodSeconds) * time.Second
	}
	w.ask(c, grace)
}

// grace is how long the pod has to end.
func (w *worker) grace() time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	switch {
	case w.pod.DeletionGracePeriodSeconds != nil:
		seconds = *w.pod.DeletionGracePeriodSeconds
	case w.pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *w.pod.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}

// end asks what still runs to end, sidecars last and in reverse order, and sees
// that all are killed in time.
func (w *worker) end() {
	limit := time.Now().Add(w.grace())
	sooner := w.deadline.IsZero() || limit.Before(w.deadline)
	if sooner {
		w.deadline = limit
	}
	for _, group := range stopOrder(w.containers) {
		running := 0
		for _, c := range group {
			if c.proc == nil {
				continue
			}
			running++
			if c.ending && sooner {
				killAfter(c.proc, time.Until(w.deadline))
			}
			w.ask(c, time.Until(w.deadline))
		}
		if running > 0 {
			return // the next group follows when this one has ended
		}
	}
	w.final = true
}

// stopOrder lists the containers of a pod in groups that end one after the other.
func stopOrder(containers []*container) [][]*container {
	groups := [][]*container{nil}
	for _, c := range slices.Backward(containers) {
		if c.kind == sidecar {
			groups = append(groups, []*container{c})
		} else {
			groups[0] = append(groups[0], c)
		}
	}
	return groups
}

// ask asks a container that runs to end, once.
func (w *worker) ask(c *container, grace time.Duration) {
	if c.ending {
		return
	}
	c.ending = true
	p, h := c.proc, w.handler(c)
	killAfter(p, grace)
	go func() {
		if l := c.spec.Lifecycle; l != nil && l.PreStop != nil && grace > 0 {
			if err := h.do(w.ctx, *l.PreStop, grace); err != nil {
				w.say("preStop of container %s: %v", c.spec.Name, err)
			}
		}
		p.signal(syscall.SIGTERM)
	}()
}

// killAfter kills the process if it is still there after its grace period.
func killAfter(p *process, grace time.Duration) {
	timer := time.AfterFunc(max(grace, lastWords), func() { p.signal(syscall.SIGKILL) })
	go func() {
		<-p.done
		timer.Stop()
	}()
}

// createMessageFile makes the empty file into which a program may write why it
// ends.
func createMessageFile(root string, c *corev1.Container) error {
	file := filepath.Join(root, c.TerminationMessagePath)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		return err
	}
	return os.Chmod(file, 0o666) // whatever the umask is
}

const (
	maxMessage  = 4096 // bytes
	maxLogBytes = 2048
	maxLogLines = 80
)

// lastMessage is what a program that has ended left to be reported: its message
// file or, if the pod says so, the end of its log.
func lastMessage(root, log string, c *corev1.Container, code int32) string {
	if text := tail(filepath.Join(root, c.TerminationMessagePath), maxMessage); text != "" {
		return text
	}
	if code == 0 || c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return ""
	}
	lines := strings.SplitAfter(tail(log, maxLogBytes), "\n")
	return strings.Join(lines[max(0, len(lines)-maxLogLines):], "")
}

// tail returns the last bytes of a file, "" if it cannot be read.
func tail(name string, limit int64) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-limit), limit))
	if err != nil {
		return ""
	}
	return string(text)
}
