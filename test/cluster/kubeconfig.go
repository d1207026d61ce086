package cluster

import (
	"context"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// tokenLifetime outlasts every test run and every sensible local session.
const tokenLifetime = 30 * 24 * 60 * 60 // seconds

// Endpoint is a server that speaks the Kubernetes API, and the authority whose
// certificate it shows.
type Endpoint struct {
	URL string
	CA  []byte // PEM
}

// userFor is the credentials part of a kubeconfig.
type userFor struct {
	Token string `json:"token,omitempty"`
	Cert  []byte `json:"client-certificate-data,omitempty"`
	Key   []byte `json:"client-key-data,omitempty"`
}

// writeKubeconfig writes a kubeconfig with one context to path.
func writeKubeconfig(path string, to Endpoint, user userFor, namespace string) error {
	const name = "cluster"
	contextOf := map[string]any{"cluster": name, "user": name}
	if namespace != "" {
		contextOf["namespace"] = namespace
	}
	data, err := yaml.Marshal(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": map[string]any{
			"server": to.URL, "certificate-authority-data": to.CA}}},
		"users":    []any{map[string]any{"name": name, "user": user}},
		"contexts": []any{map[string]any{"name": name, "context": contextOf}},
	})
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return os.WriteFile(path, data, 0o600)
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.path("admin.kubeconfig") }

// Endpoint returns where the API server listens and the authority to trust for
// it, for instance to put a proxy in front of it.
func (c *Cluster) Endpoint() Endpoint {
	return Endpoint{URL: "https://" + c.ports.address(portAPI), CA: c.pki.ca.pem}
}

// Token requests a token of a ServiceAccount.
func (c *Cluster) Token(ctx context.Context, namespace, name string) (string, error) {
	const form = `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":%d}}`
	var answer struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/serviceaccounts/%s/token", namespace, name)
	if err := c.api.post(ctx, path, fmt.Appendf(nil, form, tokenLifetime), &answer); err != nil {
		return "", fmt.Errorf("token of service account %s/%s: %w", namespace, name, err)
	}
	return answer.Status.Token, nil
}

// ServiceAccountKubeconfig writes a kubeconfig that acts as the ServiceAccount,
// with a token from the API server, and returns its path.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	return c.ServiceAccountKubeconfigVia(ctx, c.Endpoint(), namespace, name)
}

// ServiceAccountKubeconfigVia does what ServiceAccountKubeconfig does for a client
// that shall talk to another endpoint, such as a proxy in a test.
func (c *Cluster) ServiceAccountKubeconfigVia(ctx context.Context, via Endpoint, namespace, name string) (string, error) {
	token, err := c.Token(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(c.path("kubeconfigs"), namespace+"-"+name+"-*.kubeconfig")
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return f.Name(), writeKubeconfig(f.Name(), via, userFor{Token: token}, namespace)
}

// certFor issues a client certificate.
func (c *Cluster) certFor(who subject) (userFor, error) {
	cert, key, err := c.pki.ca.issue(who, nil)
	if err != nil {
		return userFor{}, err
	}
	keyPEM, err := encodeKey(key)
	return userFor{Cert: cert, Key: keyPEM}, err
}

// writeClientKubeconfig issues a client certificate and writes it to path.
func (c *Cluster) writeClientKubeconfig(path string, who subject) error {
	user, err := c.certFor(who)
	if err != nil {
		return err
	}
	return writeKubeconfig(path, c.Endpoint(), user, "")
}

// connect creates the cluster's own client, as the administrator.
func (c *Cluster) connect() error {
	user, err := c.certFor(subject{name: "admin", groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	if c.api, err = newAPIClient(c.Endpoint(), user); err != nil {
		return err
	}
	return writeKubeconfig(c.Kubeconfig(), c.Endpoint(), user, "")
}
