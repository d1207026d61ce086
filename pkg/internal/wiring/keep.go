package wiring

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// keeper is the field manager of the annotation that keeps queues detached.
const keeper = "dispatchctl"

// KeptDetached tells whether people have taken a check out of a queue to stay out.
func KeptDetached(check *kueue.AdmissionCheck, queue string) bool {
	kept := keptQueues(check.Annotations[v1alpha1.KeepDetachedAnnotation])
	return slices.Contains(kept, queue) || slices.Contains(kept, v1alpha1.KeepAllDetached)
}

// KeepDetached notes in a check that queues are to stay without it, before it is
// taken out of them: who wires queues by itself would put it back. A check that
// does not exist is put nowhere.
func (w *Wirer) KeepDetached(ctx context.Context, check string, queues ...string) error {
	return w.note(ctx, check, func(kept []string) []string {
		if kept = sorted(append(kept, queues...)); slices.Contains(kept, v1alpha1.KeepAllDetached) {
			return []string{v1alpha1.KeepAllDetached}
		}
		return kept
	})
}

// Release takes back that queues are to stay without a check. Where that was said
// of all queues, it is taken back for all, and Release says so.
func (w *Wirer) Release(ctx context.Context, check string, queues ...string) (all bool, err error) {
	err = w.note(ctx, check, func(kept []string) []string {
		all = slices.Contains(kept, v1alpha1.KeepAllDetached)
		return slices.DeleteFunc(kept, func(q string) bool { return q == v1alpha1.KeepAllDetached || slices.Contains(queues, q) })
	})
	return all, err
}

// note changes the annotation of a check, as read.
func (w *Wirer) note(ctx context.Context, name string, change func([]string) []string) error {
	err := write(ctx, func() error {
		var check kueue.AdmissionCheck
		if err := w.Client.Get(ctx, types.NamespacedName{Name: name}, &check); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := check.Annotations[v1alpha1.KeepDetachedAnnotation]
		after := strings.Join(change(keptQueues(before)), ",")
		if after == before {
			return nil
		}
		var value any // null removes it
		if after != "" {
			value = after
		}
		data, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": check.UID, "resourceVersion": check.ResourceVersion,
			"annotations": map[string]any{v1alpha1.KeepDetachedAnnotation: value},
		}})
		if err != nil {
			return err
		}
		to, err := w.writer()
		if err != nil {
			return err
		}
		err = to.Patch(ctx, &check, client.RawPatch(types.MergePatchType, data), client.FieldOwner(keeper))
		if apierrors.IsNotFound(err) {
			return nil // it has gone meanwhile
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the annotation %s of AdmissionCheck %q: %w", v1alpha1.KeepDetachedAnnotation, name, err)
	}
	return nil
}

// keptQueues reads the annotation. People may write it too.
func keptQueues(value string) []string {
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}
