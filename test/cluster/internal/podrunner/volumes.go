package podrunner

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/downwardapi"
	"k8s.io/kubernetes/pkg/volume/secret"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
)

// files are the contents of a volume by path.
type files = map[string]volumeutil.FileProjection

// writeVolumes brings the pod's volumes up to date. Changed files are swapped in
// atomically, by the kubelet's own writer.
func (r *runner) writeVolumes(root string, pod *corev1.Pod) error {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err := r.writeVolume(filepath.Join(root, volumesDir, v.Name), pod, v); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func (r *runner) writeVolume(dir string, pod *corev1.Pod, v *corev1.Volume) error {
	if v.EmptyDir != nil {
		return createVolume(dir, 0o777, pod)
	}
	content, err := r.content(pod, v)
	if err != nil {
		return err
	}
	if err := createVolume(dir, 0o755, pod); err != nil {
		return err
	}
	writer, err := volumeutil.NewAtomicWriter(dir, "pod "+pod.Namespace+"/"+pod.Name)
	if err != nil {
		return err
	}
	return writer.Write(content, func(sub string) error { return giveToGroup(filepath.Join(dir, sub), fsGroup(pod)) })
}

// createVolume makes the directory of a volume, whatever the umask is.
func createVolume(dir string, mode os.FileMode, pod *corev1.Pod) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.Mkdir(dir, mode); err != nil {
		return err
	}
	if err := os.Chmod(dir, mode); err != nil {
		return err
	}
	group := fsGroup(pod)
	if group == nil || os.Geteuid() != 0 {
		return nil
	}
	return errors.Join(os.Chown(dir, -1, int(*group)), os.Chmod(dir, mode|os.ModeSetgid))
}

// content returns the files of a volume that has some.
func (r *runner) content(pod *corev1.Pod, v *corev1.Volume) (files, error) {
	switch {
	case v.ConfigMap != nil:
		return r.configMapFiles(pod.Namespace, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.DefaultMode, v.ConfigMap.Optional)
	case v.Secret != nil:
		return r.secretFiles(pod.Namespace, v.Secret.SecretName, v.Secret.Items, v.Secret.DefaultMode, v.Secret.Optional)
	case v.DownwardAPI != nil:
		return downwardFiles(pod, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	case v.Projected != nil:
		all := files{}
		for _, source := range v.Projected.Sources {
			some, err := r.projected(pod, source, v.Projected.DefaultMode)
			if err != nil {
				return nil, err
			}
			maps.Copy(all, some)
		}
		return all, nil
	}
	return nil, errors.New("it is none of emptyDir, configMap, secret, downwardAPI and projected, which are supported")
}

func (r *runner) projected(pod *corev1.Pod, source corev1.VolumeProjection, mode *int32) (files, error) {
	switch {
	case source.ConfigMap != nil:
		return r.configMapFiles(pod.Namespace, source.ConfigMap.Name, source.ConfigMap.Items, mode, source.ConfigMap.Optional)
	case source.Secret != nil:
		return r.secretFiles(pod.Namespace, source.Secret.Name, source.Secret.Items, mode, source.Secret.Optional)
	case source.DownwardAPI != nil:
		return downwardFiles(pod, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return r.tokenFile(pod, source.ServiceAccountToken, mode)
	}
	return nil, errors.New("it projects none of configMap, secret, downwardAPI and serviceAccountToken, which are supported")
}

func (r *runner) configMapFiles(namespace, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (files, error) {
	m, err := r.configMaps.ConfigMaps(namespace).Get(name)
	if err := unless(optional, err); err != nil {
		return nil, err
	}
	if err != nil {
		m = &corev1.ConfigMap{}
	}
	return configmap.MakePayload(items, m, mode, optional != nil && *optional)
}

func (r *runner) secretFiles(namespace, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (files, error) {
	s, err := r.secrets.Secrets(namespace).Get(name)
	if err := unless(optional, err); err != nil {
		return nil, err
	}
	if err != nil {
		s = &corev1.Secret{}
	}
	return secret.MakePayload(items, s, mode, optional != nil && *optional)
}

func downwardFiles(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode *int32) (files, error) {
	for _, item := range items {
		if item.ResourceFieldRef != nil {
			return nil, fmt.Errorf("file %s: resourceFieldRef is not supported in a volume", item.Path)
		}
	}
	return downwardapi.CollectData(items, pod, nil, mode)
}

// tokenFile asks for a token that is bound to the pod, or a new one when the last
// is near its end.
func (r *runner) tokenFile(pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection, mode *int32) (files, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	answer, err := r.tokens.GetServiceAccountToken(pod.Namespace, pod.Spec.ServiceAccountName, request)
	if err != nil {
		return nil, fmt.Errorf("token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	owner := onlyUser(pod)
	file := volumeutil.FileProjection{Data: []byte(answer.Status.Token), Mode: *mode}
	if owner != nil || fsGroup(pod) != nil {
		file.Mode = 0o600
	}
	if os.Geteuid() == 0 {
		file.FsUser = owner
	}
	return files{source.Path: file}, nil
}

// onlyUser returns the user of all containers, nil if they have none or several.
func onlyUser(pod *corev1.Pod) *int64 {
	var only *int64
	for _, c := range newContainers(&corev1.Pod{Spec: pod.Spec, ObjectMeta: metav1.ObjectMeta{}}) {
		uid := runAsUser(pod, c.spec)
		if uid == nil || only != nil && *only != *uid {
			return nil
		}
		only = uid
	}
	return only
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// giveToGroup lets the pod's group read what is in dir.
func giveToGroup(dir string, group *int64) error {
	if group == nil || os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Mode()&os.ModeSymlink != 0 {
			return err
		}
		if err := os.Lchown(name, -1, int(*group)); err != nil {
			return err
		}
		mode := info.Mode() | 0o440
		if entry.IsDir() {
			mode |= 0o110 | os.ModeSetgid
		}
		return os.Chmod(name, mode)
	})
}
