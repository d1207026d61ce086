package adapter

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"
)

// authority signs certificates for the tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key = a.sign(t, time.Hour, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "authority"},
	})
	return a
}

// sign fills template in and signs it, with its own key for the authority.
func (a *authority) sign(t *testing.T, left time.Duration, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(left)
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

// pair returns the PEM texts of a certificate for this machine and of its key.
func (a *authority) pair(t *testing.T, left time.Duration) (cert, key string) {
	t.Helper()
	c, k := a.sign(t, left, &x509.Certificate{
		Subject: pkix.Name{CommonName: "someone"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("CERTIFICATE", c.Raw), pemOf("PRIVATE KEY", der)
}

func (a *authority) pem() string { return pemOf("CERTIFICATE", a.cert.Raw) }

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// client trusts the authority, and has a certificate of the other one if that is
// not nil.
func (a *authority) client(t *testing.T, own *authority) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	config.RootCAs.AddCert(a.cert)
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
	f.write(t, "config.yaml", "listen: {unixSocket: "+f.socket()+", https: {address: '127.0.0.1:0', certFile: "+f.path("tls.crt")+
		", keyFile: "+f.path("tls.key")+ca+"}}\n"+policy)
}

// renew writes a certificate and its key, one after the other, as most do.
func (f folder) renew(t *testing.T, a *authority, left time.Duration) {
	t.Helper()
	cert, key := a.pair(t, left)
	f.write(t, "tls.crt", cert)
	f.write(t, "tls.key", key)
}
