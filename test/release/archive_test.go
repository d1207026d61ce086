package release

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The programs of several platforms take minutes to build; the archive does not
// care what the images hold.
func TestArchivePlatforms(t *testing.T) {
	t.Parallel()
	o := Options{
		Image: "registry.example.org/gates/dispatch-admission", Tag: "0.1.0", Platforms: []string{"linux/amd64", "linux/arm64"},
		Version: "0.1.0", Revision: "abc", Created: time.Unix(1_700_000_000, 0),
	}
	tag, platforms, err := o.check()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var images []v1.Image
	for _, p := range platforms {
		img, err := image(o, p, []entry{{"etc/arch", 0o644, []byte(p.Architecture)}}, filepath.Join(dir, p.Architecture))
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	var out bytes.Buffer
	digest, err := archive(&out, filepath.Join(dir, "layout"), tag, platforms, images, o.Created)
	if err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, "layout"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	top, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].Digest != digest {
		t.Fatalf("got %+v, want the one index %s", top.Manifests, digest)
	}
	if got := top.Manifests[0].Annotations["io.containerd.image.name"]; got != o.Image+":"+o.Tag {
		t.Errorf("the image is named %q", got)
	}
	inner, err := index.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	m, err := inner.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range m.Manifests {
		if d.Platform.String() != o.Platforms[i] {
			t.Errorf("image %d is for %s, want %s", i, d.Platform, o.Platforms[i])
		}
	}
}

func TestCheckOptions(t *testing.T) {
	t.Parallel()
	good := Options{
		Image: "a", Tag: "b", Platforms: []string{"linux/amd64"}, Version: "0.1.0", Revision: "abc", Created: time.Unix(1, 0),
	}
	cases := map[string]struct {
		reason string
		change func(*Options)
		want   string // the start of the error; "" for none
	}{
		"Good":     {"all there", func(*Options) {}, ""},
		"Image":    {"a name in capitals is none", func(o *Options) { o.Image = "A" }, "-image and -tag: "},
		"NoImage":  {"no name", func(o *Options) { o.Image = "" }, "-image and -tag: "},
		"NoTag":    {"no tag is not the tag latest", func(o *Options) { o.Tag = "" }, "-image and -tag: "},
		"Digest":   {"a digest is no tag", func(o *Options) { o.Tag = "b@sha256" }, "-image and -tag: "},
		"Version":  {"nobody could tell what it is", func(o *Options) { o.Version = "" }, "-version and -revision"},
		"Revision": {"nor of what", func(o *Options) { o.Revision = "" }, "-version and -revision"},
		"Created":  {"the time of the build is not reproducible", func(o *Options) { o.Created = time.Time{} }, "-created "},
		"Windows":  {"Kubernetes runs it on Linux", func(o *Options) { o.Platforms[0] = "windows/amd64" }, `-platforms: "windows/amd64"`},
		"None":     {"an empty list", func(o *Options) { o.Platforms = []string{""} }, `-platforms: ""`},
		"Twice":    {"one image per platform", func(o *Options) { o.Platforms = []string{"linux/arm64", "linux/arm64"} }, `-platforms: "linux/arm64"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := good
			o.Platforms = []string{"linux/amd64"}
			tc.change(&o)
			_, _, err := o.check()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want)) {
				t.Errorf("%s: got error %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
