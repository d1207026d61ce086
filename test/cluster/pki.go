package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certLifetime must exceed 90 days: Kueue rotates whatever ends sooner.
const certLifetime = 365 * 24 * time.Hour

// authority is a certificate authority of one cluster.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// subject says who a certificate is for.
type subject struct {
	name   string
	groups []string
	dns    []string
	ips    []net.IP
}

// pki is everything secret that a cluster needs before its first process starts.
type pki struct {
	dir      string
	ca       *authority // clients and the API server
	webhooks *authority // what the API server trusts of webhooks
}

// newPKI creates the authorities and writes the files the programs read.
func newPKI(dir string) (*pki, error) {
	p := &pki{dir: dir}
	if err := os.MkdirAll(p.path("webhook"), 0o700); err != nil {
		return nil, err
	}
	if err := p.createAuthorities(); err != nil {
		return nil, err
	}
	if err := p.writeServing(); err != nil {
		return nil, err
	}
	if err := p.writeServiceAccountKey(); err != nil {
		return nil, err
	}
	if err := p.writeWebhookServing(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *pki) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

func (p *pki) createAuthorities() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("key of the cluster's authority: %w", err)
	}
	if p.ca, err = newAuthority(subject{name: "cluster-ca"}, key); err != nil {
		return err
	}
	// Kueue's certificate controller parses PKCS #1 keys only, and verifies the
	// authority itself against the DNS name kueue-ca.
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("key of the webhooks' authority: %w", err)
	}
	p.webhooks, err = newAuthority(subject{name: "kueue-ca", groups: []string{"kueue"}, dns: []string{"kueue-ca"}}, rsaKey)
	if err != nil {
		return err
	}
	for name, a := range map[string]*authority{"ca": p.ca, "webhook/ca": p.webhooks} {
		if err := p.writePair(name, a.pem, a.key); err != nil {
			return err
		}
	}
	return nil
}

// writeServing issues what the API server shows to clients and to extensions.
func (p *pki) writeServing() error {
	server := subject{
		name: "kube-apiserver",
		dns:  []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		ips:  []net.IP{net.ParseIP(loopback), net.ParseIP(serviceIP)},
	}
	for name, who := range map[string]subject{"apiserver": server, "front-proxy": {name: frontProxyUser}} {
		cert, key, err := p.ca.issue(who, nil)
		if err != nil {
			return err
		}
		if err := p.writePair(name, cert, key); err != nil {
			return err
		}
	}
	return nil
}

// writeNode issues what the kubelet shows to the API server.
func (p *pki) writeNode() error {
	cert, key, err := p.ca.issue(subject{name: nodeUser, dns: []string{NodeName}, ips: []net.IP{net.ParseIP(nodeIP)}}, nil)
	if err != nil {
		return err
	}
	return p.writePair("node", cert, key)
}

// writeKubeletClient issues what the API server shows to the kubelet.
func (p *pki) writeKubeletClient() error {
	cert, key, err := p.ca.issue(subject{name: kubeletAPIUser}, nil)
	if err != nil {
		return err
	}
	return p.writePair("kubelet-client", cert, key)
}

func (p *pki) writeServiceAccountKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("service account key: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("service account public key: %w", err)
	}
	if err := os.WriteFile(p.path("sa.key"), keyPEM, 0o600); err != nil {
		return err
	}
	return os.WriteFile(p.path("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600)
}

// writeWebhookServing issues the one certificate that all three managers serve.
func (p *pki) writeWebhookServing() error {
	who := subject{
		name: kueueWebhookHost,
		dns:  []string{kueueWebhookHost, "localhost"},
		ips:  []net.IP{net.ParseIP(loopback)},
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("key of the webhooks' certificate: %w", err)
	}
	cert, _, err := p.webhooks.issue(who, key)
	if err != nil {
		return err
	}
	return p.writePair("webhook/tls", cert, key)
}

func (p *pki) writePair(name string, cert []byte, key crypto.Signer) error {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.path(name+".crt"), cert, 0o600); err != nil {
		return err
	}
	return os.WriteFile(p.path(name+".key"), keyPEM, 0o600)
}

func newAuthority(who subject, key crypto.Signer) (*authority, error) {
	template, err := certTemplate(who)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	template.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", who.name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", who.name, err)
	}
	return &authority{cert: cert, key: key, pem: encodeCert(der)}, nil
}

// issue signs a certificate for who, for both server and client use. A nil key
// means a new one.
func (a *authority) issue(who subject, key crypto.Signer) ([]byte, crypto.Signer, error) {
	template, err := certTemplate(who)
	if err != nil {
		return nil, nil, err
	}
	if key == nil {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, nil, fmt.Errorf("key for %s: %w", who.name, err)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate for %s: %w", who.name, err)
	}
	return encodeCert(der), key, nil
}

func certTemplate(who subject) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number for %s: %w", who.name, err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: who.name, Organization: who.groups},
		DNSNames:     who.dns,
		IPAddresses:  who.ips,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(certLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	switch k := key.(type) {
	case *rsa.PrivateKey:
		return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)}), nil
	case *ecdsa.PrivateKey:
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			return nil, fmt.Errorf("encode key: %w", err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
	}
	return nil, fmt.Errorf("encode key: unknown type %T", key)
}
