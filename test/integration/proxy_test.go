package integration

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// proxy stands between the program and the real API server, so that a test can
// stop the world at one request. It changes nothing on its way.
type proxy struct {
	endpoint cluster.Endpoint
	mu       sync.Mutex
	rules    []*rule
	writes   []string
}

// rule acts on requests that it matches, before they are sent on.
type rule struct {
	match   func(*http.Request) bool
	arrived chan struct{}
	release chan struct{}
	code    int
	left    int
}

// newProxy starts a proxy; it is ended with the test.
func newProxy(tb testing.TB) *proxy {
	tb.Helper()
	to := shared.cluster.Endpoint()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(to.CA) {
		tb.Fatal("the cluster's authority is no certificate")
	}
	target, err := url.Parse(to.URL)
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			p.note(r)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.pass(w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p.endpoint = cluster.Endpoint{URL: server.URL, CA: ca}
	return p
}

// pass applies the rules to a request and tells whether it is to be sent on.
func (p *proxy) pass(w http.ResponseWriter, r *http.Request) bool {
	rule := p.take(r)
	if rule == nil {
		return true
	}
	if rule.code != 0 {
		http.Error(w, http.StatusText(rule.code), rule.code)
		return false
	}
	// The request is read whole, so that it is complete when it is let go.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	close(rule.arrived)
	select {
	case <-rule.release:
		return r.Context().Err() == nil
	case <-r.Context().Done():
		return false
	}
}

// note keeps writes that the API server carried out, the Lease's left out.
func (p *proxy) note(r *http.Response) {
	if r.Request.Method == http.MethodGet || r.StatusCode >= 300 || strings.Contains(r.Request.URL.Path, "/leases") {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes = append(p.writes, r.Request.Method+" "+r.Request.URL.Path)
}

// written returns the writes that came through.
func (p *proxy) written() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.writes)
}

func (p *proxy) take(r *http.Request) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rule := range p.rules {
		if rule.left > 0 && rule.match(r) {
			rule.left--
			return rule
		}
	}
	return nil
}

func (p *proxy) add(r *rule) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// hold stops the next request that matches. arrived is closed when it is there,
// closing release lets it go.
func (p *proxy) hold(match func(*http.Request) bool) *rule {
	return p.add(&rule{match: match, arrived: make(chan struct{}), release: make(chan struct{}), left: 1})
}

// await waits until the request that a hold is for has come.
func (r *rule) await(tb testing.TB) {
	tb.Helper()
	select {
	case <-r.arrived:
	case <-time.After(patience):
		tb.Fatalf("the request to hold did not come within %s", patience)
	}
}

// fail answers the next n requests that match with an HTTP status.
func (p *proxy) fail(n, code int, match func(*http.Request) bool) {
	p.add(&rule{match: match, code: code, left: n})
}

// in narrows a match to the namespace of a queue.
func (q *queue) in(match func(*http.Request) bool) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return match(r) && strings.Contains(r.URL.Path, "/namespaces/"+q.name+"/")
	}
}

// Requests of the gate, by what they write.
func trainJobWrite(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/trainjobs/")
}

func checkWrite(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/workloads/") && strings.HasSuffix(r.URL.Path, "/status")
}
