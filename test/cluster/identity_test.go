package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	line := "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3"
	got, err := parseStat(line)
	if err != nil {
		t.Fatal(err)
	}
	if want := (procStat{state: "S", start: 98765}); got != want {
		t.Errorf("parseStat = %+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "1 (x) S 1 2", "no command"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("parseStat(%q) accepts it", bad)
		}
	}
}

// startSleep starts a process to be told apart and ended.
func startSleep(t *testing.T) *process {
	t.Helper()
	exe, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("no sleep command")
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		t.Fatal(err)
	}
	// A program that holds several commands chooses by its name: keep it.
	p, err := spawn(command{exe: exe, args: []string{"600"}, log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	go p.wait()
	t.Cleanup(func() { _ = p.stop() })
	return p
}

func TestSignalReachesOnlyTheRecordedProcess(t *testing.T) {
	p := startSleep(t)
	if !p.Alive() {
		t.Fatal("the started process is not taken for ours")
	}
	older, other := p.Identity, p.Identity
	older.Start--
	other.Exe = "/bin/other"
	gone := Identity{PID: 1 << 30, Exe: p.Exe}
	for name, id := range map[string]Identity{"reused pid": older, "other program": other, "no such pid": gone} {
		if id.Alive() {
			t.Errorf("%s: taken for ours", name)
		}
		if err := id.signal(syscall.SIGKILL); !errors.Is(err, errNotOurs) {
			t.Errorf("%s: signal = %v, want %v", name, err, errNotOurs)
		}
		if err := id.stop(); err != nil {
			t.Errorf("%s: stop = %v, want none: there is nothing to stop", name, err)
		}
	}
	if !p.Alive() {
		t.Fatal("the process was hit")
	}
}

func TestStopEndsAPausedProcess(t *testing.T) {
	p := startSleep(t)
	if err := p.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if p.Alive() || p.running() {
		t.Error("the process is still there")
	}
	if took := time.Since(begin); took > killAfter {
		t.Errorf("it took %s: SIGTERM did not reach it", took)
	}
}

func TestUnexpectedEndIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*process)
		want    bool
	}{
		"a ready process ends by itself": {func(p *process) { p.markReady() }, true},
		"it was not ready yet":           {func(*process) {}, false},
		"it was asked to end":            {func(p *process) { p.markReady(); p.expectExit() }, false},
	} {
		p, err := spawn(command{exe: "/proc/self/exe", args: []string{"-test.run=^$"}, log: filepath.Join(t.TempDir(), "log")})
		if err != nil {
			t.Fatal(err)
		}
		tc.prepare(p)
		if got := p.wait(); got != tc.want {
			t.Errorf("%s: unexpected = %t, want %t", name, got, tc.want)
		}
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("old\none\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		offset int64
		lines  int
		want   string
	}{
		{0, 2, "two\nthree"}, {4, 9, "one\ntwo\nthree"}, {18, 2, ""},
	} {
		if got := tail(path, tc.offset, tc.lines); got != tc.want {
			t.Errorf("tail(%d, %d) = %q, want %q", tc.offset, tc.lines, got, tc.want)
		}
	}
}

// TestChildrenDieWithTheirParent runs a copy of this test program that starts a
// child as a cluster does, and kills the copy.
func TestChildrenDieWithTheirParent(t *testing.T) {
	const role = "CLUSTER_TEST_PARENT"
	if os.Getenv(role) != "" {
		p := startSleep(t)
		fmt.Println(p.PID)
		select {} // until killed
	}
	parent := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	parent.Env = append(os.Environ(), role+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	child, err := Identify(pid, startSleep(t).Exe)
	if err != nil {
		t.Fatal(err)
	}
	if !child.Alive() {
		t.Fatal("the child does not run")
	}
	_ = parent.Process.Kill()
	_ = parent.Wait() // "signal: killed"
	if !child.waitGone(2 * time.Second) {
		t.Error("the child outlives its parent")
		_ = child.stop()
	}
}
