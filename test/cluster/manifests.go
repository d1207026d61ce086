package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// Placeholders in the rendered bundles, for what differs from cluster to cluster.
const (
	addressMark  = "@ADDRESS@"
	caBundleMark = "@CABUNDLE@"
)

// bundle is one project's shipped manifests in its module.
type bundle struct {
	name   Component
	module string
	root   string // copied, so that remote resources can be left out
	layer  string // below root, what kustomize is given
}

// bundles are in the order in which they can be installed: each needs kinds of those
// before it.
var bundles = []bundle{
	{JobSet, modJobSet, "config", "default"},
	{Trainer, modTrainer, "manifests", "overlays/manager"},
	{Kueue, modKueue, "config", "default"},
}

// nodeStages are the parts of kwok's own stages that keep a fake node Ready.
var nodeStages = []string{
	"kustomize/stage/node/fast/node-initialize.yaml",
	"kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
}

// render writes the bundles of all projects, and kwok's stages of a node, to the
// toolbox.
func render(ctx context.Context, t *Toolbox, mods map[string]module) error {
	if err := os.MkdirAll(t.manifest(""), 0o755); err != nil {
		return err
	}
	for _, b := range bundles {
		stream, err := b.render(ctx, t.Bin("kubectl"), mods[b.module].Dir)
		if err != nil {
			return err
		}
		list, err := rewrite(stream)
		if err != nil {
			return fmt.Errorf("manifests of %s: %w", b.name, err)
		}
		if err := os.WriteFile(t.manifest(string(b.name)+".json"), list, 0o644); err != nil {
			return err
		}
	}
	var stages []string
	for _, file := range nodeStages {
		data, err := os.ReadFile(filepath.Join(mods[modKwok].Dir, file))
		if err != nil {
			return fmt.Errorf("read kwok's node stages: %w", err)
		}
		stages = append(stages, string(data))
	}
	return os.WriteFile(t.manifest("node-stages.yaml"), []byte(strings.Join(stages, "---\n")), 0o644)
}

// render returns what the project ships, as YAML documents.
func (b bundle) render(ctx context.Context, kubectl, moduleDir string) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "manifests-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	layer := filepath.Join(tmp, b.layer)
	if err := errors.Join(
		os.CopyFS(tmp, os.DirFS(filepath.Join(moduleDir, b.root))),
		dropThirdParty(filepath.Join(layer, "kustomization.yaml")),
	); err != nil {
		return nil, fmt.Errorf("render the manifests of %s: %w", b.name, err)
	}
	cmd := exec.CommandContext(ctx, kubectl, "kustomize", layer)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("render the manifests of %s: kubectl kustomize: %w: %s", b.name, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// dropThirdParty removes resources that would be fetched from elsewhere: Trainer
// lists JobSet, which has a bundle of its own here.
func dropThirdParty(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var kept []string
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, "third-party/") {
			kept = append(kept, line)
		}
	}
	return os.WriteFile(file, []byte(strings.Join(kept, "")), 0o644)
}

// objectKinds says which kinds of a bundle a cluster gets, and their resource
// names. False entries are left out: they are about pods of the managers, which
// run as processes here.
var objectKinds = map[string]struct {
	keep     bool
	resource string
}{
	"Namespace":                      {true, "namespaces"},
	"CustomResourceDefinition":       {true, "customresourcedefinitions"},
	"ServiceAccount":                 {true, "serviceaccounts"},
	"Role":                           {true, "roles"},
	"RoleBinding":                    {true, "rolebindings"},
	"ClusterRole":                    {true, "clusterroles"},
	"ClusterRoleBinding":             {true, "clusterrolebindings"},
	"MutatingWebhookConfiguration":   {true, "mutatingwebhookconfigurations"},
	"ValidatingWebhookConfiguration": {true, "validatingwebhookconfigurations"},
	"APIService":                     {},
	"ConfigMap":                      {},
	"Deployment":                     {},
	"PodDisruptionBudget":            {},
	"Secret":                         {},
	"Service":                        {},
	"ServiceMonitor":                 {},
}

// rewrite turns a stream of YAML documents into a JSON array of the objects a
// cluster gets, with every service reference replaced by a loopback URL.
func rewrite(stream []byte) ([]byte, error) {
	var kept []map[string]any
	for _, doc := range splitDocuments(stream) {
		obj, err := decodeObject(doc)
		if err != nil {
			return nil, err
		}
		if obj == nil {
			continue
		}
		kind, _ := obj["kind"].(string)
		known, ok := objectKinds[kind]
		if !ok {
			return nil, fmt.Errorf("kind %q is neither kept nor left out: decide in objectKinds", kind)
		}
		if !known.keep {
			continue
		}
		if err := pointAtLoopback(obj); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		kept = append(kept, obj)
	}
	return json.Marshal(kept)
}

// splitDocuments cuts a YAML stream at its document separators.
func splitDocuments(stream []byte) [][]byte {
	return bytes.Split(append([]byte("\n"), stream...), []byte("\n---\n"))
}

// decodeObject reads one YAML document without rounding its numbers; nil for an
// empty one.
func decodeObject(doc []byte) (map[string]any, error) {
	data, err := yaml.YAMLToJSON(doc)
	if err != nil {
		return nil, fmt.Errorf("read a manifest: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var obj map[string]any
	if err := decoder.Decode(&obj); err != nil {
		return nil, fmt.Errorf("read a manifest: %w", err)
	}
	return obj, nil
}

// pointAtLoopback rewrites the client configurations of webhooks and of the
// conversion of a CustomResourceDefinition.
func pointAtLoopback(obj map[string]any) error {
	if webhooks, ok := obj["webhooks"].([]any); ok {
		for _, w := range webhooks {
			if err := rewriteClientConfig(child(w, "clientConfig")); err != nil {
				return err
			}
		}
	}
	conversion := child(child(obj, "spec"), "conversion")
	if conversion["strategy"] == "Webhook" {
		return rewriteClientConfig(child(child(conversion, "webhook"), "clientConfig"))
	}
	return nil
}

func child(parent any, key string) map[string]any {
	if p, ok := parent.(map[string]any); ok {
		c, _ := p[key].(map[string]any)
		return c
	}
	return nil
}

func rewriteClientConfig(config map[string]any) error {
	service := child(config, "service")
	if service == nil {
		return errors.New("clientConfig without a service")
	}
	path, _ := service["path"].(string)
	delete(config, "service")
	config["url"] = "https://" + addressMark + "/" + strings.TrimPrefix(path, "/")
	config["caBundle"] = caBundleMark
	return nil
}
