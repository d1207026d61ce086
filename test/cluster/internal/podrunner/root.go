package podrunner

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	binDir     = "usr/local/bin"
	volumesDir = ".volumes"
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// createRoot makes the root directory of a pod: the binaries of its images, and
// what a kubelet adds to them. What is there already is left.
func createRoot(root string, pod *corev1.Pod, ip string, programs Programs, containers []*container) error {
	for _, dir := range []string{binDir, volumesDir, "etc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, c := range containers {
		if err := linkBinaries(programs[imageName(c.spec.Image)], filepath.Join(root, binDir)); err != nil {
			return fmt.Errorf("image %s: %w", c.spec.Image, err)
		}
	}
	hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n%s\t%s\n", ip, hostname(pod))
	return os.WriteFile(filepath.Join(root, "etc", "hosts"), []byte(hosts), 0o644)
}

func hostname(pod *corev1.Pod) string {
	if pod.Spec.Hostname != "" {
		return pod.Spec.Hostname
	}
	return pod.Name
}

// linkBinaries puts the executable files of an image's directory into bin.
func linkBinaries(dir, bin string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		from, to := filepath.Join(dir, entry.Name()), filepath.Join(bin, entry.Name())
		info, err := os.Stat(from) // follows a link
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		if _, err := os.Stat(to); err == nil {
			continue // the first image's, or that of an earlier attempt
		}
		if err := linkOrCopy(from, to); err != nil {
			return err
		}
	}
	return nil
}

func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	src, err := os.Open(from) // on another file system, or another user's
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// mount makes the pod's volumes appear where its containers mount them. All
// containers of a pod share one root, so a path can only be one volume.
func mount(root string, containers []*container) error {
	volumes := map[string]string{}
	for _, c := range containers {
		for _, m := range c.spec.VolumeMounts {
			at := path.Clean("/" + m.MountPath)
			if m.SubPath != "" || m.SubPathExpr != "" {
				return fmt.Errorf("container %s: a mount with a subPath is not supported at %s", c.spec.Name, at)
			}
			if other := volumes[at]; other != "" && other != m.Name {
				return fmt.Errorf("container %s: %s is volume %s of another container and cannot be %s", c.spec.Name, at, other, m.Name)
			}
			volumes[at] = m.Name
		}
	}
	paths := make([]string, 0, len(volumes))
	for at := range volumes {
		paths = append(paths, at)
	}
	slices.Sort(paths) // a path comes before those below it
	for _, at := range paths {
		if err := link(root, at, path.Join("/", volumesDir, volumes[at])); err != nil {
			return fmt.Errorf("mount volume %s: %w", volumes[at], err)
		}
	}
	return nil
}

// link makes a symbolic link in root, relative, so that it means the same inside
// and outside of it.
func link(root, at, target string) error {
	full := filepath.Join(root, at)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	// The folder may itself be reached through a mount.
	dir, err := filepath.EvalSymlinks(filepath.Dir(full))
	if err != nil {
		return err
	}
	top, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	relative, err := filepath.Rel(dir, filepath.Join(top, target))
	if err != nil {
		return err
	}
	if have, err := os.Readlink(full); err == nil && have == relative {
		return nil
	}
	return os.Symlink(relative, full)
}

// findProgram resolves the name of a program as a runtime does in an image.
func findProgram(root, name, search string) (string, error) {
	candidates := []string{path.Join("/", name)}
	if !strings.Contains(name, "/") {
		candidates = nil
		for dir := range strings.SplitSeq(search, ":") {
			candidates = append(candidates, path.Join("/", dir, name))
		}
	}
	for _, file := range candidates {
		info, err := os.Stat(filepath.Join(root, file))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("exec: %q: no such program in the image, which has %s", name, strings.Join(listPrograms(root), ", "))
}

func listPrograms(root string) []string {
	entries, err := os.ReadDir(filepath.Join(root, binDir))
	if errors.Is(err, fs.ErrNotExist) || len(entries) == 0 {
		return []string{"none"}
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
