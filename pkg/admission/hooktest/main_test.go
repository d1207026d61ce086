package hooktest_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

func TestCommand(t *testing.T) {
	good := onSocket(t, httphook.Handler(varied))
	bad := onSocket(t, answering(503, "later"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := "http://" + listener.Addr().String()
	_ = listener.Close()
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
		"Nothing":   {nil, 2, "hooktest: -url, -unix-socket: exactly"},
		"NotTLS":    {[]string{"-unix-socket", good, "-server-name", "a"}, 2, "hooktest: -server-name: for https only"},
		"NoURL":     {[]string{"-url", "localhost"}, 2, "hooktest: -url: "},
		"NoListen":  {[]string{"-unix-socket", good + ".none"}, 2, "hooktest: cannot connect: dial unix"},
		"NoPort":    {[]string{"-url", unused}, 2, "hooktest: cannot connect: dial tcp"},
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
			if code == 2 && strings.Contains(out.String(), "ok  ") {
				t.Errorf("some checks passed\n%s", &out)
			}
		})
	}
}
