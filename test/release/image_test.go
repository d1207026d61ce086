package release_test

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/dispatch-admission/dispatch-admission/test/release"
)

const (
	root     = "../.."
	app      = "github.com/dispatch-admission/dispatch-admission/pkg/app"
	revision = "0123456789abcdef0123456789abcdef01234567"
)

// versionArgs are how each program is asked what it is.
var versionArgs = map[string]string{"dispatch-admission": "-version", "dispatch-hook": "-version", "dispatchctl": "version"}

// TestMake builds once in the repository and once in a copy of it, on what could
// be another machine, and looks at the result.
func TestMake(t *testing.T) {
	t.Parallel()
	command := filepath.Join(t.TempDir(), "release")
	run(t, nil, "go", "build", "-o", command, "./cmd/release")
	out, again := t.TempDir(), t.TempDir()
	run(t, nil, command, arguments(root, out)...)
	run(t, []string{"GOFLAGS=-tags=other", "GOAMD64=v2", "GOARM64=v8.1", "CGO_ENABLED=1", "TZ=Asia/Tokyo"},
		command, arguments(sources(t), again)...)
	for _, file := range []string{release.ImageFile, release.SBOMFile} {
		if !bytes.Equal(read(t, filepath.Join(out, file)), read(t, filepath.Join(again, file))) {
			t.Errorf("%s: two builds of the same sources differ", file)
		}
	}
	file := filepath.Join(out, release.ImageFile)
	img := onlyImage(t, file)
	checkFormats(t, file, img)
	checkConfig(t, img)
	files := untar(t, uncompressed(t, img))
	checkFiles(t, files)
	bin := t.TempDir()
	for name := range versionArgs {
		content := files["usr/local/bin/"+name].content
		if err := os.WriteFile(filepath.Join(bin, name), content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	checkPrograms(t, bin)
	checkSBOM(t, read(t, filepath.Join(out, release.SBOMFile)), img, bin)
}

func arguments(root, out string) []string {
	return []string{
		"image", "-root", root, "-out", out, "-image", "dispatch-admission", "-tag", "0.1.0-test", "-platforms", "linux/" + runtime.GOARCH,
		"-version", "0.1.0", "-revision", revision, "-created", "1700000000",
		"-ldflags", "-X " + app + ".buildVersion=v0.1.0 -X " + app + ".buildCommit=" + revision,
	}
}

// run runs a command with more in its environment than the test has.
func run(t *testing.T, env []string, command string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// sources copies what the image is made of to another folder.
func sources(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"LICENSE", "go.mod", "go.sum"} {
		if err := os.WriteFile(filepath.Join(dir, name), read(t, filepath.Join(root, name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"api", "cmd", "pkg"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(root, name))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// onlyImage opens an archive as an OCI layout, which must hold one image.
func onlyImage(t *testing.T, file string) v1.Image {
	t.Helper()
	path := openLayout(t, file)
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 || m.Manifests[0].Platform.String() != "linux/"+runtime.GOARCH {
		t.Fatalf("got %+v, want one image for linux/%s", m.Manifests, runtime.GOARCH)
	}
	checkNames(t, m.Manifests[0])
	img, err := path.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func checkNames(t *testing.T, d v1.Descriptor) {
	t.Helper()
	for key, want := range map[string]string{
		"io.containerd.image.name":          "docker.io/library/dispatch-admission:0.1.0-test",
		"org.opencontainers.image.ref.name": "0.1.0-test",
	} {
		if got := d.Annotations[key]; got != want {
			t.Errorf("annotation %s: got %q, want %q", key, got, want)
		}
	}
}

// openLayout unpacks an archive and opens it.
func openLayout(t *testing.T, file string) layout.Path {
	t.Helper()
	dir := t.TempDir()
	for name, f := range untar(t, bytes.NewReader(read(t, file))) {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if f.header.Typeflag == tar.TypeDir {
			continue
		}
		if err := os.WriteFile(to, f.content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

type file struct {
	header  *tar.Header
	content []byte
}

func untar(t *testing.T, r io.Reader) map[string]file {
	t.Helper()
	files := map[string]file{}
	for tr := tar.NewReader(r); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[header.Name]; twice {
			t.Errorf("%s is in the archive twice", header.Name)
		}
		files[header.Name] = file{header, content}
	}
}

func uncompressed(t *testing.T, img v1.Image) io.Reader {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("got %d layers and error %v, want one layer", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func checkFormats(t *testing.T, file string, img v1.Image) {
	t.Helper()
	if err := validate.Image(img); err != nil {
		t.Errorf("as an OCI image: %v", err)
	}
	tag, err := name.NewTag("dispatch-admission:0.1.0-test")
	if err != nil {
		t.Fatal(err)
	}
	legacy, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatalf("as docker save writes them: %v", err)
	}
	if err := validate.Image(legacy); err != nil {
		t.Errorf("as docker save writes them: %v", err)
	}
	want, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := legacy.ConfigName(); err != nil || got != want {
		t.Errorf("as docker save writes them it is image %v, as an OCI image %v (%v)", got, want, err)
	}
}

func checkConfig(t *testing.T, img v1.Image) {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]string{
		"platform":   {c.Platform().String(), "linux/" + runtime.GOARCH},
		"created":    {c.Created.Format(time.RFC3339), "2023-11-14T22:13:20Z"},
		"user":       {c.Config.User, "65532:65532"},
		"env":        {strings.Join(c.Config.Env, " "), "PATH=/usr/local/bin"},
		"entrypoint": {strings.Join(c.Config.Entrypoint, " "), "dispatch-admission"},
		"title":      {c.Config.Labels["org.opencontainers.image.title"], "dispatch-admission"},
		"version":    {c.Config.Labels["org.opencontainers.image.version"], "0.1.0"},
		"revision":   {c.Config.Labels["org.opencontainers.image.revision"], revision},
		"date":       {c.Config.Labels["org.opencontainers.image.created"], "2023-11-14T22:13:20Z"},
		"licence":    {c.Config.Labels["org.opencontainers.image.licenses"], "Apache-2.0"},
		"source":     {c.Config.Labels["org.opencontainers.image.source"], "https://github.com/dispatch-admission/dispatch-admission"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %q, want %q", what, pair[0], pair[1])
		}
	}
}

func checkFiles(t *testing.T, files map[string]file) {
	t.Helper()
	for name, f := range files {
		h := f.header
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d, want root", name, h.Uid, h.Gid)
		}
		if h.Mode&0o022 != 0 && name != "tmp/" {
			t.Errorf("%s has mode %o: others can write it", name, h.Mode)
		}
		if !h.ModTime.Equal(time.Unix(1_700_000_000, 0)) {
			t.Errorf("%s is of %v, not of the commit", name, h.ModTime)
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			t.Errorf("%s is neither a file nor a folder", name)
		}
	}
	for name, mode := range map[string]int64{
		"tmp/": 0o1777, "etc/": 0o755, "etc/group": 0o644, "licenses/dispatch-admission/LICENSE": 0o644,
		"licenses/k8s.io/api/LICENSE": 0o644, "licenses/stdlib/LICENSE": 0o644,
	} {
		if f, ok := files[name]; !ok || f.header.Mode != mode {
			t.Errorf("%s: is missing or has another mode than %o", name, mode)
		}
	}
	if !slices.Contains(strings.Split(string(files["etc/passwd"].content), "\n"), "nonroot:x:65532:65532:nonroot:/:/sbin/nologin") {
		t.Error("etc/passwd: does not know the user of the image")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"].content) {
		t.Error("etc/ssl/certs/ca-certificates.crt: holds no certificate")
	}
}

// checkPrograms runs what came out of the image, where no library, no PATH and no
// time zone of this machine can help.
func checkPrograms(t *testing.T, bin string) {
	t.Helper()
	for name, arg := range versionArgs {
		path := filepath.Join(bin, name)
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s: is not static", name)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		cmd := exec.CommandContext(t.Context(), path, arg)
		cmd.Env = []string{"PATH=/nowhere"}
		out, err := cmd.CombinedOutput()
		if want := "v0.1.0 commit " + revision; err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s %s: got %q and error %v, want %q", name, arg, out, err, want)
		}
	}
}
