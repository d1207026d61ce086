package adapter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// socketMode lets the group in, which the caller shares.
const socketMode = 0o660

// dialTimeout is how long a process that listens may take to let us know.
const dialTimeout = time.Second

// socket is a listener on a path that it removes at its end, if the path is
// still its own.
type socket struct {
	net.Listener
	path string
	self fs.FileInfo
}

// listenUnix makes a socket at the path. One that a crash left behind does not
// stand in the way; anything else at the path does.
func listenUnix(ctx context.Context, path string) (*socket, error) {
	if err := clearPath(ctx, path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be made: %w", path, err)
	}
	listener.SetUnlinkOnClose(false) // it would remove whatever is there then
	err = os.Chmod(path, socketMode)
	self, statErr := os.Lstat(path)
	if err := errors.Join(err, statErr); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &socket{listener, path, self}, nil
}

// clearPath removes a socket on which nobody listens.
func clearPath(ctx context.Context, path string) error {
	switch folder, err := os.Stat(filepath.Dir(path)); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: there is no folder %s; create it, or mount a volume there", path, filepath.Dir(path))
	case err != nil:
		return err
	case !folder.IsDir():
		return fmt.Errorf("%s: %s is no folder", path, filepath.Dir(path))
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s: something is there that is no socket; remove it, or choose another path", path)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close() // nothing was said
		return fmt.Errorf("%s: another process serves there; stop it, or choose another path", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: whether another process serves there cannot be told: %w", path, err)
	}
	return os.Remove(path)
}

// Close ends the listener and removes its path.
func (s *socket) Close() error {
	err := s.Listener.Close()
	if now, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(now, s.self) && now.ModTime().Equal(s.self.ModTime()) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}
