package hooktest_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// TestPython runs the suite against the example of the documentation.
func TestPython(t *testing.T) {
	python, script := pythonHook(t)
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

// pythonHook returns the interpreter and the script. Only a machine of a
// developer may do without.
func pythonHook(t *testing.T) (python, script string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatal("the Python hook of docs/examples needs python3 on the PATH: ", err)
	case err != nil:
		t.Skip("NOT TESTED: the Python hook of docs/examples needs python3 on the PATH: ", err)
	}
	return python, filepath.Join("..", "..", "..", "docs", "examples", "python-hook", "hook.py")
}

// What the example must not stumble over, whatever its policy.
func TestPythonInputs(t *testing.T) {
	python, script := pythonHook(t)
	address := start(t, python, script, "--port", "0")
	host := strings.TrimPrefix(address, "http://")
	const admits = `{"decision": "Admit"}`
	tests := map[string]struct {
		length string // of the body when empty
		body   string
		status int
		want   string
	}{
		"EmptyCPU":      {"", `{"resources":{"requests":{"cpu":""}}}`, 200, admits},
		"NullCPU":       {"", `{"resources":{"requests":{"cpu":null}}}`, 200, admits},
		"NullRequests":  {"", `{"resources":{"requests":null}}`, 200, admits},
		"NullResources": {"", `{"resources":null}`, 200, admits},
		"TooManyCPUs":   {"", `{"resources":{"requests":{"cpu":"8001m"}}}`, 200, "Refuse"},
		"Deep":          {"", strings.Repeat("[", 200_000), 400, "error"},
		"HugeLength":    {strings.Repeat("9", 5000), "", 413, "error"},
		"OddLength":     {"+1", "", 411, "error"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.length == "" {
				tc.length = strconv.Itoa(len(tc.body))
			}
			status, body := rawPost(t, host, tc.length, tc.body)
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("got %d %.200s", status, body)
			}
		})
	}
}

// rawPost sends a length that package net/http would not send.
func rawPost(t *testing.T, host, length, body string) (status int, answer string) {
	t.Helper()
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /v1/admit HTTP/1.1\r\nHost: a\r\nContent-Length: "+length+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// A path that was mistyped must not cost a file, but a socket that a crash left
// behind must not be in the way.
func TestPythonSocketPath(t *testing.T) {
	python, script := pythonHook(t)
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := exec.CommandContext(t.Context(), python, script, "--unix-socket", file).Run(); err == nil {
		t.Error("served in place of a file")
	}
	if b, err := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file is gone: %v", err)
	}
	stale := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	_ = listener.Close()
	start(t, python, script, "--unix-socket", stale)
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
