package httphook

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

func TestConfig(t *testing.T) {
	certificate := func() (*tls.Certificate, error) { return nil, nil }
	tests := map[string]struct {
		config Config
		field  string // that the error names; empty means valid
		url    string
	}{
		"Nothing":         {Config{}, "url, unixSocket", ""},
		"Both":            {Config{URL: "https://a", UnixSocket: "/a"}, "url, unixSocket", ""},
		"Socket":          {Config{UnixSocket: "/run/hook.sock"}, "", "http://localhost/v1/admit"},
		"RelativeSocket":  {Config{UnixSocket: "hook.sock"}, "unixSocket", ""},
		"SocketServer":    {Config{UnixSocket: "/a", ServerName: "a"}, "serverName", ""},
		"HTTPS":           {Config{URL: "https://hook.ns.svc:8443"}, "", "https://hook.ns.svc:8443/v1/admit"},
		"Prefix":          {Config{URL: "https://a/team/hook/"}, "", "https://a/team/hook/v1/admit"},
		"WithPath":        {Config{URL: "https://a/v1/admit"}, "url", ""},
		"User":            {Config{URL: "https://u:p@a"}, "url", ""},
		"Query":           {Config{URL: "https://a?b"}, "url", ""},
		"EmptyQuery":      {Config{URL: "https://a?"}, "url", ""},
		"Fragment":        {Config{URL: "https://a#b"}, "url", ""},
		"NoHost":          {Config{URL: "https:///a"}, "url", ""},
		"Scheme":          {Config{URL: "ftp://a"}, "url", ""},
		"Unparsable":      {Config{URL: "https://a:b"}, "url", ""},
		"Loopback4":       {Config{URL: "http://127.1.2.3:80"}, "", "http://127.1.2.3:80/v1/admit"},
		"Loopback6":       {Config{URL: "http://[::1]:80"}, "", "http://[::1]:80/v1/admit"},
		"LoopbackMapped":  {Config{URL: "http://[::ffff:127.0.0.1]"}, "", "http://[::ffff:127.0.0.1]/v1/admit"},
		"LoopbackName":    {Config{URL: "http://localhost:8080"}, "", "http://localhost:8080/v1/admit"},
		"HTTPElsewhere":   {Config{URL: "http://10.0.0.1"}, "url", ""},
		"HTTPName":        {Config{URL: "http://localhost.example.com"}, "url", ""},
		"HTTPAny":         {Config{URL: "http://0.0.0.0"}, "url", ""},
		"HTTPBundle":      {Config{URL: "http://localhost", CABundle: []byte("x")}, "caBundle", ""},
		"HTTPServerName":  {Config{URL: "http://localhost", ServerName: "a"}, "serverName", ""},
		"HTTPCertificate": {Config{URL: "http://localhost", ClientCertificate: certificate}, "clientCertificate", ""},
		"BadBundle":       {Config{URL: "https://a", CABundle: []byte("x")}, "caBundle", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			client, err := NewClient(tc.config)
			if (err == nil) != (tc.config.Validate() == nil) {
				t.Errorf("NewClient and Validate differ: %v", err)
			}
			switch {
			case tc.field == "" && (err != nil || client.url != tc.url):
				t.Errorf("got %v, %v", client, err)
			case tc.field != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.field+": ")):
				t.Errorf("error %v does not name %s", err, tc.field)
			}
		})
	}
}

func TestSecretsStayOutOfErrors(t *testing.T) {
	for _, address := range []string{
		"https://u:hunter2@a", "https://u:hunter2@a:b", "https://u:hunter2/x@a", "https://u:hunter2%zz@a", "https://a:b/hunter2", "https://a\x7f/hunter2",
	} {
		_, err := NewClient(Config{URL: address})
		if err == nil || !strings.HasPrefix(err.Error(), "url: ") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	}
}

func TestProxy(t *testing.T) {
	tests := map[string]struct {
		config Config
		want   bool
	}{
		"Default": {Config{URL: "https://a"}, false},
		"Asked":   {Config{URL: "https://a", ProxyFromEnvironment: true}, true},
		"Plain":   {Config{URL: "http://localhost", ProxyFromEnvironment: true}, false},
		"Socket":  {Config{UnixSocket: "/a", ProxyFromEnvironment: true}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := newClient(t, tc.config).transport.Proxy != nil; got != tc.want {
				t.Errorf("uses a proxy: %t", got)
			}
		})
	}
}

// A name that is allowed must not lead away from this machine.
func TestLoopbackIsCheckedWhenDialling(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "10.0.0.1:80": false, "[fe80::1]:80": false, "nonsense": false,
	} {
		if got := loopbackOnly("tcp", address, nil) == nil; got != want {
			t.Errorf("%s allowed: %t", address, got)
		}
	}
	client := newClient(t, Config{URL: "http://localhost:1"})
	client.url = "http://192.0.2.1:1" + Path // as if the resolver had said so
	_, err := client.Admit(t.Context(), &admission.Request{})
	if KindOf(err) != KindConnection || !strings.Contains(err.Error(), "this machine only") {
		t.Errorf("got %v", err)
	}
}

func TestClientIsAHook(t *testing.T) {
	var hook admission.Hook = newClient(t, Config{UnixSocket: "/none"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := hook.Admit(ctx, &admission.Request{}); KindOf(err) != KindCanceled {
		t.Errorf("got %v", err)
	}
	if kind := KindOf(context.Canceled); kind != "" {
		t.Errorf("an error of others has kind %s", kind)
	}
}
