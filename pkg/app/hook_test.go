package app

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

func TestParseHookFlags(t *testing.T) {
	f, err := parseHookFlags([]string{"-config", "c"})
	if err != nil {
		t.Fatal(err)
	}
	// Beside the controller in one pod, its ports are taken.
	controller, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.MetricsAddress == controller.MetricsAddress || f.MetricsAddress == controller.ProbeAddress {
		t.Errorf("-metrics-bind-address is %s, as for the controller", f.MetricsAddress)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "-config is missing"},
		{[]string{"-config=c", "serve"}, `"serve"`},
		{[]string{"-config=c", "-nonsense"}, "-nonsense"},
		{[]string{"-config=c", "-metrics-bind-address=8082"}, "-metrics-bind-address"},
		{[]string{"-config=c", "-log-level=INFO"}, "-log-level"},
		{[]string{"-config=c", "-log-format="}, "-log-format"},
		{[]string{"-config=c", "-in-cluster", "-kubeconfig=x"}, "-in-cluster conflicts with -kubeconfig"},
	} {
		if _, err := parseHookFlags(tc.args); err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, errUsage) {
			t.Errorf("%q: error %v, want %q", tc.args, err, tc.want)
		}
	}
}

// hookFiles is a folder with a configuration that is good and one that is not.
func hookFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"good.yaml":  "listen: {unixSocket: " + dir + "/s}\npolicy: {rules: [{name: a, refuse: policy}]}\n",
		"bad.yaml":   "listen: {unixsocket: " + dir + "/s}\npolicy: {rules: [{name: a}]}\n",
		"own.yaml":   "listen: {unixSocket: " + dir + "/s}\n",
		"kueue.yaml": "listen: {unixSocket: " + dir + "/s}\npolicy: {rules: []}\nkueue: {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestHookEnds(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := hookFiles(t)
	own := admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) { return admission.Admit(), nil })
	for name, tc := range map[string]struct {
		args           []string
		hook           admission.Hook
		code           int
		stdout, stderr string
	}{
		"Help":       {[]string{"-h"}, nil, 0, "-metrics-bind-address", ""},
		"Version":    {[]string{"-version"}, nil, 0, "dispatch-hook ", ""},
		"Usage":      {[]string{"-nonsense"}, nil, 2, "", "dispatch-hook: flag provided but not defined: -nonsense"},
		"NoConfig":   {[]string{"-config=/nowhere"}, nil, 1, "", "dispatch-hook: -config: open /nowhere: "},
		"Valid":      {[]string{"-validate", "-config=good.yaml"}, nil, 0, "good.yaml: valid\n", ""},
		"Broken":     {[]string{"-validate", "-config=bad.yaml"}, nil, 1, "", "dispatch-hook: bad.yaml:1: listen.unixsocket: is no field; did you mean unixSocket?\ndispatch-hook: bad.yaml:2: rule "},
		"FirstLoad":  {[]string{"-config=bad.yaml"}, nil, 1, "", "dispatch-hook: bad.yaml:1: "},
		"OwnValid":   {[]string{"-validate", "-config=own.yaml"}, own, 0, "own.yaml: valid\n", ""},
		"Both":       {[]string{"-validate", "-config=good.yaml"}, own, 1, "", "dispatch-hook: good.yaml:2: policy: this program has a hook of its own"},
		"Neither":    {[]string{"-validate", "-config=own.yaml"}, nil, 1, "", "dispatch-hook: own.yaml:1: policy: is missing"},
		"NoCluster":  {[]string{"-config=kueue.yaml"}, nil, 1, "", "dispatch-hook: kueue is configured, so there is a start gate, which needs the cluster: no kubeconfig"},
		"Kubeconfig": {[]string{"-config=kueue.yaml", "-kubeconfig=/nowhere"}, nil, 1, "", "dispatch-hook: kueue is configured, so there is a start gate, which needs the cluster: -kubeconfig /nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(dir)
			var stdout, stderr bytes.Buffer
			if code := runHook(t.Context(), tc.args, tc.hook, &stdout, &stderr); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || !strings.HasPrefix(stderr.String(), tc.stderr) {
				t.Errorf("standard output %q, standard error %q", &stdout, &stderr)
			}
			for line := range strings.Lines(stderr.String()) {
				if !strings.HasPrefix(line, "dispatch-hook: ") {
					t.Errorf("a line without the name of the program: %q", line)
				}
			}
		})
	}
}

func TestHookUsageNamesEveryFlag(t *testing.T) {
	text := hookUsage()
	_, fs := newHookFlags()
	fs.VisitAll(func(f *flag.Flag) {
		if f.Usage == "" || !strings.Contains(text, "-"+f.Name) {
			t.Errorf("-%s is not explained", f.Name)
		}
	})
}

// TestHookServes runs the program as a main does, with the policy and with a hook
// of its own, until it is asked to stop.
func TestHookServes(t *testing.T) {
	own := admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		return admission.Refuse("own"), nil
	})
	for name, tc := range map[string]struct {
		config string
		hook   admission.Hook
		want   string
	}{"Policy": {"good.yaml", nil, "policy"}, "Own": {"own.yaml", own, "own"}} {
		t.Run(name, func(t *testing.T) {
			dir := hookFiles(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			code := make(chan int, 1)
			go func() {
				code <- runHook(ctx, []string{"-config", filepath.Join(dir, tc.config), "-metrics-bind-address=127.0.0.1:0"}, tc.hook, io.Discard, t.Output())
			}()
			client, err := httphook.NewClient(httphook.Config{UnixSocket: filepath.Join(dir, "s")})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			var d admission.Decision
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				if d, err = client.Admit(t.Context(), &admission.Request{}); err == nil || time.Now().After(deadline) {
					break
				}
			}
			if reason, _ := d.Refused(); err != nil || reason != tc.want {
				t.Errorf("%v %v", d, err)
			}
			stop()
			if got := <-code; got != exitOK {
				t.Errorf("exit code %d", got)
			}
			if _, err := os.Lstat(filepath.Join(dir, "s")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
		})
	}
}

// TestHookStartGate: the start gate is wired to the cluster that the command line
// names, and holds while that cannot be seen.
func TestHookStartGate(t *testing.T) {
	dir := hookFiles(t)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: a, user: {}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	code := make(chan int, 1)
	go func() {
		code <- runHook(ctx, []string{"-config", filepath.Join(dir, "kueue.yaml"), "-metrics-bind-address=0", "-kubeconfig", kubeconfig}, nil, io.Discard, io.Discard)
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "s"))
	}}}
	defer client.CloseIdleConnections()
	answer := func(method, path string) string {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(`{"namespace":"a","localQueue":"b"}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil && time.Now().Before(deadline) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			return string(body)
		}
	}
	if got := answer(http.MethodPost, "/v1/start"); !strings.Contains(got, `"decision":"Hold"`) {
		t.Errorf("/v1/start: %s", got)
	}
	if got := answer(http.MethodPost, "/v1/admit"); got != `{"decision":"Admit"}` {
		t.Errorf("/v1/admit: %s", got)
	}
	if got := answer(http.MethodGet, "/readyz"); !strings.Contains(got, `"ready": false`) {
		t.Errorf("/readyz: %s", got)
	}
	stop()
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d", got)
	}
}
