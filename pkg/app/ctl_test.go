package app

import (
	"bytes"
	"strings"
	"testing"
)

// TestCtl: what went wrong is told once, on standard error, and the exit code says
// whose mistake it was.
func TestCtl(t *testing.T) {
	const policy = "rules: [{name: closed, refuse: closed}]"
	for name, tc := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"version":    {[]string{"version"}, 0, "dispatchctl ", ""},
		"help":       {[]string{"--help"}, 0, "Usage:", ""},
		"nothing":    {nil, 2, "", "dispatchctl: a command is missing"},
		"flag":       {[]string{"preflight", "-nonsense"}, 2, "", "dispatchctl: "},
		"lint":       {[]string{"policy", "lint", "-"}, 0, "1 file in order", ""},
		"told":       {[]string{"policy", "lint", "/nowhere"}, 1, "/nowhere: no such file", ""},
		"fault":      {[]string{"queues", "status", "--kubeconfig", "/nowhere"}, 1, "", "dispatchctl: --kubeconfig /nowhere: "},
		"no request": {[]string{"policy", "eval", "-f", "-", "-r", "/nowhere"}, 1, "", "dispatchctl: -r /nowhere: "},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := Ctl(t.Context(), tc.args, strings.NewReader(policy), &stdout, &stderr); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || !strings.HasPrefix(stderr.String(), tc.stderr) || tc.stderr == "" && stderr.Len() > 0 {
				t.Errorf("standard output %q, standard error %q", &stdout, &stderr)
			}
			if strings.Count(stderr.String(), "\n") > 1 {
				t.Errorf("more than a line: %q", &stderr)
			}
		})
	}
}
