package hooktest_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

func TestCommand(t *testing.T) {
	good := onSocket(t, httphook.Handler(varied))
	bad := onSocket(t, answering(503, "later"))
	request := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(request, []byte(`{"taskID":"a"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"Good":      {[]string{"-unix-socket", good, "-timeout", "1m"}, 0, "ok    answers every request\n"},
		"Request":   {[]string{"-unix-socket", bad, "-request", request}, 1, `FAIL  answers every request: request "` + request},
		"Bad":       {[]string{"-unix-socket", bad}, 1, "status 503"},
		"Help":      {[]string{"-help"}, 0, "-unix-socket path"},
		"Nothing":   {nil, 2, "url, unixSocket"},
		"Flag":      {[]string{"-nonsense"}, 2, "nonsense"},
		"Argument":  {[]string{"-unix-socket", good, "more"}, 2, `"more"`},
		"NoCA":      {[]string{"-url", "https://localhost", "-ca-file", "/none"}, 2, "-ca-file"},
		"NoKey":     {[]string{"-url", "https://localhost", "-cert-file", "/none"}, 2, "-cert-file, -key-file"},
		"NoRequest": {[]string{"-url", "https://localhost", "-request", "/none"}, 2, "request"},
		"NoTime":    {[]string{"-unix-socket", good, "-timeout", "0s"}, 2, "-timeout"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			code := hooktest.Main(t.Context(), tc.args, &out)
			if code != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit code %d, output\n%s", code, &out)
			}
		})
	}
}

// TestPython runs the suite against the example of the documentation.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("NOT TESTED: the Python hook of docs/examples needs python3 on the PATH: ", err)
	}
	script := filepath.Join("..", "..", "..", "docs", "examples", "python-hook", "hook.py")
	t.Run("UnixSocket", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		start(t, python, script, "--unix-socket", path)
		hooktest.RunServer(t, httphook.Config{UnixSocket: path}, patient)
	})
	t.Run("TCP", func(t *testing.T) {
		address := start(t, python, script, "--port", "0")
		hooktest.RunServer(t, httphook.Config{URL: address}, patient)
	})
}

// start runs a server until the end of the test and returns the address that
// it prints.
func start(t *testing.T, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Stderr = t.Output()
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Wait() }) // the context has ended by now
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "serving on ")
	if !ok {
		t.Fatalf("the server says %q", line)
	}
	return address
}
