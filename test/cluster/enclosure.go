package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// enclosure is the network and the view of the file system that all processes of
// a cluster with a node share. Neither has a name that could outlive them: the
// kernel removes both, with all interfaces, rules and mounts, when the last
// process in them is gone.
type enclosure struct {
	work   chan func()   // done on a thread inside
	closed chan struct{} // ends the thread
	once   sync.Once
	net    *os.File // handle of the network
}

// errNotPermitted explains what root in a container usually lacks.
var errNotPermitted = errors.New("root here may not create namespaces; a container must be privileged for that")

// newEnclosure creates an empty network and a view of the file system in which
// mounts by setup, and by all that runs inside, stay unseen by others.
func newEnclosure(setup func() error) (*enclosure, error) {
	e := &enclosure{work: make(chan func()), closed: make(chan struct{})}
	begun := make(chan error, 1)
	go e.inhabit(begun, func() error {
		if err := e.enter(); err != nil {
			return err
		}
		return setup()
	})
	if err := <-begun; err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// inhabit does the enclosure's work on a thread of its own. What a thread starts
// is where the thread is, and a thread that has left the program's view of the
// file system must never do anything else: it ends with the goroutine.
func (e *enclosure) inhabit(begun chan<- error, enter func() error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// Go never ends the main thread. While this goroutine keeps it, another
		// one gets another thread.
		moved := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(moved)
			e.serve(begun, enter)
		}()
		<-moved
		runtime.UnlockOSThread()
		return
	}
	e.serve(begun, enter)
}

func (e *enclosure) serve(begun chan<- error, enter func() error) {
	begun <- enter()
	for {
		select {
		case f := <-e.work:
			f()
		case <-e.closed:
			return
		}
	}
}

// enter takes the calling thread into the new namespaces.
func (e *enclosure) enter() error {
	err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
	if errors.Is(err, unix.EPERM) {
		return errNotPermitted
	}
	if err != nil {
		return fmt.Errorf("create namespaces: %w", err)
	}
	// What the machine unmounts goes here too; what is mounted here stays here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	if e.net, err = os.Open(ownNetwork); err != nil {
		return fmt.Errorf("keep the network: %w", err)
	}
	return nil
}

// do runs f inside and returns its error. What f starts stays inside.
func (e *enclosure) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case e.work <- func() { result <- f() }:
		return <-result
	case <-e.closed:
		return errStopped
	}
}

// close lets go of the enclosure.
func (e *enclosure) close() {
	e.once.Do(func() {
		close(e.closed)
		if e.net != nil {
			_ = e.net.Close() // only held open
		}
	})
}

// command runs a short program inside and returns what it prints.
func (e *enclosure) command(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := e.do(cmd.Start); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

const ownNetwork = "/proc/thread-self/ns/net"

// dial connects to an address, an IP and a port, in the enclosure's network. A
// socket stays in the network in which it was made.
func (e *enclosure) dial(ctx context.Context, network, address string) (net.Conn, error) {
	runtime.LockOSThread()
	own, err := os.Open(ownNetwork)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer func() { _ = own.Close() }() // only held open
	if err := unix.Setns(int(e.net.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter the cluster's network: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return nil, fmt.Errorf("leave the cluster's network: %w", back) // the thread is lost, and ends with the goroutine
	}
	runtime.UnlockOSThread()
	return conn, err
}
