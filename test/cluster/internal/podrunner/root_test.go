package podrunner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func mounting(mounts ...string) *container {
	spec := &corev1.Container{Name: "c"}
	for _, m := range mounts {
		volume, at, _ := strings.Cut(m, ":")
		spec.VolumeMounts = append(spec.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: at})
	}
	return &container{spec: spec}
}

func TestMount(t *testing.T) {
	root := t.TempDir()
	for _, v := range []string{"data", "config", "inner"} {
		write(t, filepath.Join(root, volumesDir, v, "file"), v, 0o644)
	}
	containers := []*container{mounting("data:/data", "config:/etc/app/"), mounting("data:/other", "data:/data", "inner:/data/deep/in")}
	for range 2 { // once more changes nothing
		if err := mount(root, containers); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string]string{
		"data/file": "data", "other/file": "data", "etc/app/file": "config", "data/deep/in/file": "inner",
	} {
		if got := read(t, filepath.Join(root, at)); got != want {
			t.Errorf("%s is of volume %q, want %q", at, got, want)
		}
	}
}

func TestMountRefusesWhatOneRootCannotHold(t *testing.T) {
	sub := mounting("data:/data")
	sub.spec.VolumeMounts[0].SubPath = "x"
	for want, containers := range map[string][]*container{
		"volume a of another container": {mounting("a:/data"), mounting("b:/data")},
		"subPath is not supported":      {sub},
	} {
		if err := mount(t.TempDir(), containers); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestFindProgram(t *testing.T) {
	root, image := t.TempDir(), t.TempDir()
	write(t, filepath.Join(image, "gate"), "", 0o755)
	write(t, filepath.Join(image, "notes"), "", 0o644)
	pod := &corev1.Pod{}
	pod.Name = "p"
	c := &container{spec: &corev1.Container{Image: "a/gate:v1"}}
	for range 2 { // once more changes nothing
		if err := createRoot(root, pod, "127.64.0.1", Programs{"gate": image}, []*container{c}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"gate": "/usr/local/bin/gate", "/usr/local/bin/gate": "/usr/local/bin/gate", "usr/local/bin/gate": "/usr/local/bin/gate",
	} {
		if got, err := findProgram(root, name, searchPath); err != nil || got != want {
			t.Errorf("findProgram(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"notes", "sh", "/bin/gate"} {
		if got, err := findProgram(root, name, searchPath); err == nil || !strings.Contains(err.Error(), "which has gate") {
			t.Errorf("findProgram(%q) = %q, %v; want an error that lists what is there", name, got, err)
		}
	}
	if got := read(t, filepath.Join(root, "etc", "hosts")); !strings.Contains(got, "127.64.0.1\tp\n") {
		t.Errorf("hosts: %q", got)
	}
}

func TestLastMessage(t *testing.T) {
	root := t.TempDir()
	log := filepath.Join(root, "log")
	write(t, log, "one\ntwo\n", 0o644)
	const fallback = corev1.TerminationMessageFallbackToLogsOnError
	for name, tc := range map[string]struct {
		written string
		policy  corev1.TerminationMessagePolicy
		code    int32
		want    string
	}{
		"a message":             {"why", corev1.TerminationMessageReadFile, 1, "why"},
		"a message first":       {"why", fallback, 1, "why"},
		"none":                  {"", corev1.TerminationMessageReadFile, 1, ""},
		"the log instead":       {"", fallback, 1, "one\ntwo\n"},
		"no failure, no log":    {"", fallback, 0, ""},
		"the end of a long one": {strings.Repeat("x", maxMessage) + "y", fallback, 1, strings.Repeat("x", maxMessage-1) + "y"},
	} {
		c := &corev1.Container{TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: tc.policy}
		if err := createMessageFile(root, c); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, c.TerminationMessagePath), tc.written, 0o644)
		if got := lastMessage(root, log, c, tc.code); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
