package cluster

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killAfter is how long a process has to end by itself after SIGTERM.
const killAfter = 5 * time.Second

// errNotOurs says that a recorded pid no longer is the recorded process.
var errNotOurs = errors.New("not the process that was started")

// Identity names one process beyond the reuse of its pid.
type Identity struct {
	PID int `json:"pid"`
	// Start is when the kernel started it, in clock ticks since boot.
	Start uint64 `json:"start"`
	// Exe is the path of its executable.
	Exe string `json:"exe"`
}

// Identify records who the running process pid is, given the executable that
// was started.
func Identify(pid int, exe string) (Identity, error) {
	stat, err := readStat(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Identity{PID: pid, Start: stat.start, Exe: exe}, nil
}

// Alive reports whether the process still runs and still is the one recorded.
func (i Identity) Alive() bool { return i.verify() == nil }

func (i Identity) verify() error {
	stat, err := readStat(i.PID)
	if err != nil {
		return errors.Join(errNotOurs, err)
	}
	if stat.state == "Z" || stat.start != i.Start {
		return errNotOurs
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", i.PID))
	if err != nil {
		return errors.Join(errNotOurs, err)
	}
	// The kernel marks an executable that was removed since.
	if strings.TrimSuffix(exe, " (deleted)") != i.Exe {
		return errNotOurs
	}
	return nil
}

// signal sends sig to the process if it still is the one recorded. The handle is
// taken before the check, so that the pid cannot change hands in between.
func (i Identity) signal(sig os.Signal) error {
	p, err := os.FindProcess(i.PID)
	if err != nil {
		return errors.Join(errNotOurs, err)
	}
	defer func() { _ = p.Release() }()
	if err := i.verify(); err != nil {
		return err
	}
	return p.Signal(sig)
}

// stop ends the process: SIGTERM, and SIGKILL if it is still there after
// killAfter. It returns once the process is gone.
func (i Identity) stop() error {
	if err := i.signal(syscall.SIGTERM); err != nil {
		return ignoreGone(err)
	}
	// A process that a test has paused must run to see SIGTERM.
	if err := ignoreGone(i.signal(syscall.SIGCONT)); err != nil {
		return err
	}
	if i.waitGone(killAfter) {
		return nil
	}
	if err := i.signal(syscall.SIGKILL); err != nil {
		return ignoreGone(err)
	}
	if i.waitGone(killAfter) {
		return nil
	}
	return fmt.Errorf("process %d (%s) does not end", i.PID, i.Exe)
}

func (i Identity) waitGone(limit time.Duration) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if !i.Alive() {
			return true
		}
	}
	return false
}

func ignoreGone(err error) error {
	if errors.Is(err, errNotOurs) || errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// procStat is what of /proc/PID/stat matters here.
type procStat struct {
	state string
	start uint64
}

func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	return parseStat(string(data))
}

// parseStat reads the state and the start time. The command name before them is
// in parentheses and may hold anything, parentheses and spaces included.
func parseStat(line string) (procStat, error) {
	const startField = 19 // counted from the state
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return procStat{}, fmt.Errorf("unexpected stat line %q", line)
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) <= startField {
		return procStat{}, fmt.Errorf("unexpected stat line %q", line)
	}
	start, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("start time in stat line: %w", err)
	}
	return procStat{state: fields[0], start: start}, nil
}

// Memory returns the resident memory of the process in bytes, 0 if it is gone.
func (i Identity) Memory() int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", i.PID))
	if err != nil || !i.Alive() {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64) // 0 if unreadable
			return kib << 10
		}
	}
	return 0
}
