package adapter

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// certificates is what the files of the HTTPS listener held at one moment.
type certificates struct {
	cert, key, clientCA file
	digest              string
}

func (h *HTTPS) read() certificates {
	if h == nil {
		return certificates{}
	}
	c := certificates{cert: readFile(h.CertFile), key: readFile(h.KeyFile), clientCA: readFile(h.ClientCAFile)}
	c.digest = digest(c.cert, c.key, c.clientCA)
	return c
}

// identity is by what the listener is known and whom it knows.
type identity struct {
	config   *tls.Config
	clientCA string    // digest
	expiry   time.Time // of the certificate
	caExpiry time.Time // of the first authority to end, zero without any
}

// load makes an identity of the files. The error joins a line for each that is
// wrong, and says nothing of what is in the key.
func (c certificates) load(config *Config, configFile string) (*identity, error) {
	d := &document{file: configFile}
	problem := func(field string, f file, err error) {
		if f.err != nil {
			err = f.err // it names the file
		} else if err != nil {
			err = fmt.Errorf("%s: %w", f.path, err)
		}
		if err != nil {
			d.problem(config.lines[field], field, "%v", err)
		}
	}
	leaf, err := parseCertificates(c.cert.data)
	problem(fieldCert, c.cert, err)
	var pair tls.Certificate
	if len(leaf) > 0 || c.key.err != nil {
		// The certificate is good, so the rest is about the key.
		pair, err = tls.X509KeyPair(c.cert.data, c.key.data)
		problem(fieldKey, c.key, err)
	}
	id := &identity{clientCA: digest(c.clientCA), config: baseTLS()}
	if c.clientCA.path != "" {
		authorities, err := parseCertificates(c.clientCA.data)
		problem(fieldClientCA, c.clientCA, err)
		id.trust(authorities)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	id.config.Certificates = []tls.Certificate{pair}
	id.expiry = leaf[0].NotAfter
	return id, nil
}

// baseTLS is what holds of every connection. There are no session tickets, by
// which a client whose authority is gone could come back, and no HTTP/2, which
// has other limits.
func baseTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, NextProtos: []string{"http/1.1"}}
}

// trust lets in only those whose certificates go back to an authority.
func (id *identity) trust(authorities []*x509.Certificate) {
	pool := x509.NewCertPool()
	for _, a := range authorities {
		pool.AddCert(a)
		if id.caExpiry.IsZero() || a.NotAfter.Before(id.caExpiry) {
			id.caExpiry = a.NotAfter
		}
	}
	id.config.ClientCAs, id.config.ClientAuth = pool, tls.RequireAndVerifyClientCert
}

// parseCertificates returns all certificates of a PEM file, at least one. Other
// blocks are left alone: a certificate and its key may share a file.
func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		switch {
		case block == nil && len(all) == 0:
			return nil, errors.New("holds no PEM certificate")
		case block == nil:
			return all, nil
		case block.Type != "CERTIFICATE":
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, cert)
	}
}

// validity says what is wrong with the time of the certificate, "" if nothing.
func (id *identity) validity(now time.Time) string {
	leaf := id.config.Certificates[0].Leaf
	switch {
	case now.After(leaf.NotAfter):
		return "the certificate has expired"
	case now.Before(leaf.NotBefore):
		return "the certificate is not valid yet"
	}
	return ""
}
