package ctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// target names a Workload, by itself or by its job.
type target struct {
	// namespace is empty for that of the connection.
	namespace string
	// kind is the kind of the job in lower case, or workloadKind.
	kind, name string
}

const workloadKind = "workload"

// kinds are the kinds that may be named without a namespace, by their short and
// plural forms. Any other one is known by -n alone, since KIND/NAME looks like
// NAMESPACE/WORKLOAD.
var kinds = map[string]string{
	"wl": workloadKind, "workload": workloadKind, "workloads": workloadKind,
	"job": "job", "jobs": "job",
	"trainjob": "trainjob", "trainjobs": "trainjob",
	"jobset": "jobset", "jobsets": "jobset",
	"pod": "pod", "pods": "pod", "po": "pod",
}

const targetUsage = "NAMESPACE/WORKLOAD, KIND/NAME of a job (job/NAME, trainjob/NAME), or with -n the name of a Workload"

// needTarget wants one target.
func needTarget(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("want one job, by %s", targetUsage)
	}
	return nil
}

// parseTarget reads a target. namespace is that of -n, empty without.
func parseTarget(arg, namespace string) (target, error) {
	first, name, found := strings.Cut(arg, "/")
	kind, known := kinds[strings.ToLower(first)]
	switch {
	case arg == "" || found && (first == "" || name == "" || strings.Contains(name, "/")):
		return target{}, usagef("%q names no job: want %s", arg, targetUsage)
	case !found:
		return target{namespace, workloadKind, arg}, nil
	case known:
		return target{namespace, kind, name}, nil
	case namespace != "":
		return target{namespace, strings.ToLower(first), name}, nil
	}
	return target{first, workloadKind, name}, nil
}

// find reads the Workload of a target.
func (c *cluster) find(ctx context.Context, t target) (*kueue.Workload, error) {
	namespace := t.namespace
	if namespace == "" {
		namespace = c.namespace
	}
	if t.kind == workloadKind {
		var wl kueue.Workload
		err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: t.name}, &wl)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no Workload %q in namespace %q; a job is named by its kind, such as trainjob/NAME", t.name, namespace)
		}
		return &wl, served(err, installKueue)
	}
	var list kueue.WorkloadList
	if err := c.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, served(err, installKueue)
	}
	return pickOwned(list.Items, namespace, t)
}

// installKueue and its like say what serves an API.
const (
	installKueue = "kueue.x-k8s.io/v1beta2; install Kueue v0.17 or newer"
	installGate  = "dispatch.phpboyscout.uk/v1alpha1; install the CustomResourceDefinitions of the chart"
)

// pickOwned picks the Workload of a job. Kueue may be about to replace one.
func pickOwned(all []kueue.Workload, namespace string, t target) (*kueue.Workload, error) {
	owned := slices.DeleteFunc(all, func(wl kueue.Workload) bool {
		return !slices.ContainsFunc(wl.OwnerReferences, func(o metav1.OwnerReference) bool {
			return strings.EqualFold(o.Kind, t.kind) && o.Name == t.name
		})
	})
	live := slices.DeleteFunc(slices.Clone(owned), func(wl kueue.Workload) bool { return wl.DeletionTimestamp != nil })
	if len(live) > 0 {
		owned = live
	}
	switch len(owned) {
	case 0:
		return nil, fmt.Errorf("no Workload of %s/%s in namespace %q: Kueue makes one once the job names a LocalQueue (label kueue.x-k8s.io/queue-name)", t.kind, t.name, namespace)
	case 1:
		return &owned[0], nil
	}
	names := make([]string, len(owned))
	for i := range owned {
		names[i] = owned[i].Name
	}
	slices.Sort(names)
	return nil, fmt.Errorf("%s/%s in namespace %q has several Workloads: name one of workload/%s", t.kind, t.name, namespace, orList(names))
}
