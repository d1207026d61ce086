package app

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets this program stand in for dispatchctl in the scripts of examples,
// so that nothing has to be built for them.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "dispatchctl" {
		os.Exit(Ctl(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// policyRepository copies the example and returns its folder.
func policyRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "docs", "examples", "policy-repo"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// replace replaces text in a file that must have it.
func replace(t *testing.T, name, text, by string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.ReplaceAll(string(data), text, by)
	if changed == string(data) {
		t.Fatalf("%s has no %q", name, text)
	}
	if err := os.WriteFile(name, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPolicyRepository: the script passes, and it would not if the policy were
// invalid or did something else.
func TestPolicyRepository(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	if err := os.Symlink(self, filepath.Join(tools, "dispatchctl")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text, by string
		want     string // in the output of a script that fails
	}{
		"AsItIs":  {},
		"Invalid": {"refuse: tasks", "refus: tasks", `unknown field "refus"`},
		"Other":   {`quantity("8")`, `quantity("9")`, "a large task is refused"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := policyRepository(t)
			if tc.text != "" {
				replace(t, filepath.Join(dir, "policy.yaml"), tc.text, tc.by)
			}
			script := exec.CommandContext(t.Context(), "sh", filepath.Join(dir, "ci.sh"))
			script.Env = append(os.Environ(), "PATH="+tools+string(os.PathListSeparator)+os.Getenv("PATH"))
			out, err := script.CombinedOutput()
			if (err == nil) != (tc.want == "") || !strings.Contains(string(out), tc.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestPolicyRepositoryServes: the adapter takes the files as they are mounted.
func TestPolicyRepositoryServes(t *testing.T) {
	dir := policyRepository(t)
	config := filepath.Join(dir, "dispatch-hook.yaml")
	replace(t, config, "/etc/dispatch-hook", dir)
	if code := runHook(t.Context(), []string{"-validate", "-config", config}, nil, io.Discard, t.Output()); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
