package httphook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Limits of a client's connections.
const (
	maxIdleConns   = 64
	idleTimeout    = 90 * time.Second
	connectTimeout = 10 * time.Second // of the connection, and then of TLS; both outlive the call that began them
	maxHeaderBytes = 64 << 10
)

// Config names a server. Exactly one of URL and UnixSocket is set.
type Config struct {
	// URL is the base of the server: https, or http to an address of this
	// machine ("localhost", 127.0.0.0/8, ::1). It has no user, query or
	// fragment; [Path] is added to its path.
	URL string

	// UnixSocket is the absolute path of a socket on which the server speaks
	// plain HTTP.
	UnixSocket string

	// CABundle holds PEM certificates that the server's certificate must go
	// back to. Empty means those of the system. For https only.
	CABundle []byte

	// ServerName is the name in the server's certificate. Empty means the
	// host of the URL. For https only.
	ServerName string

	// ClientCertificate, when set, is called for each connection on which the
	// server asks for a certificate, so that a renewed one is picked up. It
	// returns a certificate or an error. For https only.
	ClientCertificate func() (*tls.Certificate, error)

	// ProxyFromEnvironment uses the proxy that HTTPS_PROXY and NO_PROXY name.
	// They are ignored otherwise, and always for http and Unix sockets.
	ProxyFromEnvironment bool
}

// Validate reports the first field that is wrong, by its name.
func (c Config) Validate() error {
	_, err := NewClient(c)
	return err
}

// base returns the URL that Path is added to.
func (c Config) base() (*url.URL, error) {
	switch {
	case (c.URL == "") == (c.UnixSocket == ""):
		return nil, errors.New("url, unixSocket: exactly one must be set")
	case c.UnixSocket == "":
		return parseURL(c.URL)
	case !filepath.IsAbs(c.UnixSocket):
		return nil, fmt.Errorf("unixSocket: %q is not an absolute path", c.UnixSocket)
	}
	return &url.URL{Scheme: "http", Host: "localhost"}, nil
}

func parseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("url: %w", withoutURL(s, err))
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("url: must not have a user, a query or a fragment")
	case strings.HasSuffix(strings.TrimRight(u.Path, "/"), Path):
		return nil, fmt.Errorf("url: must not end with %s, which is added to it", Path)
	}
	return u, checkHost(u.Scheme, u.Hostname())
}

// withoutURL says why s is no URL without repeating it: it may hold a password.
func withoutURL(s string, err error) error {
	e, ok := errors.AsType[*url.Error](err)
	if !ok || strings.Contains(s, "@") {
		return errors.New("cannot be read as a URL")
	}
	return e.Err
}

func checkHost(scheme, host string) error {
	switch {
	case scheme != "https" && scheme != "http":
		return fmt.Errorf("url: scheme %q is neither https nor http", scheme)
	case host == "":
		return errors.New("url: has no host")
	case scheme == "http" && !isLoopback(host):
		return fmt.Errorf("url: http is for this machine only, %q needs https", host)
	}
	return nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

func (c Config) transport(plain bool) (*http.Transport, error) {
	t := &http.Transport{
		DialContext:            c.dial(plain),
		DisableCompression:     true,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdleConns,
		IdleConnTimeout:        idleTimeout,
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	if plain || c.UnixSocket != "" {
		return t, c.refuseTLS()
	}
	if c.ProxyFromEnvironment {
		t.Proxy = http.ProxyFromEnvironment
	}
	var err error
	t.TLSClientConfig, err = c.tls()
	return t, err
}

// refuseTLS reports settings that would silently do nothing.
func (c Config) refuseTLS() error {
	switch {
	case len(c.CABundle) > 0:
		return errors.New("caBundle: for https only")
	case c.ServerName != "":
		return errors.New("serverName: for https only")
	case c.ClientCertificate != nil:
		return errors.New("clientCertificate: for https only")
	}
	return nil
}

func (c Config) dial(plain bool) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := newDialer(plain)
	if c.UnixSocket != "" {
		return func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", c.UnixSocket)
		}
	}
	return dialer.DialContext
}

func newDialer(plain bool) *net.Dialer {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	if plain {
		dialer.Control = loopbackOnly
	}
	return dialer
}

// loopbackOnly sees the address that a name led to, so that a resolver cannot
// send plain http elsewhere.
func loopbackOnly(_, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err == nil && !isLoopback(host) {
		err = fmt.Errorf("http is for this machine only, not for %s", host)
	}
	return err
}

func (c Config) tls() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: c.ServerName}
	if len(c.CABundle) > 0 {
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(c.CABundle) {
			return nil, errors.New("caBundle: holds no PEM certificate")
		}
	}
	if get := c.ClientCertificate; get != nil {
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate(get) }
	}
	return out, nil
}

// certificate keeps a nil certificate from package tls, which would panic.
func certificate(get func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	cert, err := get()
	if err == nil && cert == nil {
		err = errors.New("clientCertificate: there is none")
	}
	return cert, err
}
