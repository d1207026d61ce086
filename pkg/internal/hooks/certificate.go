package hooks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// The keys of a Secret of the type kubernetes.io/tls.
const (
	certificateKey = "tls.crt"
	privateKeyKey  = "tls.key"
)

// How long what was read of a Secret holds.
const (
	certificateAge = time.Minute     // a certificate, before it is read again
	certificateGap = 5 * time.Second // an error, and the deadline of one read
)

// ParseCertificate makes a certificate of the data of a Secret of the type
// kubernetes.io/tls. The error names the key of the Secret that is missing or
// wrong, and says nothing of what is in it.
func ParseCertificate(data map[string][]byte) (*tls.Certificate, error) {
	for _, key := range []string{certificateKey, privateKeyKey} {
		if len(data[key]) == 0 {
			return nil, fmt.Errorf("%s: missing", key)
		}
	}
	if err := checkCertificate(data[certificateKey]); err != nil {
		return nil, fmt.Errorf("%s: %w", certificateKey, err)
	}
	// The certificate is good, so the rest is about the key.
	pair, err := tls.X509KeyPair(data[certificateKey], data[privateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", privateKeyKey, err)
	}
	return &pair, nil
}

// checkCertificate looks at the first certificate, which is the one that the key
// belongs to.
func checkCertificate(text []byte) error {
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		switch {
		case block == nil:
			return errors.New("holds no PEM certificate")
		case block.Type == "CERTIFICATE":
			_, err := x509.ParseCertificate(block.Bytes)
			return err
		}
	}
}

// certificateError is why there is no client certificate.
type certificateError struct{ err error }

func (e *certificateError) Error() string { return fmt.Sprintf("the client certificate: %v", e.err) }

func (e *certificateError) Unwrap() error { return e.err }

// certificates keeps the client certificate of one hook.
type certificates struct {
	read func(context.Context) (*tls.Certificate, error)
	log  *slog.Logger

	lock chan struct{} // holds one while reading: one read serves all connections
	cert *tls.Certificate
	err  error
	due  time.Time // of the next read
}

func newCertificates(log *slog.Logger, read func(context.Context) (*tls.Certificate, error)) *certificates {
	return &certificates{read: read, log: log, lock: make(chan struct{}, 1)}
}

// get returns the certificate, read within the last minute if possible. One that
// was good is better than none, so it is used while the Secret cannot be read;
// the server will say when it has had enough of it.
func (c *certificates) get(ctx context.Context) (*tls.Certificate, error) {
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		return nil, &certificateError{context.Cause(ctx)}
	}
	if !time.Now().Before(c.due) {
		c.renew(ctx)
	}
	if c.cert != nil {
		return c.cert, nil
	}
	return nil, c.err
}

func (c *certificates) renew(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, certificateGap)
	defer cancel()
	cert, err := c.read(timed)
	switch {
	case err == nil && cert != nil:
		c.cert, c.err, c.due = cert, nil, time.Now().Add(certificateAge)
		return
	case err == nil:
		err = errors.New("there is none")
	}
	if c.cert != nil && c.err == nil {
		c.log.Warn("the client certificate cannot be read; the last one is still used", "error", err)
	}
	c.err, c.due = &certificateError{err}, time.Now().Add(certificateGap)
}
