package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroup is the control group, of the same name in every hierarchy, that holds
// the containers of one node and the shims that watch over them. Everything in it
// was started by that node's containerd.
type cgroup struct {
	name   string
	mounts []cgroupMount
}

// cgroupMount is one mounted hierarchy.
type cgroupMount struct {
	dir     string
	unified bool // version 2
}

func newCgroup(name string) (*cgroup, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	g := &cgroup{name: name, mounts: parseCgroupMounts(data)}
	if len(g.mounts) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted, and containers need them")
	}
	return g, nil
}

// parseCgroupMounts finds the hierarchies in the text of a mountinfo file.
func parseCgroupMounts(mountinfo []byte) []cgroupMount {
	var mounts []cgroupMount
	for lines := bufio.NewScanner(bytes.NewReader(mountinfo)); lines.Scan(); {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) == 0 {
			continue
		}
		if kind[0] == "cgroup" || kind[0] == "cgroup2" {
			mounts = append(mounts, cgroupMount{dir: fields[4], unified: kind[0] == "cgroup2"})
		}
	}
	return mounts
}

// shims is the group below that of a node in which containerd puts its shims. It
// joins a group, but creates none.
const shims = "shims"

// create makes the group, and that of the shims, in every hierarchy.
func (g *cgroup) create() error {
	for _, m := range g.mounts {
		own := cgroupMount{filepath.Join(m.dir, g.name), m.unified}
		if err := errors.Join(m.add(g.name), own.add(shims)); err != nil {
			return errors.Join(fmt.Errorf("create a cgroup: %w", err), g.remove())
		}
	}
	return nil
}

// add makes a group below with all that it takes to hold processes.
func (m cgroupMount) add(name string) error {
	if err := m.delegate(); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(m.dir, name), 0o755); err != nil {
		return err
	}
	return m.inheritCPUs(name)
}

// delegate lets groups below have all controllers, which version 1 does anyway.
func (m cgroupMount) delegate() error {
	if !m.unified {
		return nil
	}
	controllers, err := os.ReadFile(filepath.Join(m.dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(m.dir, "cgroup.subtree_control"), []byte("+"+name), 0o644); err != nil {
			return fmt.Errorf("pass the controller %s on; in a container this takes the machine's cgroup namespace: %w", name, err)
		}
	}
	return nil
}

// inheritCPUs fills in what a group of the cpuset hierarchy, version 1, lacks at
// first and cannot hold a process without.
func (m cgroupMount) inheritCPUs(name string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		from, to := filepath.Join(m.dir, file), filepath.Join(m.dir, name, file)
		value, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another controller, or version 2, which inherits
		}
		if err == nil {
			err = os.WriteFile(to, value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// end kills every process in the group and removes it.
func (g *cgroup) end() error {
	for end := time.Now().Add(killAfter); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		pids := g.pids()
		if len(pids) == 0 {
			return g.remove()
		}
		for _, pid := range pids {
			if err := g.kill(pid); err != nil {
				return fmt.Errorf("end container process %d: %w", pid, err)
			}
		}
	}
	return fmt.Errorf("processes %v of cgroup %s do not end", g.pids(), g.name)
}

// kill ends one process if it still is in the group. The handle is taken before
// the check, so that the pid cannot change hands in between.
func (g *cgroup) kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if !slices.Contains(g.pids(), pid) {
		return nil
	}
	return ignoreGone(p.Signal(syscall.SIGKILL))
}

// pids lists the processes in the group and in those below, each once.
func (g *cgroup) pids() []int {
	var pids []int
	g.walk(func(dir string) {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return // it went away meanwhile
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	})
	slices.Sort(pids)
	return slices.Compact(pids)
}

// remove removes the group and those below, from the bottom up. A group whose
// last process has just ended is busy for a moment.
func (g *cgroup) remove() error {
	var err error
	for range 50 {
		err = nil
		var dirs []string
		g.walk(func(dir string) { dirs = append(dirs, dir) })
		if len(dirs) == 0 {
			return nil
		}
		for _, dir := range slices.Backward(dirs) {
			err = errors.Join(err, syscall.Rmdir(dir))
		}
		if err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("remove cgroup %s: %w", g.name, err)
}

// walk visits the group's directories that exist, parents before children.
func (g *cgroup) walk(visit func(dir string)) {
	for _, m := range g.mounts {
		_ = filepath.WalkDir(filepath.Join(m.dir, g.name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				visit(path)
			}
			return nil // what vanishes while it is read is what shall vanish
		})
	}
}
