package cluster

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/lasting"
)

const tailLines = 15

// process is one run of a component.
type process struct {
	Identity
	cmd     *exec.Cmd
	log     string
	logFrom int64         // where in the log this run begins
	done    chan struct{} // closed when it has ended
	err     error         // of Wait; read after done

	mu       sync.Mutex
	ready    bool
	expected bool // somebody here asked it to end
}

// command says how to run a component.
type command struct {
	exe      string
	args     []string
	env      []string
	log      string
	detached bool       // outlives this process
	files    []*os.File // what it inherits, from file descriptor 3 on
	// inside, if not nil, is where it runs.
	inside *enclosure
}

// spawn starts the command with its output appended to its log.
func spawn(c command) (*process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	info, err := log.Stat()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(c.exe, c.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.env, log, log, c.files
	// A session of its own keeps a terminal's Ctrl-C from the children: they end
	// when their owner ends them or dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !c.detached {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	start := lasting.Do
	if c.inside != nil {
		start = c.inside.do
	}
	if err := start(cmd.Start); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: c.log, logFrom: info.Size(), done: make(chan struct{})}
	if p.Identity, err = Identify(cmd.Process.Pid, c.exe); err != nil {
		_ = cmd.Process.Kill() // it cannot be supervised
		_ = cmd.Wait()
		return nil, err
	}
	return p, nil
}

// wait reaps the process and returns whether it ended unasked after it was ready.
func (p *process) wait() (unexpected bool) {
	p.err = p.cmd.Wait()
	close(p.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready && !p.expected
}

// expectExit notes that the process ends because it is asked to.
func (p *process) expectExit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
}

// markReady notes that the process serves; from now on its end is a failure.
func (p *process) markReady() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = true
}

// running reports whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// stop ends the process as Identity.stop does, and waits until it is reaped.
func (p *process) stop() error {
	p.expectExit()
	if err := p.Identity.stop(); err != nil {
		return err
	}
	<-p.done
	return nil
}

// output returns the last lines this run has logged.
func (p *process) output() string { return tail(p.log, p.logFrom, tailLines) }

// tail returns the last lines of a file from offset on, long lines cut.
func tail(path string, offset int64, lines int) string {
	const window, longest = 64 << 10, 400
	f, err := os.Open(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size()-window > offset {
		offset = info.Size() - window
	}
	data, err := io.ReadAll(io.NewSectionReader(f, offset, window))
	if err != nil {
		return fmt.Sprintf("(log unreadable: %v)", err)
	}
	all := strings.Split(string(bytes.TrimRight(data, "\n")), "\n")
	last := all[max(0, len(all)-lines):]
	for i, line := range last {
		if len(line) > longest {
			last[i] = line[:longest] + "…"
		}
	}
	return strings.Join(last, "\n")
}
