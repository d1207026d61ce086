package podrunner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func withVolume(source corev1.VolumeSource) *corev1.Pod {
	pod := onNode()
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
	return pod
}

func configMapVolume(optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
	mode := int32(0o644)
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "m"}, Items: items, DefaultMode: &mode, Optional: &optional,
	}}
}

func configMap(value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "m"}, Data: map[string]string{"k": value}}
}

func volumesRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, volumesDir), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestConfigMapVolumeIsSwapped checks that readers see the old files or the new
// ones: what they open is reached through one link that is replaced.
func TestConfigMapVolumeIsSwapped(t *testing.T) {
	root, pod := volumesRoot(t), withVolume(configMapVolume(false))
	dir := filepath.Join(root, volumesDir, "v")
	if err := having(t, configMap("one")).writeVolumes(root, pod); err != nil {
		t.Fatal(err)
	}
	before, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		value string
		moves bool
	}{{"one", false}, {"two", true}} {
		if err := having(t, configMap(step.value)).writeVolumes(root, pod); err != nil {
			t.Fatal(err)
		}
		after, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, filepath.Join(dir, "k")); got != step.value || (before != after) != step.moves {
			t.Errorf("file %q at %s, before at %s; want %+v", got, after, before, step)
		}
		before = after
	}
}

func TestVolumes(t *testing.T) {
	mode := int32(0o600)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "s"}, Data: map[string][]byte{"k": []byte("hidden")}}
	for name, tc := range map[string]struct {
		source  corev1.VolumeSource
		want    map[string]string
		wantErr string
	}{
		"empty":             {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil, ""},
		"map":               {configMapVolume(false), map[string]string{"k": "one"}, ""},
		"under a path":      {configMapVolume(false, corev1.KeyToPath{Key: "k", Path: "a/b"}), map[string]string{"a/b": "one"}, ""},
		"missing key":       {configMapVolume(false, corev1.KeyToPath{Key: "x", Path: "x"}), nil, "non-existent config key: x"},
		"optional key":      {configMapVolume(true, corev1.KeyToPath{Key: "x", Path: "x"}), nil, ""},
		"secret":            {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: &mode}}, map[string]string{"k": "hidden"}, ""},
		"missing secret":    {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x", DefaultMode: &mode}}, nil, `volume v: secret "x" not found`},
		"from the node":     {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, nil, "none of emptyDir"},
		"of several things": {projectedVolume(), map[string]string{"k": "one", "name": "p"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := volumesRoot(t)
			err := having(t, configMap("one"), secret).writeVolumes(root, withVolume(tc.source))
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			for file, want := range tc.want {
				if got := read(t, filepath.Join(root, volumesDir, "v", file)); got != want {
					t.Errorf("%s holds %q, want %q", file, got, want)
				}
			}
		})
	}
}

func TestEmptyDirIsForAllUsers(t *testing.T) {
	root := volumesRoot(t)
	pod := withVolume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	if err := having(t).writeVolumes(root, pod); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(root, volumesDir, "v"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o777 {
		t.Errorf("mode %o, want 777", info.Mode().Perm())
	}
}

func projectedVolume() corev1.VolumeSource {
	mode := int32(0o644)
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
		}}},
	}}}
}
