package preflight

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// component is something whose API the gate needs.
type component struct {
	name, groupVersion string
	// image is the last part of the name of its image, by which its Deployment is
	// found; empty if it has none.
	image string
	// least is the oldest version that will do; empty if the API tells.
	least   string
	install string
}

var components = []component{
	{name: "Kueue", groupVersion: "kueue.x-k8s.io/v1beta2", image: "kueue", least: "0.17.0", install: "install Kueue v0.17 or newer"},
	{name: "Trainer", groupVersion: "trainer.kubeflow.org/v1alpha1", image: "trainer-controller-manager", least: "2.2.0", install: "install Kubeflow Trainer v2.2 or newer"},
	{name: "JobSet", groupVersion: "jobset.x-k8s.io/v1alpha2", image: "jobset", install: "install JobSet, which Trainer needs"},
	{name: "AdmissionGate", groupVersion: v1alpha1.GroupName + "/v1alpha1", install: "install the CustomResourceDefinitions of the chart (crds.enabled)"},
}

// leastKubernetes is the oldest Kubernetes that will do.
const leastKubernetes = "1.33.0"

// versions looks at Kubernetes and at what must be installed beside the gate.
func (c *Checker) versions(ctx context.Context) []Line {
	lines := []Line{c.kubernetes()}
	groups, err := c.Discovery.ServerGroups()
	if err != nil {
		return append(lines, unknown("APIs", err))
	}
	served := map[string]bool{}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			served[v.GroupVersion] = true
		}
	}
	images := c.images(ctx)
	for _, component := range components {
		lines = append(lines, component.judge(served[component.groupVersion], images[component.image]))
	}
	if served["trainer.kubeflow.org/v1alpha1"] {
		lines = append(lines, c.runtimePatches())
	}
	return lines
}

func (c *Checker) kubernetes() Line {
	info, err := c.Discovery.ServerVersion()
	if err != nil {
		return unknown("Kubernetes", err)
	}
	return judgeKubernetes(info.GitVersion)
}

func judgeKubernetes(have string) Line {
	if older(have, leastKubernetes) {
		return wrong("Kubernetes", "upgrade to Kubernetes 1.33 or newer", "%s", have)
	}
	return ok("Kubernetes", "%s", have)
}

// judge says how a component stands. tag is that of its image, empty if it was not
// found.
func (p component) judge(served bool, tag string) Line {
	switch {
	case !served:
		return wrong(p.name, p.install, "the cluster does not serve %s", p.groupVersion)
	case p.image == "":
		return ok(p.name, "%s is served", p.groupVersion)
	case tag == "":
		return ok(p.name, "%s is served; its version is not known, for no Deployment has its image", p.groupVersion)
	case p.least != "" && older(tag, p.least):
		return wrong(p.name, p.install, "%s, by the image of its Deployment", tag)
	}
	return ok(p.name, "%s, %s is served", tag, p.groupVersion)
}

// older compares versions. One that cannot be read is not older.
func older(have, least string) bool {
	v, err := version.ParseGeneric(have)
	if err != nil {
		return false
	}
	return v.LessThan(version.MustParseGeneric(least))
}

// images are the tags of the components' images, by the last part of their names,
// as far as Deployments may be read.
func (c *Checker) images(ctx context.Context) map[string]string {
	tags := map[string]string{}
	for next := ""; ; {
		var page appsv1.DeploymentList
		if err := c.Client.List(ctx, &page, client.Limit(pageSize), client.Continue(next)); err != nil {
			return tags
		}
		for i := range page.Items {
			for _, container := range page.Items[i].Spec.Template.Spec.Containers {
				if name, tag := splitImage(container.Image); tag != "" {
					tags[name] = tag
				}
			}
		}
		if next = page.Continue; next == "" {
			return tags
		}
	}
}

// pageSize bounds an answer of the API server.
const pageSize = 500

// splitImage splits an image into the last part of its name and its tag.
func splitImage(image string) (name, tag string) {
	image, _, _ = strings.Cut(image, "@")
	name = image[strings.LastIndexByte(image, '/')+1:]
	name, tag, _ = strings.Cut(name, ":")
	return name, tag
}

// runtimePatches looks for the field that the gate writes, which came with Trainer
// v2.2. Its schema is what tells, whatever the version is called.
func (c *Checker) runtimePatches() Line {
	const what = "TrainJob spec.runtimePatches"
	paths, err := c.Discovery.OpenAPIV3().Paths()
	if err != nil {
		return unknown(what, err)
	}
	schema, ok := paths["apis/trainer.kubeflow.org/v1alpha1"]
	if !ok {
		return unknown(what, fmt.Errorf("the API server publishes no schema of trainer.kubeflow.org/v1alpha1"))
	}
	text, err := schema.Schema("application/json")
	if err != nil {
		return unknown(what, err)
	}
	return judgeRuntimePatches(bytes.Contains(text, []byte(`"runtimePatches"`)))
}

func judgeRuntimePatches(there bool) Line {
	const what = "TrainJob spec.runtimePatches"
	if !there {
		return wrong(what, "install Kubeflow Trainer v2.2 or newer, with its CustomResourceDefinitions", "TrainJobs have no such field, so no admission count can be raised")
	}
	return ok(what, "is there")
}
