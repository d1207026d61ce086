package adapter

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/testca"
)

// authority signs certificates for the tests.
type authority struct{ *testca.Authority }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	return &authority{testca.New(t)}
}

// pair returns the PEM texts of a certificate for this machine and of its key.
func (a *authority) pair(t *testing.T, left time.Duration) (cert, key string) {
	t.Helper()
	c, k := a.Pair(t, -2*time.Hour, left, &x509.Certificate{
		Subject: pkix.Name{CommonName: "someone"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return string(c), string(k)
}

func (a *authority) pem() string { return string(a.PEM()) }

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// client trusts the authority, and has a certificate of the other one if that is
// not nil.
func (a *authority) client(t *testing.T, own *authority) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	config.RootCAs.AddCert(a.Cert)
	if own != nil {
		cert, err := tls.X509KeyPair(pairOf(own.pair(t, time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

func pairOf(cert, key string) (certPEM, keyPEM []byte) { return []byte(cert), []byte(key) }

// secure writes a configuration with HTTPS, the authority's certificate for it,
// and the certificates of clientCA if that is not nil. Its end is the policy.
func (f folder) secure(t *testing.T, a, clientCA *authority, policy string) {
	t.Helper()
	f.renew(t, a, time.Hour)
	ca := ""
	if clientCA != nil {
		f.write(t, "ca.crt", clientCA.pem())
		ca = ", clientCAFile: " + f.path("ca.crt")
	}
	f.write(t, "config.yaml", f.listenSecurely("tls.crt", "tls.key", ca)+policy)
}

// listenSecurely is the beginning of a configuration with HTTPS, whose end is more of it.
func (f folder) listenSecurely(cert, key, more string) string {
	return "listen: {unixSocket: " + f.socket() + ", https: {address: '127.0.0.1:0', certFile: " + f.path(cert) + ", keyFile: " + f.path(key) + more + "}}\n"
}

// renew writes a certificate and its key, one after the other, as most do.
func (f folder) renew(t *testing.T, a *authority, left time.Duration) {
	t.Helper()
	cert, key := a.pair(t, left)
	f.write(t, "tls.crt", cert)
	f.write(t, "tls.key", key)
}
