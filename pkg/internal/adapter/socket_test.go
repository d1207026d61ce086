package adapter

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
)

func TestSocket(t *testing.T) {
	f := newFolder(t)
	r := start(t, Options{Config: f.config()})
	info, err := os.Lstat(f.socket())
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(f.socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// stale leaves a socket behind, as a crash does.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSocketLeftBehind(t *testing.T) {
	f := newFolder(t)
	stale(t, f.socket())
	start(t, Options{Config: f.config()})
	if !refuses(t, f.client(t), "first") {
		t.Error("not served")
	}
}

// TestSocketInTheWay: what is at the path stays as it is, and the field and the
// way out are named.
func TestSocketInTheWay(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(t *testing.T, f folder)
		want string
	}{
		"File": {func(t *testing.T, f folder) { f.write(t, "s", "precious") }, "something is there that is no socket; remove it, or choose another path"},
		"Folder": {func(t *testing.T, f folder) {
			if err := os.Mkdir(f.socket(), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "something is there that is no socket"},
		"Link": {func(t *testing.T, f folder) {
			stale(t, f.path("other"))
			if err := os.Symlink(f.path("other"), f.socket()); err != nil {
				t.Fatal(err)
			}
		}, "something is there that is no socket"},
		"Live": {func(t *testing.T, f folder) { start(t, Options{Config: f.config()}) }, "another process serves there; stop it, or choose another path"},
		"NoFolder": {func(t *testing.T, f folder) {
			f.write(t, "config.yaml", "listen: {unixSocket: "+f.path("nowhere/s")+"}\n"+refusing("first"))
		}, "there is no folder "},
		"FolderIsFile": {func(t *testing.T, f folder) {
			f.write(t, "file", "precious")
			f.write(t, "config.yaml", "listen: {unixSocket: "+f.path("file/s")+"}\n"+refusing("first"))
		}, "is no folder"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolder(t)
			tc.make(t, f)
			before, _ := os.Lstat(f.socket())
			err := Run(t.Context(), Options{Config: f.config(), MetricsAddress: "0", Log: discard()})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), f.config()+":1: listen.unixSocket: ") {
				t.Errorf("%v, want %s", err, tc.want)
			}
			if after, _ := os.Lstat(f.socket()); before != nil && (after == nil || !os.SameFile(before, after)) {
				t.Error("what was there is gone")
			}
		})
	}
}

// TestSocketOfAnother: whoever took the path over meanwhile keeps it.
func TestSocketOfAnother(t *testing.T) {
	f := newFolder(t)
	r := start(t, Options{Config: f.config()})
	if err := os.Remove(f.socket()); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", f.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(f.socket()); err != nil {
		t.Error(err)
	}
}

// TestListenProblems: all that cannot be opened is named at once, and what could
// be is closed again.
func TestListenProblems(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	f := newFolder(t)
	f.secure(t, newAuthority(t), nil, refusing("first"))
	text, err := os.ReadFile(f.config())
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, "config.yaml", strings.Replace(string(text), "127.0.0.1:0", taken.Addr().String(), 1))
	err = Run(t.Context(), Options{Config: f.config(), MetricsAddress: other.Addr().String(), Log: discard()})
	for _, want := range []string{
		":1: listen.https.address: \"" + taken.Addr().String() + "\" is in use; stop the other process, or choose another port",
		"-metrics-bind-address: \"" + other.Addr().String() + "\" is in use",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := os.Lstat(f.socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	f.write(t, "config.yaml", strings.Replace(string(text), "127.0.0.1:0", "192.0.2.1:8443", 1))
	err = Run(t.Context(), Options{Config: f.config(), MetricsAddress: "0", Log: discard()})
	if err == nil || !strings.Contains(err.Error(), "is no address of this machine; leave the host out") {
		t.Error(err)
	}
}
