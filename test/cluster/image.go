package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// imageNameKey is the annotation by which an image layout tells containerd the
// whole name of an image.
const imageNameKey = "io.containerd.image.name"

// imageLimit is how long the kubelet's side of containerd may take to notice what
// was imported.
const imageLimit = 30 * time.Second

// descriptor refers to content in an image layout.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// imageIndex is the file index.json of an image layout.
type imageIndex struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Manifests     []descriptor `json:"manifests"`
}

// LoadImage gives the node the images in a tar file in the OCI image layout, as
// if it had pulled them. Each must have its name, such as
// "docker.io/library/app:dev", in the annotation io.containerd.image.name of
// index.json. Containers name it with imagePullPolicy Never or IfNotPresent.
func (c *Cluster) LoadImage(ctx context.Context, path string) error {
	if c.node == nil {
		return errors.New("load an image: the cluster has no node; start it with Config.Node")
	}
	names, err := imageNames(path)
	if err != nil {
		return fmt.Errorf("load image %s: %w", path, err)
	}
	path, err = filepath.Abs(path)
	if err == nil {
		_, err = c.ctr(ctx, "images", "import", path)
	}
	if err != nil {
		return fmt.Errorf("load image %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, imageLimit, fmt.Errorf("not there after %s", imageLimit))
	defer cancel()
	for _, name := range names {
		known := func(ctx context.Context) error { return c.knowsImage(ctx, name) }
		if err := poll(ctx, "image "+name, known); err != nil {
			return err
		}
	}
	return nil
}

// SignalContainer sends a signal to the first process of a container of the node,
// by the id that the status of its pod has, such as "containerd://0a1b…".
func (c *Cluster) SignalContainer(ctx context.Context, id string, sig syscall.Signal) error {
	if c.node == nil {
		return errors.New("signal a container: the cluster has no node; start it with Config.Node")
	}
	_, err := c.ctr(ctx, "tasks", "kill", "--signal", strconv.Itoa(int(sig)), strings.TrimPrefix(id, "containerd://"))
	return err
}

// ctr runs containerd's own client on what the kubelet sees of it.
func (c *Cluster) ctr(ctx context.Context, args ...string) (string, error) {
	to := []string{"--address=/run/containerd/containerd.sock", "--namespace=k8s.io"} // whatever the environment says
	return c.node.inside.command(ctx, "", "ctr", append(to, args...)...)
}

// knowsImage returns an error until containerd's interface to the kubelet has
// noticed an image, which it marks with a label.
func (c *Cluster) knowsImage(ctx context.Context, name string) error {
	out, err := c.ctr(ctx, "images", "list", "name=="+name)
	if err != nil {
		return err
	}
	if !strings.Contains(out, "io.cri-containerd.image=managed") {
		return errors.New("it is not offered to the kubelet yet")
	}
	return nil
}

// imageNames reads the names of the images in a layout.
func imageNames(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	index, err := readIndex(tar.NewReader(f))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range index.Manifests {
		name := m.Annotations[imageNameKey]
		if name == "" {
			return nil, fmt.Errorf("an image in its index.json has no annotation %s", imageNameKey)
		}
		names = append(names, name)
	}
	if names == nil {
		return nil, errors.New("its index.json lists no image")
	}
	return names, nil
}

func readIndex(r *tar.Reader) (*imageIndex, error) {
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it has no index.json, so it is no OCI image layout")
		}
		if err != nil {
			return nil, fmt.Errorf("it is no tar file: %w", err)
		}
		if filepath.Clean(header.Name) == "index.json" {
			var index imageIndex
			return &index, json.NewDecoder(r).Decode(&index)
		}
	}
}

// imageUser is who the program of an image runs as: nobody in particular, but not
// root, as pods can demand.
const imageUser = "65532:65532"

// WriteImage writes to path the layout of an image that holds one static program
// and runs it, not as root. The image has the whole name, such as "docker.io/library/app:dev",
// and LoadImage takes it.
func WriteImage(path, name, program string) error {
	return writeImage(path, name, program, "/"+filepath.Base(program))
}

// writeImage writes the layout of an image in which the program is at entry.
func writeImage(path, name, program, entry string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := tarOf(tarFile{entry[1:], 0o755, content})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{entry}, "Env": []string{"PATH=/"}, "User": imageUser},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	const media = "application/vnd.oci.image."
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json",
		"config": describe(media+"config.v1+json", config),
		"layers": []descriptor{describe(media+"layer.v1.tar", layer)},
	})
	if err != nil {
		return err
	}
	listed := describe(media+"manifest.v1+json", manifest)
	listed.Annotations = map[string]string{imageNameKey: name}
	index, err := json.Marshal(imageIndex{SchemaVersion: 2, MediaType: media + "index.v1+json", Manifests: []descriptor{listed}})
	if err != nil {
		return err
	}
	layout, err := tarOf(
		tarFile{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, tarFile{"index.json", 0o644, index},
		blob(config), blob(layer), blob(manifest),
	)
	if err != nil {
		return err
	}
	return os.WriteFile(path, layout, 0o644)
}

// tarFile is one file of an archive.
type tarFile struct {
	name    string
	mode    int64
	content []byte
}

func tarOf(files ...tarFile) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close() // which writes the end of the archive
	return buffer.Bytes(), err
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func describe(mediaType string, content []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
}

func blob(content []byte) tarFile {
	return tarFile{"blobs/sha256/" + strings.TrimPrefix(digest(content), "sha256:"), 0o644, content}
}
