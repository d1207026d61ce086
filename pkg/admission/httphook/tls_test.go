package httphook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// authority signs certificates for the tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign fills template in and signs it, with its own key for the authority.
func (a *authority) sign(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: "test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) leaf(t *testing.T, usage x509.ExtKeyUsage, names ...string) *tls.Certificate {
	t.Helper()
	cert, key := a.sign(t, &x509.Certificate{
		DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature,
	})
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func TestTLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	serverCert := ours.leaf(t, x509.ExtKeyUsageServerAuth, "hook.example")
	with := func(c *tls.Certificate) func() (*tls.Certificate, error) {
		return func() (*tls.Certificate, error) { return c, nil }
	}
	ourClient := with(ours.leaf(t, x509.ExtKeyUsageClientAuth))
	otherClient := with(others.leaf(t, x509.ExtKeyUsageClientAuth))

	tests := map[string]struct {
		reason string
		mutual bool   // the server asks for a client certificate
		max    uint16 // TLS version of the server, 0 for all
		client Config
		ok     bool
	}{
		"Bundle":        {"certificate and name fit", false, 0, Config{CABundle: ours.pem(), ServerName: "hook.example"}, true},
		"OtherBundle":   {"another authority", false, 0, Config{CABundle: others.pem(), ServerName: "hook.example"}, false},
		"SystemRoots":   {"the system does not know ours", false, 0, Config{ServerName: "hook.example"}, false},
		"OtherName":     {"another name", false, 0, Config{CABundle: ours.pem(), ServerName: "other.example"}, false},
		"NoName":        {"the host of the URL is the name", false, 0, Config{CABundle: ours.pem()}, false},
		"OldServer":     {"TLS 1.2 is too old", false, tls.VersionTLS12, Config{CABundle: ours.pem(), ServerName: "hook.example"}, false},
		"Mutual":        {"the server knows the client", true, 0, Config{CABundle: ours.pem(), ServerName: "hook.example", ClientCertificate: ourClient}, true},
		"MutualNone":    {"a client without certificate", true, 0, Config{CABundle: ours.pem(), ServerName: "hook.example"}, false},
		"MutualNil":     {"no certificate and no error", true, 0, Config{CABundle: ours.pem(), ServerName: "hook.example", ClientCertificate: with(nil)}, false},
		"MutualUnknown": {"a client of another authority", true, 0, Config{CABundle: ours.pem(), ServerName: "hook.example", ClientCertificate: otherClient}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(Handler(hookOf(admission.Refuse("no"), nil)))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.TLS = &tls.Config{Certificates: []tls.Certificate{*serverCert}, MaxVersion: tc.max}
			if tc.mutual {
				server.TLS.ClientAuth, server.TLS.ClientCAs = tls.RequireAndVerifyClientCert, ours.pool()
			}
			server.StartTLS()
			defer server.Close()
			tc.client.URL = server.URL
			d, err := newClient(t, tc.client).Admit(t.Context(), &admission.Request{})
			if tc.ok && (err != nil || !d.Equal(admission.Refuse("no"))) {
				t.Errorf("%s: got %v, %v", tc.reason, d, err)
			}
			if !tc.ok && KindOf(err) != KindConnection {
				t.Errorf("%s: got %v, %v", tc.reason, d, err)
			}
		})
	}
}

// A server that accepts and never says a word must not keep a goroutine and a
// connection for every call.
func TestMuteServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client := newClient(t, Config{URL: "https://" + listener.Addr().String()})
	if got := client.transport.TLSHandshakeTimeout; got != 10*time.Second {
		t.Errorf("a handshake may take %v", got)
	}
	if got := newDialer(false).Timeout; got != 10*time.Second {
		t.Errorf("a connection may take %v", got)
	}
	client.transport.TLSHandshakeTimeout = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := client.Admit(ctx, &admission.Request{}); KindOf(err) != KindTimeout {
		t.Errorf("got %v", err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("the client keeps the connection: %v", err)
	}
	// A call that waits longer hears of it.
	if _, err := client.Admit(t.Context(), &admission.Request{}); KindOf(err) != KindTimeout {
		t.Errorf("got %v", err)
	}
}
