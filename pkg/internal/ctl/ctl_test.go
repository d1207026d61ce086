package ctl

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of reading them")

// build is the program that tests run.
var build = Build{Version: "v1.2.3", Commit: "abcdef", Go: "go1.99"}

// run runs a command as the program does and returns all that it said.
func run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	err := Run(t.Context(), args, Streams{In: strings.NewReader(stdin), Out: &out, Err: &errs}, build)
	code := 0
	switch {
	case errors.Is(err, ErrUsage):
		code = 2
	case err != nil:
		code = 1
	}
	if err != nil && !errors.Is(err, ErrTold) {
		fmt.Fprintf(&errs, "%s: %v\n", Name, err)
	}
	text := out.String()
	if errs.Len() > 0 {
		text += "--- standard error\n" + errs.String()
	}
	return text + fmt.Sprintf("--- exit code %d\n", code)
}

// golden compares a text with what a file has.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s: -want +got\n%s", path, diff)
	}
}

// TestUsage: every wrong command line is told in one line that says what is right.
func TestUsage(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nowhere/kubeconfig")
	var all strings.Builder
	for _, args := range [][]string{
		{}, {"polciy"}, {"policy"}, {"policy", "prove"}, {"--flag"}, {"version", "now"}, {"version", "-o", "xml"},
		{"policy", "lint"}, {"policy", "lint", "--all", "x"}, {"policy", "test"}, {"policy", "test", "-o"},
		{"policy", "eval"}, {"policy", "eval", "-f", "x"}, {"policy", "eval", "-f", "-", "-r", "-"},
		{"policy", "eval", "-f", "x", "-r", "y", "--now", "noon"}, {"policy", "eval", "x"},
		{"request"}, {"request", "a", "b"}, {"request", "a/b/c"}, {"request", "/b"}, {"request", "job/"}, {"request", "a/b", "-o", "text"},
		{"request", "a/b", "--kubeconfig", "/nowhere/else"}, {"request", "a/b"},
		{"verify"}, {"verify", "policy"}, {"verify", "-l", "team in"},
		{"prepare-uninstall"}, {"prepare-uninstall", "--check", "x", "--policy", "detach"}, {"prepare-uninstall", "--gate", "x", "--release", "gate"},
	} {
		fmt.Fprintf(&all, "$ %s %s\n%s", Name, strings.Join(args, " "), run(t, "", args...))
	}
	golden(t, "usage", all.String())
}

func TestVersion(t *testing.T) {
	for _, args := range []string{"version", "--version"} {
		if got, want := run(t, "", args), "dispatchctl v1.2.3 commit abcdef go1.99\n--- exit code 0\n"; got != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
	if got, want := run(t, "", "version", "-o", "yaml"), "commit: abcdef\ngo: go1.99\nversion: v1.2.3\n--- exit code 0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHelp: every command says what it does, with an example.
func TestHelp(t *testing.T) {
	root := (&cli{}).root()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		for _, c := range append(cmd.Commands(), cmd) {
			if c.Name() == "help" || c.Name() == "version" {
				continue
			}
			if c.Short == "" || c.Long == "" || !c.HasSubCommands() && c.Example == "" {
				t.Errorf("%s: Short, Long or Example is missing", c.CommandPath())
			}
		}
	}
}

// TestCompletion: the shells are cobra's; what matters is that they are there.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := run(t, "", "completion", shell); !strings.Contains(got, Name) || !strings.HasSuffix(got, "--- exit code 0\n") {
			t.Errorf("%s: %.200s", shell, got)
		}
	}
	if got := run(t, "", "__complete", "version", "-o", ""); !strings.HasPrefix(got, "text\njson\nyaml\n") {
		t.Error(got)
	}
}
