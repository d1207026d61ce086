package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// The files that Make writes.
const (
	ImageFile = "dispatch-admission-image.tar"
	SBOMFile  = "dispatch-admission-sbom.json"
)

// Options say what Make makes. All of them are needed.
type Options struct {
	Root      string    // the repository
	Out       string    // the folder for the files
	Image     string    // repository of the image, with or without a registry
	Tag       string    // of the image
	Platforms []string  // such as linux/amd64
	Version   string    // of the sources, such as 0.1.0
	Revision  string    // the commit
	Created   time.Time // of the commit: the time in every file that has one
	LDFlags   string    // for the linker
}

// Make builds the programs for every platform and writes ImageFile, an OCI image
// layout in a tar, and SBOMFile, its bill of materials in CycloneDX, into o.Out. A
// file that could not be made whole is not written.
func Make(ctx context.Context, o Options) error {
	tag, platforms, err := o.check()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var programs []program
	var images []v1.Image
	for _, p := range platforms {
		built, err := build(ctx, o, p, filepath.Join(dir, p.Architecture))
		if err != nil {
			return err
		}
		programs = append(programs, built...)
	}
	parts, err := findParts(ctx, o.Root, programs)
	if err != nil {
		return err
	}
	for _, p := range platforms {
		entries, err := files(o.Root, programs, p, parts)
		if err != nil {
			return err
		}
		img, err := image(o, p, entries, filepath.Join(dir, p.Architecture+".tar"))
		if err != nil {
			return err
		}
		images = append(images, img)
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	var digest v1.Hash
	err = replace(filepath.Join(o.Out, ImageFile), func(w io.Writer) error {
		digest, err = archive(w, filepath.Join(dir, "layout"), tag, platforms, images, o.Created)
		return err
	})
	if err != nil {
		return err
	}
	var sbom bytes.Buffer
	if err := writeSBOM(&sbom, o, digest, programs, parts); err != nil {
		return err
	}
	return replace(filepath.Join(o.Out, SBOMFile), func(w io.Writer) error {
		_, err := sbom.WriteTo(w)
		return err
	})
}

// check returns what the options mean. Errors name the flag of the command.
func (o Options) check() (name.Tag, []v1.Platform, error) {
	tag, err := name.NewTag(o.Image + ":" + o.Tag)
	if err != nil {
		return tag, nil, fmt.Errorf("-image and -tag: %w", err)
	}
	if o.Version == "" || o.Revision == "" {
		return tag, nil, errors.New("-version and -revision must say what is built")
	}
	if o.Created.Unix() <= 0 {
		return tag, nil, errors.New("-created must be the time of the commit, in seconds since 1970; SOURCE_DATE_EPOCH sets it")
	}
	var platforms []v1.Platform
	for i, text := range o.Platforms {
		if slices.Contains(o.Platforms[:i], text) {
			return tag, nil, fmt.Errorf("-platforms: %q is there twice", text)
		}
		if text != "linux/amd64" && text != "linux/arm64" {
			return tag, nil, fmt.Errorf("-platforms: %q is not linux/amd64 or linux/arm64", text)
		}
		platforms = append(platforms, v1.Platform{OS: "linux", Architecture: strings.TrimPrefix(text, "linux/")})
	}
	return tag, platforms, nil
}

// replace writes a file at once, so that nobody takes half of one for the whole.
func replace(name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, as it should
	err = errors.Join(write(f), f.Chmod(0o644), f.Close())
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return os.Rename(f.Name(), name)
}
