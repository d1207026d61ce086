package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	title  = "dispatch-admission"
	source = "https://github.com/dispatch-admission/dispatch-admission"
	// The numbers, not the name: Kubernetes has to see that it is not root.
	user     = "65532:65532"
	binaries = "/usr/local/bin"
)

// entry is a file of the image, or a folder when its name ends in a slash. All
// belong to root, so that no process of the image can change them.
type entry struct {
	name    string // without a leading slash
	mode    int64
	content []byte
}

// files lists what the image of a platform holds. Time zones are not among it:
// the programs carry them.
func files(root string, programs []program, platform v1.Platform, parts []part) ([]entry, error) {
	licence, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	entries := []entry{
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{"etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n")},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, certificates()},
		{"licenses/" + title + "/LICENSE", 0o644, licence},
		{"tmp/", 0o1777, nil},
	}
	for _, p := range parts {
		for name, text := range p.licences {
			entries = append(entries, entry{path.Join("licenses", p.path, name), 0o644, text})
		}
	}
	for _, p := range programs {
		if p.platform.Architecture != platform.Architecture {
			continue
		}
		content, err := os.ReadFile(p.file)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{strings.TrimPrefix(binaries, "/") + "/" + p.name, 0o755, content})
	}
	return entries, nil
}

// certificates are the roots that a hook by https is checked with when its gate
// has no caBundle. A file of roots cannot say that one of them is trusted only
// for certificates up to a day, so those are left out.
func certificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return out.Bytes()
}

// image makes the image of one platform. It keeps its layer in the file scratch,
// which must stay as long as the image is used.
func image(o Options, platform v1.Platform, entries []entry, scratch string) (v1.Image, error) {
	f, err := os.Create(scratch)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(writeLayer(f, entries, o.Created), f.Close()); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(scratch, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: o.Created.UTC()}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: created, CreatedBy: "make image", Comment: source},
	})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = platform.OS, platform.Architecture, created
	config.Config = v1.Config{
		User: user,
		Env:  []string{"PATH=" + binaries},
		// The chart names the program it wants; who does not gets the controller.
		Entrypoint: []string{title},
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":       title,
			"org.opencontainers.image.description": "Gates in front of training work on Kubernetes clusters that queue with Kueue",
			"org.opencontainers.image.version":     o.Version,
			"org.opencontainers.image.revision":    o.Revision,
			"org.opencontainers.image.created":     created.Format(time.RFC3339),
			"org.opencontainers.image.source":      source,
			"org.opencontainers.image.url":         source,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return mutate.ConfigFile(img, config)
}

// writeLayer writes the entries and the folders above them as a tar.
func writeLayer(w io.Writer, entries []entry, created time.Time) error {
	all := map[string]entry{}
	for _, e := range entries {
		all[e.name] = e
		for dir := path.Dir(path.Clean(e.name)); dir != "."; dir = path.Dir(dir) {
			all[dir+"/"] = entry{name: dir + "/", mode: 0o755}
		}
	}
	tw := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		e := all[name]
		header := &tar.Header{Name: name, Mode: e.mode, Size: int64(len(e.content)), ModTime: created, Typeflag: tar.TypeReg}
		if strings.HasSuffix(name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := tw.WriteHeader(header); err != nil {
			return err
		}
		if _, err := tw.Write(e.content); err != nil {
			return err
		}
	}
	return tw.Close()
}
