package cluster

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// applyBundle creates a manager's objects, with this cluster's webhook port and
// authority, and waits until its resources are served.
func (c *Cluster) applyBundle(ctx context.Context, name Component) error {
	objects, err := c.readBundle(name)
	if err != nil {
		return wrap(name, "install", err)
	}
	first, rest, served, err := sortObjects(objects)
	if err != nil {
		return wrap(name, "install", err)
	}
	for _, wave := range [][]json.RawMessage{first, rest} {
		if err := c.ensureAll(ctx, wave); err != nil {
			return wrap(name, "install", err)
		}
	}
	for groupVersion, resources := range served {
		check := func(ctx context.Context) error { return c.serves(ctx, groupVersion, resources) }
		if err := poll(ctx, groupVersion, check); err != nil {
			return wrap(name, "install", err)
		}
	}
	return nil
}

// readBundle reads a manager's objects and fills in what differs by cluster.
func (c *Cluster) readBundle(name Component) ([]json.RawMessage, error) {
	data, err := os.ReadFile(c.tools.manifest(string(name) + ".json"))
	if err != nil {
		return nil, err
	}
	caBundle := base64.StdEncoding.EncodeToString(c.pki.webhooks.pem)
	fill := strings.NewReplacer(addressMark, c.ports.address(string(name)), caBundleMark, caBundle)
	var objects []json.RawMessage
	err = json.Unmarshal([]byte(fill.Replace(string(data))), &objects)
	return objects, err
}

// definition is what of a CustomResourceDefinition says where it is served.
type definition struct {
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Plural string `json:"plural"`
		} `json:"names"`
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
		} `json:"versions"`
	} `json:"spec"`
}

// sortObjects puts namespaces before what lives in them, and lists the resources
// by group and version that the definitions among the objects will serve.
func sortObjects(objects []json.RawMessage) (first, rest []json.RawMessage, served map[string][]string, err error) {
	served = map[string][]string{}
	for _, raw := range objects {
		var o object
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, nil, nil, err
		}
		if o.Kind == "Namespace" {
			first = append(first, raw)
			continue
		}
		rest = append(rest, raw)
		if o.Kind != "CustomResourceDefinition" {
			continue
		}
		var d definition
		if err := json.Unmarshal(raw, &d); err != nil {
			return nil, nil, nil, err
		}
		for _, v := range d.Spec.Versions {
			if v.Served {
				key := d.Spec.Group + "/" + v.Name
				served[key] = append(served[key], d.Spec.Names.Plural)
			}
		}
	}
	return first, rest, served, nil
}

// serves returns an error unless the API server serves all the resources.
func (c *Cluster) serves(ctx context.Context, groupVersion string, resources []string) error {
	var list struct {
		Resources []struct {
			Name string `json:"name"`
		} `json:"resources"`
	}
	if err := c.api.get(ctx, "/apis/"+groupVersion, &list); err != nil {
		return err
	}
	have := map[string]bool{}
	for _, r := range list.Resources {
		have[r.Name] = true
	}
	for _, want := range resources {
		if !have[want] {
			return fmt.Errorf("%s in %s is not served yet", want, groupVersion)
		}
	}
	return nil
}

// ensureAll creates the objects, a few at a time.
func (c *Cluster) ensureAll(ctx context.Context, objects []json.RawMessage) error {
	const workers = 4
	queue := make(chan json.RawMessage, len(objects))
	for _, o := range objects {
		queue <- o
	}
	close(queue)
	jobs := make([]func(context.Context) error, workers)
	for i := range jobs {
		jobs[i] = func(ctx context.Context) error {
			for o := range queue {
				if err := c.api.ensure(ctx, o); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return firstError(ctx, jobs...)
}

// createKueueSecret gives Kueue the certificate it serves before it starts, so
// that its own certificate management finds nothing to rotate.
func (c *Cluster) createKueueSecret(ctx context.Context) error {
	data := map[string][]byte{}
	for _, name := range []string{"ca.crt", "ca.key", "tls.crt", "tls.key"} {
		content, err := os.ReadFile(filepath.Join(c.pki.path("webhook"), name))
		if err != nil {
			return err
		}
		data[name] = content
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Secret",
		"metadata":   map[string]any{"name": kueueSecret, "namespace": kueueNamespace},
		"data":       data,
	})
	if err != nil {
		return err
	}
	if err := c.api.post(ctx, "/api/v1/namespaces/"+kueueNamespace+"/secrets", body, nil); err != nil {
		return fmt.Errorf("certificate of Kueue's webhooks: %w", err)
	}
	return nil
}
