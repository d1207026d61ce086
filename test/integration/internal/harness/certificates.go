package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"time"
)

// Pair is a certificate and its private key, in PEM.
type Pair struct{ Cert, Key []byte }

// Certificates are what an adapter and those who ask it show to each other, all of
// one authority and for an hour.
type Certificates struct {
	// CA is the authority's certificate, in PEM.
	CA             []byte
	Server, Client Pair
}

// NewCertificates makes certificates of a new authority; that of the server is for
// this machine and for names.
func NewCertificates(names ...string) (*Certificates, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	server, err := signed(root, key, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	client, clientErr := signed(root, key, &x509.Certificate{
		SerialNumber: big.NewInt(3), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return &Certificates{CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Server: server, Client: client}, errors.Join(err, clientErr)
}

// signed makes a key and a certificate as in the template, valid as long as the authority's.
func signed(ca *x509.Certificate, signer *ecdsa.PrivateKey, template *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	template.Subject = pkix.Name{CommonName: "hook"}
	template.KeyUsage, template.NotBefore, template.NotAfter = x509.KeyUsageDigitalSignature, ca.NotBefore, ca.NotAfter
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, err
}
