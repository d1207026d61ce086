package podrunner

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/isolation"
)

// testRoot makes a root with the test program in it.
func testRoot(t *testing.T) string {
	t.Helper()
	if err := isolation.Check(); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(root, binDir, "testprogram"), "../testprogram")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test program: %v\n%s", err, out)
	}
	return root
}

func TestProcess(t *testing.T) {
	root := testRoot(t)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	begin := func(args ...string) *process {
		p, err := command{
			root: root, exe: "/usr/local/bin/testprogram", args: args, env: []string{"POD_IP=127.64.0.1"}, dir: "/",
			hostname: "pod-0", user: isolation.User{UID: 65532, GID: 65532}, output: log,
		}.start()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for code, args := range map[int32][]string{0: {"-about"}, 3: {"-exit=3"}} {
		if got := begin(args...).wait(); got != code {
			t.Errorf("%v exits with %d, want %d", args, got, code)
		}
	}
	if os.Geteuid() == 0 && begin("-write=/x=y").wait() == 0 {
		t.Error("the root of its image is not read-only for a user that is not root")
	}
	if got := read(t, log.Name()); !strings.Contains(got, "uid=65532 ip=127.64.0.1") {
		t.Errorf("log %q: want the user and the environment of the command", got)
	} else if os.Geteuid() == 0 && !strings.Contains(got, "host=pod-0") {
		t.Errorf("log %q: want the pod's host name", got)
	}
	p := begin("-await=/never=x")
	p.signal(syscall.SIGTERM)
	if got, want := p.wait(), int32(128+syscall.SIGTERM); got != want {
		t.Errorf("ended by a signal: %d, want %d", got, want)
	}
	p.signal(syscall.SIGKILL) // nobody is hit, whoever has the number now
}

func TestProbeCommandIsKilledInTime(t *testing.T) {
	cmd := command{root: testRoot(t), exe: "/usr/local/bin/testprogram", dir: "/", args: []string{"-await=/never=x"}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := cmd.run(ctx); err == nil || !strings.Contains(err.Error(), "exits with 137") {
		t.Errorf("error %v, want one of a killed program", err)
	}
}

func TestMissingInterpreterIsExplained(t *testing.T) {
	if err := isolation.Check(); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "script"), "#!/bin/none\n", 0o755)
	if _, err := (command{root: root, exe: "/script", dir: "/"}).start(); err == nil || !strings.Contains(err.Error(), "is the program static") {
		t.Errorf("error %v, want a hint that programs must be static", err)
	}
}
