package release

import (
	"archive/tar"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// archive writes the images of all platforms as an OCI image layout in a tar, and
// returns the digest that a registry will know them by. It builds the layout in
// dir, which must not exist.
func archive(w io.Writer, dir string, tag name.Tag, platforms []v1.Platform, images []v1.Image, created time.Time) (v1.Hash, error) {
	out, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	fullName := reference(tag)
	named := layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          fullName,     // containerd, kind, podman
		"org.opencontainers.image.ref.name": tag.TagStr(), // skopeo, oras
	})
	var top interface{ Digest() (v1.Hash, error) }
	if len(images) == 1 {
		top = images[0]
		err = out.AppendImage(images[0], named, layout.WithPlatform(platforms[0]))
	} else {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for i, img := range images {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: img, Descriptor: v1.Descriptor{Platform: &platforms[i]},
			})
		}
		top = index
		err = out.AppendIndex(index, named)
	}
	if err != nil {
		return v1.Hash{}, err
	}
	if len(images) == 1 {
		err = writeDockerManifest(filepath.Join(dir, "manifest.json"), fullName, images[0])
	}
	if err != nil {
		return v1.Hash{}, err
	}
	if err := writeTar(w, dir, created); err != nil {
		return v1.Hash{}, err
	}
	return top.Digest()
}

// reference is the name that container runtimes give to the image of a tag. The
// library has another host for the images of Docker Hub.
func reference(tag name.Tag) string {
	full := tag.Name()
	if rest, ok := strings.CutPrefix(full, name.DefaultRegistry+"/"); ok {
		full = "docker.io/" + rest
	}
	return full
}

// writeDockerManifest adds what `docker load` reads that knows no OCI layout. It
// has no word for platforms, so an image of several goes without.
func writeDockerManifest(file, fullName string, img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	d := tarball.Descriptor{Config: blob(m.Config.Digest), RepoTags: []string{fullName}}
	for _, layer := range m.Layers {
		d.Layers = append(d.Layers, blob(layer.Digest))
	}
	content, err := json.Marshal(tarball.Manifest{d})
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}

// writeTar writes a folder as a tar in which nothing comes from the machine:
// neither owners, nor modes, nor times, nor an order other than that of names.
func writeTar(w io.Writer, dir string, created time.Time) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o644, ModTime: created, Typeflag: tar.TypeReg}
		if e.IsDir() {
			header.Name, header.Mode, header.Typeflag = header.Name+"/", 0o755, tar.TypeDir
			return tw.WriteHeader(header)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		header.Size = int64(len(content))
		if err := tw.WriteHeader(header); err != nil {
			return err
		}
		_, err = tw.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return tw.Close()
}
