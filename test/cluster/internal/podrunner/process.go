package podrunner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/isolation"
	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/lasting"
)

// command says how to run a program in the root of a pod.
type command struct {
	root     string // of the pod, on this machine
	exe      string // in root
	args     []string
	env      []string
	dir      string // in root
	hostname string
	user     isolation.User
	output   *os.File // may be nil
}

// process is one running program.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when wait returns
	mu   sync.Mutex
	gone bool
}

// start starts the program. It dies with this process, however that dies.
func (c command) start() (*process, error) {
	cmd := &exec.Cmd{
		Path: c.exe, Args: append([]string{c.exe}, c.args...), Env: c.env, Dir: c.dir,
		Stdout: c.output, Stderr: c.output, SysProcAttr: isolation.Attributes(c.root, c.user),
	}
	if c.output == nil {
		cmd.Stdout, cmd.Stderr = nil, nil // a nil file in an interface is no nil
	}
	err := lasting.Do(func() error {
		setHostname(c.hostname)
		return cmd.Start()
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w; is the program static, as with CGO_ENABLED=0?", err)
	}
	if err != nil {
		return nil, err
	}
	return &process{cmd: cmd, done: make(chan struct{})}, nil
}

// setHostname gives the processes that this thread starts a host name, if it may.
func setHostname(name string) {
	if unix.Unshare(unix.CLONE_NEWUTS) == nil {
		_ = unix.Sethostname([]byte(name)) // without the right to, the machine's name stays
	}
}

// wait returns the exit code, 128 and more for a signal, once the process and
// whatever it has started are gone. It is called once.
func (p *process) wait() int32 {
	defer close(p.done)
	pid := p.cmd.Process.Pid
	for {
		// The process is left a zombie here, so that its group cannot be another's.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	p.mu.Lock()
	p.gone = true
	_ = syscall.Kill(-pid, syscall.SIGKILL) // there may be nobody left
	p.mu.Unlock()
	_ = p.cmd.Wait() // its error is the exit code
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return -1
	case status.Signaled():
		return 128 + int32(status.Signal())
	}
	return int32(status.ExitStatus())
}

// signal sends a signal to the process and whatever it has started.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // it ends anyway if it cannot be reached
	}
}
