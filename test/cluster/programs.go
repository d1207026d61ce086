package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/isolation"
)

// imageNameForm is what the last element of an image's repository looks like.
var imageNameForm = regexp.MustCompile(`^[a-z0-9]+([._-]+[a-z0-9]+)*$`)

// checkPrograms refuses programs that no pod could run.
func checkPrograms(programs map[string]string) error {
	for _, image := range slices.Sorted(maps.Keys(programs)) {
		dir := programs[image]
		switch {
		case !imageNameForm.MatchString(image):
			return fmt.Errorf("programs: %q is no name of an image: give the last element of its repository, without tag", image)
		case !filepath.IsAbs(dir):
			return fmt.Errorf("programs: directory %q of image %s: give its absolute path", dir, image)
		}
		if err := hasPrograms(dir); err != nil {
			return fmt.Errorf("programs: directory of image %s: %w", image, err)
		}
	}
	if len(programs) == 0 {
		return nil
	}
	if err := isolation.Check(); err != nil {
		return fmt.Errorf("programs: %w", err)
	}
	return nil
}

func hasPrograms(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(dir, entry.Name()))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return nil
		}
	}
	return fmt.Errorf("%s holds no program: build into it first", dir)
}

// notPrograms selects the pods that have an image beside those of the programs,
// as a part of kwok's selectors; it is "" without programs.
func notPrograms(programs map[string]string) string {
	if len(programs) == 0 {
		return ""
	}
	quoted := make([]string, 0, len(programs))
	for _, image := range slices.Sorted(maps.Keys(programs)) {
		quoted = append(quoted, fmt.Sprintf("%q", image))
	}
	return fmt.Sprintf("    - {key: '[.spec.containers[]?, .spec.initContainers[]? | .image | split(\"@\")[0] | split(\"/\")[-1] | split(\":\")[0]] - [%s] | .[]', operator: Exists}\n",
		strings.Join(quoted, ", "))
}

// podRunner describes the component that runs the pods of the programs.
func (c *Cluster) podRunner() *component {
	config := c.path("pod-runner.kubeconfig")
	return &component{
		name:  PodRunner,
		exe:   c.path("bin", string(PodRunner)),
		ports: []string{portPodRunner},
		prepare: func() error {
			return c.writeClientKubeconfig(config, subject{name: podRunnerUser, groups: []string{"system:masters"}})
		},
		args: func() []string {
			args := []string{
				"-kubeconfig=" + config, "-health-address=" + c.ports.address(portPodRunner),
				"-dir=" + c.path("pods"), "-logs=" + c.path("logs", "pods"),
			}
			for _, image := range slices.Sorted(maps.Keys(c.config.Programs)) {
				args = append(args, "-program="+image+"="+c.config.Programs[image])
			}
			return args
		},
		ready: func(ctx context.Context) error {
			return c.probe(ctx, "http://"+c.ports.address(portPodRunner)+"/healthz")
		},
	}
}

// startPodRunner builds the program that runs pods, which unlike the others is
// this module's own and changes with it, and starts it.
func (c *Cluster) startPodRunner(ctx context.Context) error {
	if len(c.config.Programs) == 0 {
		return nil
	}
	src, err := sourceDir(ctx)
	if err != nil {
		return err
	}
	if _, err := runGo(ctx, src, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", c.comps[PodRunner].exe, "./cmd/podrunner"); err != nil {
		return wrap(PodRunner, "build", err)
	}
	return c.launch(ctx, PodRunner)
}

// PodLogs returns what a container of a pod of Config.Programs has written since
// its first start; a pod of the same name continues the log.
func (c *Cluster) PodLogs(namespace, pod, container string) (string, error) {
	name := filepath.Join("pods", namespace+"_"+pod+"_"+container+".log")
	text, err := os.ReadFile(c.path("logs", name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("container %s of pod %s/%s has not been run: %w", container, namespace, pod, err)
	}
	return string(text), err
}
