package hooks

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/testca"
)

// authority signs certificates for the tests.
type authority struct{ *testca.Authority }

// forAnHour is when most certificates of the tests are valid.
var forAnHour = [2]time.Duration{-time.Hour, time.Hour}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	return &authority{testca.New(t)}
}

// secret is the data of a Secret with a certificate for name.
func (a *authority) secret(t *testing.T, name string, valid [2]time.Duration) map[string][]byte {
	t.Helper()
	cert, key := a.Pair(t, valid[0], valid[1], &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return map[string][]byte{"tls.crt": cert, "tls.key": key}
}

func (a *authority) pair(t *testing.T, name string, valid [2]time.Duration) *tls.Certificate {
	t.Helper()
	cert, err := ParseCertificate(a.secret(t, name, valid))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
