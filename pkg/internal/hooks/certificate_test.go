package hooks

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/runner"
)

func TestParseCertificate(t *testing.T) {
	a := newAuthority(t)
	good, other := a.secret(t, "controller", forAnHour), a.secret(t, "other", forAnHour)
	garbage := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	tests := map[string]struct {
		reason string
		key    string // that is another one than in a good Secret
		value  []byte
		want   string // how the error begins
	}{
		"Good":          {"as cert-manager writes it", "ca.crt", a.PEM(), ""},
		"Chain":         {"with those between", "tls.crt", append(bytes.Clone(good["tls.crt"]), a.PEM()...), ""},
		"NoCertificate": {"the key alone", "tls.crt", nil, "tls.crt: missing"},
		"NoKey":         {"the certificate alone", "tls.key", nil, "tls.key: missing"},
		"NotPEM":        {"another encoding", "tls.crt", []byte("secret text"), "tls.crt: holds no PEM certificate"},
		"Swapped":       {"the key in the place of the certificate", "tls.crt", good["tls.key"], "tls.crt: holds no PEM certificate"},
		"Garbage":       {"no certificate in it", "tls.crt", garbage, "tls.crt: "},
		"KeyNotPEM":     {"another encoding", "tls.key", []byte("secret text"), "tls.key: "},
		"KeySwapped":    {"the certificate in the place of the key", "tls.key", good["tls.crt"], "tls.key: "},
		"KeyOfOther":    {"the key of another certificate", "tls.key", other["tls.key"], "tls.key: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			data := maps.Clone(good)
			data[tc.key] = tc.value
			cert, err := ParseCertificate(data)
			switch {
			case tc.want == "" && (err != nil || cert.Leaf.Subject.CommonName != "controller"):
				t.Errorf("%s: %v", tc.reason, err)
			case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want) || cert != nil):
				t.Errorf("%s: error %v, want %s", tc.reason, err, tc.want)
			case err != nil && strings.Contains(err.Error(), "secret text"):
				t.Errorf("%s: the error tells what is in the Secret: %v", tc.reason, err)
			}
		})
	}
}

func TestCertificateIsKeptAndRenewed(t *testing.T) {
	a, b := &tls.Certificate{}, &tls.Certificate{}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var cert *tls.Certificate
		var failure error
		reads := 0
		c := newCertificates(slog.New(slog.NewTextHandler(&log, nil)), func(ctx context.Context) (*tls.Certificate, error) {
			if _, limited := ctx.Deadline(); !limited {
				t.Error("no deadline")
			}
			reads++
			return cert, failure
		})
		get := func(what string, want *tls.Certificate, wantReads int) {
			t.Helper()
			got, err := c.get(t.Context())
			if got != want || (want == nil) != (err != nil) || reads != wantReads {
				t.Errorf("%s: got %p, %v after %d reads; want %p after %d", what, got, err, reads, want, wantReads)
			}
		}
		failure = errBroken
		get("no Secret yet", nil, 1)
		get("at once again", nil, 1)
		time.Sleep(certificateGap)
		failure = nil
		get("none, and no error", nil, 2)
		time.Sleep(certificateGap)
		cert = a
		get("there it is", a, 3)
		cert = b
		time.Sleep(time.Minute - 1)
		get("within the minute", a, 3)
		time.Sleep(time.Nanosecond)
		get("after the minute", b, 4)
		if log.Len() != 0 {
			t.Errorf("logged %s", &log)
		}

		cert, failure = nil, errBroken
		time.Sleep(time.Minute)
		get("cannot be read", b, 5)
		get("at once again", b, 5)
		time.Sleep(certificateGap)
		get("still not", b, 6)
		if n := len(lines(&log)); n != 1 {
			t.Errorf("logged %d lines", n)
		}
		cert, failure = a, nil
		time.Sleep(certificateGap)
		get("readable again", a, 7)
	})
}

// One read serves all connections that begin at the same time.
func TestCertificateIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		c := newCertificates(slog.New(slog.DiscardHandler), func(ctx context.Context) (*tls.Certificate, error) {
			reads++
			<-ctx.Done() // hangs until its deadline
			return nil, ctx.Err()
		})
		start := time.Now()
		done := make(chan error, 10)
		for range cap(done) {
			go func() { _, err := c.get(t.Context()); done <- err }()
		}
		for range cap(done) {
			if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(start); reads != 1 || took != certificateGap {
			t.Errorf("%d reads in %v", reads, took)
		}

		time.Sleep(certificateGap)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, err := c.get(t.Context()); done <- err }()
		synctest.Wait()
		go func() { _, err := c.get(ctx); done <- err }()
		cancel() // ends the waiting alone
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		<-done
	})
}

// The Secret that the gate names is shown to the server, and is read anew for a
// new connection once it is old.
func TestClientCertificate(t *testing.T) {
	a := newAuthority(t)
	server, seen := mutual(t, a)
	var secrets []string
	f := newFixture(t, func(o *Options) {
		o.Certificate = func(_ context.Context, secret string) (*tls.Certificate, error) {
			secrets = append(secrets, secret)
			return a.pair(t, secret, forAnHour), nil
		}
	})
	f.configure(https("policy", server.URL, a, "first"))
	for _, offer := range []string{"a", "b"} {
		if o := f.askAndWait("policy", offer); o.Cause != runner.CauseNone {
			t.Errorf("got %+v", o)
		}
		f.gates["policy"].hook.client.Close() // a connection of its own for each
		if name := <-seen; name != "first" {
			t.Errorf("the server saw %s", name)
		}
	}
	f.configure(https("policy", server.URL, a, "second"))
	f.askAndWait("policy", "c")
	if name := <-seen; name != "second" || strings.Join(secrets, " ") != "first second" {
		t.Errorf("the server saw %s, the Secrets read were %q", name, secrets)
	}
}
