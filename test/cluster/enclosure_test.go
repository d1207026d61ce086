package cluster

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// requireRoot skips a test that makes namespaces or control groups.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: it needs root")
	}
}

// TestEnclosure checks that what is inside is apart from the machine, and that
// what is left of it when it is closed is nothing.
func TestEnclosure(t *testing.T) {
	requireRoot(t)
	hidden := t.TempDir()
	e, err := newEnclosure(func() error {
		if err := unix.Mount("tmpfs", hidden, "tmpfs", 0, ""); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(hidden, "inside"), nil, 0o644)
	})
	if errors.Is(err, errNotPermitted) {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.command(t.Context(), "", "ls", hidden)
	if err != nil || strings.TrimSpace(out) != "inside" {
		t.Errorf("ls inside = %q, %v, want the file of the mount", out, err)
	}
	if isFile(filepath.Join(hidden, "inside")) {
		t.Error("a mount made inside is seen outside")
	}
	links := ""
	if err := e.do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/dev")
		links = string(data)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if strings.Count(links, ":") != 1 || !strings.Contains(links, "lo:") {
		t.Errorf("the new network has interfaces:\n%s\nwant loopback only", links)
	}
	thread := ""
	if err := e.do(func() (err error) {
		thread, err = os.Readlink("/proc/thread-self")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	e.close()
	e.close() // as a second Stop does
	if err := e.do(func() error { return nil }); !errors.Is(err, errStopped) {
		t.Errorf("after the end, do returns %v, want %v", err, errStopped)
	}
	eventually(t, "the end of the thread", func() bool {
		_, err := os.Stat("/proc/" + thread)
		return errors.Is(err, os.ErrNotExist)
	})
}

// TestEnclosureDial checks that connections reach what listens inside, and that
// those of others still go out of the machine's network.
func TestEnclosureDial(t *testing.T) {
	requireRoot(t)
	e, err := newEnclosure(func() error { return nil })
	if errors.Is(err, errNotPermitted) {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	if _, err := e.command(t.Context(), "", "ip", "link", "set", "lo", "up"); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	if err := e.do(func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "inside")
			_ = conn.Close()
		}
	}()
	conn, err := e.dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "inside" {
		t.Errorf("read %q, %v", got, err)
	}
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Errorf("what listens inside is reached from outside, at %s", conn.RemoteAddr())
	}
}
