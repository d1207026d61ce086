package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Manager is what one of Kueue, JobSet and Trainer takes to run as a pod of any
// cluster, of the version that every cluster here runs.
type Manager struct {
	// Name is the component that it is otherwise.
	Name Component
	// Namespace and Deployment say where its pod is, once Manifests are applied.
	Namespace, Deployment string
	// Manifests are what the project ships, as YAML documents, with nothing changed
	// but the image of the Deployment. The manager makes its certificates itself.
	Manifests string
	// Image is the path of an image for LoadImage, or for whatever else imports the
	// OCI image layout, of the program that is built here.
	Image string
}

// Managers renders the manifests of Kueue, JobSet and Trainer, and writes their
// images to dir. Install them in the order of the list: each needs kinds of those
// before it.
func Managers(ctx context.Context, t *Toolbox, dir string) ([]Manager, error) {
	src, err := sourceDir(ctx)
	if err != nil {
		return nil, err
	}
	mods, err := listModules(ctx, src, programs)
	if err != nil {
		return nil, err
	}
	var all []Manager
	for _, b := range bundles {
		m, err := b.manager(ctx, t, mods[b.module], dir)
		if err != nil {
			return nil, fmt.Errorf("%s as a pod: %w", b.name, err)
		}
		all = append(all, *m)
	}
	return all, nil
}

func (b bundle) manager(ctx context.Context, t *Toolbox, mod module, dir string) (*Manager, error) {
	m := &Manager{Name: b.name, Namespace: managers[b.name].namespace, Image: filepath.Join(dir, string(b.name)+".tar")}
	stream, err := b.render(ctx, t.Bin("kubectl"), mod.Dir)
	if err != nil {
		return nil, err
	}
	image := "docker.io/library/" + string(b.name) + ":" + mod.Version
	if m.Manifests, m.Deployment, err = withImage(stream, image); err != nil {
		return nil, err
	}
	return m, writeImage(m.Image, image, t.Bin(string(b.name)), "/manager") // where the projects' own images have it
}

// withImage makes the one Deployment among documents run an image that the node
// has, and returns its name.
func withImage(stream []byte, image string) (manifests, deployment string, err error) {
	var out []string
	for _, doc := range splitDocuments(stream) {
		obj, err := decodeObject(doc)
		if err != nil {
			return "", "", err
		}
		if obj == nil {
			continue
		}
		if obj["kind"] == "Deployment" {
			if deployment != "" {
				return "", "", errors.New("there is more than one Deployment: decide which the manager is")
			}
			deployment, _ = child(obj, "metadata")["name"].(string)
			containers, _ := child(child(child(obj, "spec"), "template"), "spec")["containers"].([]any)
			if len(containers) != 1 {
				return "", "", fmt.Errorf("the Deployment has %d containers, want one", len(containers))
			}
			container, _ := containers[0].(map[string]any)
			container["image"], container["imagePullPolicy"] = image, "Never"
		}
		data, err := json.Marshal(obj)
		if err != nil {
			return "", "", err
		}
		out = append(out, string(data))
	}
	if deployment == "" {
		return "", "", errors.New("there is no Deployment")
	}
	return strings.Join(out, "\n---\n"), deployment, nil
}
