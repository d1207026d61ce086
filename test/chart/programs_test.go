package chart

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	programDir  string
	errProgram  error
	programOnce sync.Once
)

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// program builds the programs of the repository once, and says where one is.
func program(t *testing.T, name string) string {
	t.Helper()
	programOnce.Do(func() {
		// It outlives the test that asks first.
		if programDir, errProgram = os.MkdirTemp("", "programs"); errProgram != nil { //nolint:usetesting // for all tests
			return
		}
		cmd := exec.Command("go", "build", "-o", programDir+"/", "./cmd/dispatch-admission", "./cmd/dispatch-hook", "./cmd/dispatchctl")
		cmd.Dir = root
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if errProgram = cmd.Run(); errProgram != nil {
			errProgram = &exec.Error{Name: out.String(), Err: errProgram}
		}
	})
	if errProgram != nil {
		t.Fatal(errProgram)
	}
	return filepath.Join(programDir, name)
}

// run is what a program says, and how it ended.
func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, name), args...).CombinedOutput()
	return string(out), err
}

var flagName = regexp.MustCompile(`(?m)^\s+(?:-[a-z], )?-?-([a-z-]+)`)

// flags are those that a usage text lists.
func flags(t *testing.T, usage string) []string {
	t.Helper()
	var names []string
	for _, m := range flagName.FindAllStringSubmatch(usage, -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		t.Fatalf("no flag was found in %q", usage)
	}
	return names
}

// TestFlags: the programs know every flag and every command that the chart gives them.
func TestFlags(t *testing.T) {
	known := map[string][]string{}
	each(t, func(t *testing.T, r rendering) {
		for _, p := range podTemplates(t, r.Rendered) {
			for _, c := range p.containers() {
				if c.Command[0] == "own-hook" {
					continue // not ours
				}
				line := slices.Concat(c.Command, c.Args)
				command := line[:1]
				if line[0] == "dispatchctl" {
					command = dispatchctl(t, line)
				}
				key := strings.Join(command, " ")
				if known[key] == nil {
					usage, err := run(t, command[0], append(slices.Clone(command[1:]), "--help")...)
					if err != nil {
						t.Errorf("%s: %s: %v", p.owner, key, err)
						known[key] = []string{"(no such command)"}
						continue
					}
					known[key] = flags(t, usage)
				}
				for _, arg := range line[len(command):] {
					name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
					if strings.HasPrefix(arg, "-") && !slices.Contains(known[key], name) {
						t.Errorf("%s: %s does not know -%s", p.owner, key, name)
					}
				}
			}
		}
	})
	if len(known) < 4 {
		t.Errorf("only %v were looked at", known)
	}
}

// dispatchctl is the command of a command line: the words that are commands.
func dispatchctl(t *testing.T, line []string) []string {
	t.Helper()
	if line[1] == "queues" {
		return line[:3]
	}
	usage, err := run(t, "dispatchctl", "--help")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^\s+` + regexp.QuoteMeta(line[1]) + `\s`).MatchString(usage) {
		t.Errorf("dispatchctl has no command %s", line[1])
	}
	return line[:2]
}
