package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestImageNames(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("static"), 0o755); err != nil {
		t.Fatal(err)
	}
	layout := filepath.Join(dir, "image.tar")
	if err := WriteImage(layout, "docker.io/library/a:b", program); err != nil {
		t.Fatal(err)
	}
	if got, err := imageNames(layout); err != nil || !slices.Equal(got, []string{"docker.io/library/a:b"}) {
		t.Errorf("names of what writeImage wrote = %q, %v", got, err)
	}
	for name, tc := range map[string]struct {
		file tarFile
		want string
	}{
		"no layout":   {tarFile{"manifest.json", 0o644, []byte("[]")}, "no OCI image layout"},
		"no image":    {tarFile{"./index.json", 0o644, []byte(`{"manifests": []}`)}, "lists no image"},
		"no name":     {tarFile{"index.json", 0o644, []byte(`{"manifests": [{"digest": "sha256:0"}]}`)}, "no annotation io.containerd.image.name"},
		"no JSON":     {tarFile{"index.json", 0o644, []byte("index")}, "invalid character"},
		"no tar file": {want: "no tar file"},
	} {
		t.Run(name, func(t *testing.T) {
			content := []byte(strings.Repeat("no tar file ", 100))
			if tc.file.name != "" {
				var err error
				if content, err = tarOf(tc.file); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(t.TempDir(), "x.tar")
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := imageNames(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestContainersNeedNode(t *testing.T) {
	for name, err := range map[string]error{
		"LoadImage":       new(Cluster).LoadImage(t.Context(), "x.tar"),
		"SignalContainer": new(Cluster).SignalContainer(t.Context(), "containerd://x", syscall.SIGTERM),
	} {
		if err == nil || !strings.Contains(err.Error(), "Config.Node") {
			t.Errorf("%s: error %v, want one that names Config.Node", name, err)
		}
	}
}

// TestCheckVisible checks that what a node would hide is refused, seen through
// symbolic links too.
func TestCheckVisible(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/var/lib", link); err != nil {
		t.Fatal(err)
	}
	for path, hidden := range map[string]bool{"/usr": false, "/var": false, "/run": true, "/var/log": true, link: true} {
		if err := checkVisible("/usr", path); (err != nil) != hidden {
			t.Errorf("checkVisible(%q) = %v, want an error: %t", path, err, hidden)
		}
	}
}
