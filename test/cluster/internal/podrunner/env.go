package podrunner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// environment returns the variables of a container. The pod's status must have
// its address.
func (r *runner) environment(pod *corev1.Pod, c *corev1.Container) (map[string]string, error) {
	service := map[string]string{
		"KUBERNETES_SERVICE_HOST": r.APIHost, "KUBERNETES_SERVICE_PORT": r.APIPort,
		"KUBERNETES_SERVICE_PORT_HTTPS": r.APIPort,
	}
	env := map[string]string{"PATH": searchPath, "HOME": "/", "HOSTNAME": hostname(pod)}
	maps.Copy(env, service)
	for _, from := range c.EnvFrom {
		data, err := r.envFrom(pod.Namespace, from)
		if err != nil {
			return nil, err
		}
		maps.Copy(env, data)
	}
	for _, v := range c.Env {
		value, err := r.envValue(pod, c, v, expansion.MappingFuncFor(env, service))
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", v.Name, err)
		}
		if value != nil {
			env[v.Name] = *value
		}
	}
	return env, nil
}

// envFrom reads all of a ConfigMap or Secret.
func (r *runner) envFrom(namespace string, from corev1.EnvFromSource) (map[string]string, error) {
	env := map[string]string{}
	switch {
	case from.ConfigMapRef != nil:
		m, err := r.configMaps.ConfigMaps(namespace).Get(from.ConfigMapRef.Name)
		if err != nil {
			return nil, unless(from.ConfigMapRef.Optional, err)
		}
		for key, value := range m.Data {
			env[from.Prefix+key] = value
		}
	case from.SecretRef != nil:
		s, err := r.secrets.Secrets(namespace).Get(from.SecretRef.Name)
		if err != nil {
			return nil, unless(from.SecretRef.Optional, err)
		}
		for key, value := range s.Data {
			env[from.Prefix+key] = string(value)
		}
	}
	return env, nil
}

// envValue returns the value of one variable, nil if it is optional and absent.
func (r *runner) envValue(pod *corev1.Pod, c *corev1.Container, v corev1.EnvVar, known func(string) string) (*string, error) {
	if v.ValueFrom == nil {
		value := expansion.Expand(v.Value, known)
		return &value, nil
	}
	switch from := v.ValueFrom; {
	case from.FieldRef != nil:
		value, err := fieldValue(pod, from.FieldRef.FieldPath)
		return &value, err
	case from.ResourceFieldRef != nil:
		value, err := resource.ExtractContainerResourceValue(from.ResourceFieldRef, c)
		return &value, err
	case from.ConfigMapKeyRef != nil:
		m, err := r.configMaps.ConfigMaps(pod.Namespace).Get(from.ConfigMapKeyRef.Name)
		if err != nil {
			return nil, unless(from.ConfigMapKeyRef.Optional, err)
		}
		return keyValue("ConfigMap", m.Name, m.Data, from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional)
	case from.SecretKeyRef != nil:
		s, err := r.secrets.Secrets(pod.Namespace).Get(from.SecretKeyRef.Name)
		if err != nil {
			return nil, unless(from.SecretKeyRef.Optional, err)
		}
		return keyValue("Secret", s.Name, s.Data, from.SecretKeyRef.Key, from.SecretKeyRef.Optional)
	}
	return nil, fmt.Errorf("this kind of valueFrom is not supported")
}

func keyValue[V string | []byte](what, name string, data map[string]V, key string, optional *bool) (*string, error) {
	if found, ok := data[key]; ok {
		value := string(found)
		return &value, nil
	}
	if optional != nil && *optional {
		return nil, nil
	}
	return nil, fmt.Errorf("couldn't find key %s in %s %s", key, what, name)
}

// unless forgives that an optional object does not exist.
func unless(optional *bool, err error) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// fieldValue returns a field of the pod, those included that only a node knows.
func fieldValue(pod *corev1.Pod, field string) (string, error) {
	switch field {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return pod.Status.HostIP, nil
	case "status.podIP", "status.podIPs":
		return pod.Status.PodIP, nil
	}
	return fieldpath.ExtractFieldPathAsString(pod, field)
}

// arguments returns the command line of a container: variables replaced, and the
// pod's address put in front of the container's own ports where no host is named,
// because all pods share the addresses of one machine.
func arguments(words []string, env map[string]string, ports []corev1.ContainerPort, ip string) []string {
	known := expansion.MappingFuncFor(env)
	out := make([]string, 0, len(words))
	for _, word := range words {
		out = append(out, bindTo(ip, expansion.Expand(word, known), ports))
	}
	return out
}

// bindTo turns ":8080" and "-flag=:8080" into the same with the address, if 8080
// is one of the ports.
func bindTo(ip, word string, ports []corev1.ContainerPort) string {
	for _, p := range ports {
		empty := ":" + strconv.Itoa(int(p.ContainerPort))
		if before, ok := strings.CutSuffix(word, empty); ok && (before == "" || strings.HasSuffix(before, "=")) {
			return before + ip + empty
		}
	}
	return word
}

// list renders variables as a process gets them, in a fixed order.
func list(env map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}
