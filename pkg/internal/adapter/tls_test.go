package adapter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// ask asks by HTTPS and returns whether it was answered.
func (r *running) ask(c *http.Client) error {
	resp, err := c.Post("https://"+r.address(listenerHTTPS)+"/v1/admit", "application/json", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // else the connection is not used again
		return err
	}
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 1 {
		return fmt.Errorf("%s %s", resp.Proto, resp.Status)
	}
	return nil
}

// serial asks for the certificate of the server.
func (r *running) serial(t *testing.T, config *tls.Config) string {
	t.Helper()
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(t.Context(), "tcp", r.address(listenerHTTPS))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestHTTPS(t *testing.T) {
	f, a := newFolder(t), newAuthority(t)
	f.secure(t, a, nil, refusing("first"))
	r := start(t, Options{Config: f.config()})
	if err := r.ask(a.client(t, nil)); err != nil {
		t.Error(err)
	}
	if err := r.ask(newAuthority(t).client(t, nil)); err == nil {
		t.Error("a client of another authority was satisfied")
	}
	old := a.client(t, nil)
	old.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS12
	if err := r.ask(old); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	if n := r.logs.count("level=DEBUG msg=\"http: TLS handshake error"); n == 0 {
		t.Errorf("handshakes that fail are not told at debug level:\n%s", r.logs)
	}
}

func TestClientCA(t *testing.T) {
	f, a, clients := newFolder(t), newAuthority(t), newAuthority(t)
	f.secure(t, a, clients, refusing("first"))
	r := start(t, Options{Config: f.config()})
	if err := r.ask(a.client(t, clients)); err != nil {
		t.Error(err)
	}
	for name, other := range map[string]*authority{"none": nil, "of another authority": a} {
		if err := r.ask(a.client(t, other)); err == nil {
			t.Errorf("a client with a certificate that is %s was let in", name)
		}
	}
}

// TestRenew: a new certificate is served to new connections, also when its two
// files come one after the other.
func TestRenew(t *testing.T) {
	f, a := newFolder(t), newAuthority(t)
	f.secure(t, a, nil, refusing("first"))
	r := start(t, Options{Config: f.config()})
	trust := &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AddCert(a.Cert)
	first := r.serial(t, trust)
	series := `dispatch_hook_certificate_expiration_timestamp_seconds{certificate="server"}`
	expiry := r.metric(t, series)
	f.renew(t, a, 2*time.Hour)
	until(t, "the new certificate is served", func() bool { return r.serial(t, trust) != first })
	if now := r.metric(t, series); now == "" || now == expiry {
		t.Errorf("the metric of its end is %q and was %q", now, expiry)
	}
	second := r.serial(t, trust)
	for _, broken := range []string{"", "nonsense", pemOf("CERTIFICATE", []byte("x"))} {
		f.write(t, "tls.crt", broken)
		until(t, "it is told", func() bool {
			return r.metric(t, `dispatch_hook_config_last_reload_successful{part="certificates"}`) == "0"
		})
		if r.serial(t, trust) != second {
			t.Error("the last good certificate is gone")
		}
		status, body := r.get(t, "/readyz")
		if status != 200 || !strings.Contains(body, "listen.https.certFile: "+f.path("tls.crt")+": ") {
			t.Errorf("%d %s", status, body)
		}
		f.renew(t, a, 2*time.Hour)
		until(t, "it is good again", func() bool {
			return r.metric(t, `dispatch_hook_config_last_reload_successful{part="certificates"}`) == "1"
		})
		second = r.serial(t, trust)
	}
	f.renew(t, a, -time.Hour)
	until(t, "the end of a certificate is told", func() bool { return r.logs.count("the certificate has expired") == 1 })
}

// TestClientCAChanges: who was let in by an authority that is gone is asked
// again, although his connection stands.
func TestClientCAChanges(t *testing.T) {
	f, a, before, after := newFolder(t), newAuthority(t), newAuthority(t), newAuthority(t)
	f.secure(t, a, before, refusing("first"))
	brief := quick
	brief.write = 2 * time.Second // until connections are kept again
	r := start(t, Options{Config: f.config(), timing: brief})
	idle, busy, next := a.client(t, before), a.client(t, before), a.client(t, after)
	for _, c := range []*http.Client{idle, busy} {
		if err := r.ask(c); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for {
			if err := r.ask(busy); err != nil || ctx.Err() != nil {
				ended <- err
				return
			}
		}
	}()
	f.write(t, "ca.crt", after.pem())
	until(t, "the new authority is in force", func() bool { return r.ask(next) == nil })
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the busy connection was let in again")
		}
	case <-time.After(time.Minute):
		t.Error("the busy connection stayed")
	}
	stop()
	if err := r.ask(idle); err == nil {
		t.Error("the idle connection stayed")
	}
	kept := func() (is bool) {
		for range 2 {
			resp, err := next.Post("https://"+r.address(listenerHTTPS)+"/v1/admit", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			is = !resp.Close
		}
		return is
	}
	until(t, "connections are kept again", kept)
}

func TestCertificateProblems(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.pair(t, time.Hour)
	_, otherKey := a.pair(t, time.Hour)
	for name, tc := range map[string]struct {
		cert, key, ca string
		want          []string
	}{
		"Good":      {cert, key, a.pem(), nil},
		"OneFile":   {cert + key, cert + key, a.pem() + a.pem(), nil},
		"NoCert":    {"", key, a.pem(), []string{":1: listen.https.certFile: ", "/tls.crt: holds no PEM certificate"}},
		"KeyIsCert": {cert, cert, a.pem(), []string{":1: listen.https.keyFile: ", "/tls.key: tls: found a certificate rather than a key"}},
		"OtherKey":  {cert, otherKey, a.pem(), []string{":1: listen.https.keyFile: ", "private key does not match"}},
		"NoCA":      {cert, key, "x", []string{":1: listen.https.clientCAFile: ", "/ca.crt: holds no PEM certificate"}},
		"All":       {"x", "x", "x", []string{"listen.https.certFile", "listen.https.clientCAFile"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolder(t)
			f.secure(t, a, a, refusing("first"))
			f.write(t, "tls.crt", tc.cert)
			f.write(t, "tls.key", tc.key)
			f.write(t, "ca.crt", tc.ca)
			err := Check(Options{Config: f.config(), MetricsAddress: "0", Log: discard()})
			if (err == nil) != (len(tc.want) == 0) {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
			}
			if err != nil && strings.Contains(err.Error(), "PRIVATE") {
				t.Errorf("tells the key: %v", err)
			}
		})
	}
}

func TestCertificateMissing(t *testing.T) {
	f := newFolder(t)
	f.write(t, "config.yaml", `{listen: {https: {address: ":0", certFile: /nowhere/c, keyFile: /nowhere/k, clientCAFile: /nowhere/a}}, policy: {rules: []}}`)
	err := Check(Options{Config: f.config(), MetricsAddress: "0", Log: discard()})
	for _, want := range []string{"listen.https.certFile: open /nowhere/c: ", "listen.https.keyFile: open /nowhere/k: ", "listen.https.clientCAFile: open /nowhere/a: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
