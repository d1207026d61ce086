package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestParseCgroupMounts(t *testing.T) {
	const mountinfo = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 23 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 23 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	want := []cgroupMount{{dir: "/sys/fs/cgroup/memory"}, {dir: "/sys/fs/cgroup/unified", unified: true}}
	if got := parseCgroupMounts([]byte(mountinfo)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := parseCgroupMounts([]byte("nonsense\n")); got != nil {
		t.Errorf("nonsense holds %+v", got)
	}
}

// inGroup starts a process in a new control group of a node, as a container is.
func inGroup(t *testing.T) (g *cgroup, pid int, ended <-chan error) {
	t.Helper()
	requireRoot(t)
	g, err := newCgroup(newNodeID())
	if err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err := g.create(); err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	t.Cleanup(func() {
		if err := g.end(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	for _, m := range g.mounts {
		procs := filepath.Join(m.dir, g.name, shims, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return g, cmd.Process.Pid, end
}

// TestSweepNodes checks that the next start ends what a killed one has left, and
// leaves a living one alone.
func TestSweepNodes(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	g, pid, ended := inGroup(t)
	record := nodeRecord{ID: g.name, Dir: t.TempDir()}
	if err := recordNode(record); err != nil {
		t.Fatal(err)
	}
	if err := sweepNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(g.pids(), pid) {
		t.Fatal("a container of a living process was ended")
	}
	record.Owner = Identity{PID: os.Getpid(), Start: 1, Exe: "a process whose pid this one has got"}
	if err := record.write(); err != nil {
		t.Fatal(err)
	}
	if err := sweepNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(killAfter):
		t.Error("a container of a dead process runs on")
	}
	g.walk(func(dir string) { t.Errorf("%s is left", dir) })
	records, err := recordsDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(records, g.name+".json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
}

// TestEndNodeRefusesOtherGroups checks that no record can name a group that is
// not a node's.
func TestEndNodeRefusesOtherGroups(t *testing.T) {
	for _, name := range []string{"", ".", "../x", "system.slice", nodePrefix, nodePrefix + "0123456/"} {
		if err := endNode(name); err == nil || !strings.Contains(err.Error(), "no name of a node's") {
			t.Errorf("endNode(%q) = %v", name, err)
		}
	}
}
