package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// CacheEnv names the environment variable that overrides the directory for the
// built programs and for the clusters of the command line, which is
// dispatch-admission/cluster below os.UserCacheDir otherwise.
const CacheEnv = "DISPATCH_CLUSTER_CACHE"

// recipe counts changes of how programs and manifests are made. Raise it with
// every change that a cached toolbox must not survive.
const recipe = "2"

// CacheDir returns the directory that holds toolboxes and the command line's
// clusters.
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory (set %s): %w", CacheEnv, err)
	}
	return filepath.Join(dir, "dispatch-admission", "cluster"), nil
}

// self is the path of this module.
const self = "github.com/dispatch-admission/dispatch-admission/test/cluster"

// sourceDir finds this module's sources: beside this file, or, in a binary built
// with -trimpath, where the go command says the module is.
func sourceDir(ctx context.Context) (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		if dir := filepath.Dir(file); isFile(filepath.Join(dir, "go.mod")) {
			return dir, nil
		}
	}
	out, err := runGo(ctx, "", "list", "-m", "-f", "{{.Dir}}", self)
	if err != nil {
		return "", fmt.Errorf("find the sources of %s: %w", self, err)
	}
	return strings.TrimSpace(out), nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// cacheKey names the toolbox that the sources in src ask for: the pinned versions
// and the files that go into it.
func cacheKey(ctx context.Context, src string, files ...string) (string, error) {
	goVersion, err := runGo(ctx, src, "env", "GOVERSION")
	if err != nil {
		return "", fmt.Errorf("ask for the Go version: %w", err)
	}
	parts := [][]byte{[]byte(strings.TrimSpace(goVersion)), []byte(runtime.GOARCH), []byte(recipe)}
	for _, file := range append([]string{"go.mod", "go.sum"}, files...) {
		content, err := os.ReadFile(filepath.Join(src, file))
		if err != nil {
			return "", err
		}
		parts = append(parts, content)
	}
	return hashKey(parts...), nil
}

// hashKey digests its parts so that moving bytes from one to the next changes it.
func hashKey(parts ...[]byte) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// runGo runs the go command in dir and returns its standard output.
func runGo(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, goEnvironment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// goEnvironment keeps a workspace or a user's flags from changing what is built.
func goEnvironment() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly")
}

// lockFile takes an exclusive lock on path, which it creates, and says once on
// progress that it waits if another process has it.
func lockFile(ctx context.Context, path, waiting string, progress io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	told := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if !told {
			fmt.Fprintln(progress, waiting)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, ctx.Err()), f.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// LockDir keeps other processes from starting or stopping a cluster in dir until
// unlock is called.
func LockDir(ctx context.Context, dir string, progress io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	return lockFile(ctx, dir+".lock", "another process starts or stops this cluster; waiting for it", progress)
}
