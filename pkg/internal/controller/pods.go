package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/placement"
)

const (
	// managedLabel is on every pod that Kueue starts by removing its gate.
	managedLabel = "kueue.x-k8s.io/managed"
	// groupKey has the name of the group that such a pod belongs to: an annotation, or
	// a label where people made the group, or Kueue is older than 0.18.
	groupKey = "kueue.x-k8s.io/pod-group-name"
)

// readPods reads the pods that a Workload was made for, which Kueue does not describe
// in it, if a hook chose labels or annotations for them.
func (g *Gate) readPods(ctx context.Context, snap *gate.Snapshot) error {
	wl := snap.Workload
	if snap.Pods != nil || !placement.MadeOfPods(wl) || !slices.ContainsFunc(slices.Collect(maps.Values(snap.Answers)), gate.Answer.ChoosesMetadata) {
		return nil
	}
	pods, alone, err := g.waitingPods(ctx, wl)
	switch {
	case apierrors.IsForbidden(err):
		snap.PodsUnknown = "the gate may not list the pods of the job, so nothing can be compared with what they have"
	case err != nil:
		return fmt.Errorf("listing the pods of the workload: %w", err)
	}
	snap.Pods = []metav1.ObjectMeta{}
	for i := range pods.Items {
		if pod := pods.Items[i].ObjectMeta; pod.DeletionTimestamp == nil && (alone || groupOf(&pod) == wl.Name) {
			snap.Pods = append(snap.Pods, pod)
		}
	}
	return nil
}

// waitingPods lists the pods that wait for Kueue in the namespace of a Workload, or the
// only one that it was made for, if it is alone. Kueue changes no others.
func (g *Gate) waitingPods(ctx context.Context, wl *kueue.Workload) (pods *metav1.PartialObjectMetadataList, alone bool, err error) {
	waiting := client.MatchingFields{"status.phase": string(corev1.PodPending), "spec.nodeName": ""}
	if owner := metav1.GetControllerOfNoCopy(wl); owner != nil && owner.Kind == "Pod" {
		waiting["metadata.name"], alone = owner.Name, true
	}
	pods = &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	return pods, alone, g.live.List(ctx, pods, client.InNamespace(wl.Namespace), waiting, client.MatchingLabels{managedLabel: "true"})
}

// groupOf is the name of the group that a pod belongs to, which is that of its
// Workload; empty if it is alone.
func groupOf(pod *metav1.ObjectMeta) string {
	return cmp.Or(pod.Annotations[groupKey], pod.Labels[groupKey])
}
