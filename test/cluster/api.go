package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// apiClient makes the few requests that bringing a cluster up needs, without
// the weight of a client library.
type apiClient struct {
	base string
	http *http.Client
}

// apiError is an answer of the API server other than success.
type apiError struct {
	method, path string
	code         int
	body         string
}

// Error shows the request and the answer.
func (e *apiError) Error() string {
	return fmt.Sprintf("%s %s: status %d: %s", e.method, e.path, e.code, e.body)
}

// statusCode returns the HTTP status of an apiError, 0 of any other error.
func statusCode(err error) int {
	if answer, ok := errors.AsType[*apiError](err); ok {
		return answer.code
	}
	return 0
}

// newAPIClient returns a client of the endpoint that shows the user's certificate.
func newAPIClient(to Endpoint, user userFor) (*apiClient, error) {
	cert, err := tls.X509KeyPair(user.Cert, user.Key)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(to.CA) {
		return nil, fmt.Errorf("the authority of %s is no certificate", to.URL)
	}
	config := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	return &apiClient{base: to.URL, http: &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true},
	}}, nil
}

// get reads path into out, which may be nil.
func (a *apiClient) get(ctx context.Context, path string, out any) error {
	return a.do(ctx, http.MethodGet, path, "", nil, out)
}

// post sends a JSON body and reads the answer into out, which may be nil.
func (a *apiClient) post(ctx context.Context, path string, body []byte, out any) error {
	return a.do(ctx, http.MethodPost, path, "application/json", body, out)
}

func (a *apiClient) do(ctx context.Context, method, path, contentType string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 2048)) // the status code says enough
		return &apiError{method, path, resp.StatusCode, string(bytes.TrimSpace(text))}
	}
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return nil
}

// object is what of a manifest says where it lives in the API.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// collection returns the path that objects like o are posted to.
func (o object) collection() (string, error) {
	kind, ok := objectKinds[o.Kind]
	if !ok || kind.resource == "" {
		return "", fmt.Errorf("kind %q has no known resource", o.Kind)
	}
	path := "/apis/" + o.APIVersion
	if o.APIVersion == "v1" {
		path = "/api/v1"
	}
	if o.Metadata.Namespace != "" {
		path += "/namespaces/" + o.Metadata.Namespace
	}
	return path + "/" + kind.resource, nil
}

// ensure creates the object or, if it is there, merges its content into it.
func (a *apiClient) ensure(ctx context.Context, raw json.RawMessage) error {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("read an object: %w", err)
	}
	path, err := o.collection()
	if err != nil {
		return err
	}
	err = a.post(ctx, path, raw, nil)
	if statusCode(err) == http.StatusConflict {
		return a.do(ctx, http.MethodPatch, path+"/"+o.Metadata.Name, "application/merge-patch+json", raw, nil)
	}
	return err
}
