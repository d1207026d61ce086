package wiring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// AwaitCheck waits until a check can be put into a queue: it is ours, it is not
// about to go, and the gate serves it.
func (w *Wirer) AwaitCheck(ctx context.Context, name string) error {
	return w.until(ctx, fmt.Sprintf("AdmissionCheck %q is Active", name), func() (string, error) {
		var check kueue.AdmissionCheck
		err := w.Client.Get(ctx, types.NamespacedName{Name: name}, &check)
		var missing string
		switch {
		case apierrors.IsNotFound(err):
			missing = "it does not exist"
		case err != nil:
			return "", err
		case check.Spec.ControllerName != v1alpha1.ControllerName:
			return "", fmt.Errorf("AdmissionCheck %q is served by %s, not by the gate (%s)", name, check.Spec.ControllerName, v1alpha1.ControllerName)
		default:
			missing = WhyInactive(&check)
		}
		if w.DryRun && missing != "" {
			return "", fmt.Errorf("AdmissionCheck %q is not Active: %s", name, missing)
		}
		return missing, nil
	})
}

// WhyInactive says why a check of ours cannot be put into a queue; empty if it can.
func WhyInactive(check *kueue.AdmissionCheck) string {
	active := meta.FindStatusCondition(check.Status.Conditions, kueue.AdmissionCheckActive)
	switch {
	case check.DeletionTimestamp != nil:
		return "it is being deleted, and no gate will serve it; take it out of every ClusterQueue first"
	case active == nil:
		return "no gate has looked at it; is dispatch-admission running?"
	case active.Status != metav1.ConditionTrue:
		return active.Message
	case active.ObservedGeneration < check.Generation:
		return "no gate has looked at its present spec; is dispatch-admission running?"
	}
	return ""
}

// Attach puts an entry into a queue, unless it is there, and sees that the queue
// stays active. The check must be active already, see AwaitCheck.
func (w *Wirer) Attach(ctx context.Context, queue string, e Entry) Result {
	r := Result{Queue: queue, Check: e.Check, Change: Unchanged}
	cq, err := w.add(ctx, e, &r)
	if err == nil && !w.DryRun {
		err = w.verify(ctx, cq, e, &r)
	}
	if err != nil {
		r.Problem = problem(err)
	}
	return r
}

// add applies an entry and returns the queue after it.
func (w *Wirer) add(ctx context.Context, e Entry, r *Result) (cq *kueue.ClusterQueue, err error) {
	err = write(ctx, func() error {
		if cq, err = w.read(ctx, r.Queue); err != nil {
			return err
		}
		switch unknown := e.unknownFlavors(cq); {
		case cq.DeletionTimestamp != nil:
			return errors.New("the queue is being deleted")
		case len(unknown) > 0:
			return fmt.Errorf("the queue has no quota in the flavors %s; it has in %s", strings.Join(unknown, ", "), strings.Join(queueFlavors(cq), ", "))
		case e.is(find(cq, e.Check)):
			r.Note = "it was there already" + by(Managers(cq, e.Check))
			return nil
		}
		if err := w.apply(ctx, cq, e); err != nil {
			return err
		}
		r.Change = Attached
		return nil
	})
	if err == nil && r.Change == Attached && !w.DryRun {
		return w.read(ctx, r.Queue)
	}
	return cq, err
}

// apply is the server-side apply of an entry to the queue as read.
func (w *Wirer) apply(ctx context.Context, cq *kueue.ClusterQueue, e Entry) error {
	entry := map[string]any{"name": e.Check}
	if len(e.OnFlavors) > 0 {
		entry["onFlavors"] = anys(sorted(e.OnFlavors))
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"admissionChecksStrategy": map[string]any{"admissionChecks": []any{entry}}}}}
	u.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("ClusterQueue"))
	u.SetName(cq.Name)
	// Without these, an apply makes a queue where there is none, or writes to what
	// nobody has looked at.
	u.SetUID(cq.UID)
	u.SetResourceVersion(cq.ResourceVersion)
	to, err := w.writer()
	if err != nil {
		return err
	}
	return to.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(Manager(e.Check)))
}

func anys(names []string) []any {
	all := make([]any, len(names))
	for i, n := range names {
		all[i] = n
	}
	return all
}

// verify sees that the entry is as wanted and that the queue is active with it, or
// at least not inactive because of it. What was added and stops the queue is taken
// back; what was there before is left alone.
func (w *Wirer) verify(ctx context.Context, cq *kueue.ClusterQueue, e Entry, r *Result) error {
	have := find(cq, e.Check)
	switch {
	case have == nil:
		r.Problem = "the entry is gone again: somebody else writes the queue's spec.admissionChecksStrategy" + by(Managers(cq, e.Check))
		return nil
	case !e.is(have):
		r.Problem = fmt.Sprintf("the entry is limited to the flavors %s, put there%s; want the same, or take them out there",
			strings.Join(flavors(have), ", "), by(others(Managers(cq, e.Check))))
		return nil
	}
	why, blamed, err := w.stopped(ctx, cq, e.Check)
	switch {
	case err != nil && !blamed:
		return err
	case why == "":
		return nil
	case !blamed:
		r.Note = join(r.Note, "the queue is inactive, but not because of it: "+why)
		return nil
	case r.Change != Attached:
		r.Problem = "the queue is inactive because of it: " + why
		return nil
	}
	return w.withdraw(ctx, why, r)
}

// withdraw takes back what was added. It does so even if the time is up.
func (w *Wirer) withdraw(ctx context.Context, why string, r *Result) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	r.Change, r.Problem = Withdrawn, "taken back, because it made the queue inactive: "+why
	if _, err := w.remove(ctx, &Result{Queue: r.Queue, Check: r.Check}); err != nil {
		r.Change = Attached
		return fmt.Errorf("it made the queue inactive (%s) and could not be taken back: %w", why, err)
	}
	return nil
}

// stopped waits until Kueue has looked at the queue, and returns why the queue is
// inactive, empty if it is not, and whether a check is to blame; with an error that
// is how it was last seen.
func (w *Wirer) stopped(ctx context.Context, cq *kueue.ClusterQueue, check string) (why string, blamed bool, err error) {
	settled := time.Now().Add(w.Settle)
	err = w.until(ctx, fmt.Sprintf("Kueue has looked at ClusterQueue %q", cq.Name), func() (string, error) {
		now, err := w.read(ctx, cq.Name)
		if err != nil {
			return "", err
		}
		active := meta.FindStatusCondition(now.Status.Conditions, kueue.ClusterQueueActive)
		why, blamed = "", false
		switch {
		case active == nil || active.ObservedGeneration < cq.Generation:
			return "its condition Active is about an older spec", nil
		case active.Status == metav1.ConditionTrue:
			return "", nil
		}
		why, blamed = active.Message, blames(active, check)
		if blamed && time.Now().Before(settled) {
			return why, nil
		}
		return "", nil
	})
	return why, blamed, err
}

// blames tells whether a queue is inactive because of a check. Kueue lists the
// checks that it misses or finds inactive in the message; the reason is the first
// of several.
func blames(active *metav1.Condition, check string) bool {
	for _, part := range strings.Split(active.Message, "AdmissionCheck")[1:] {
		names := strings.FieldsFunc(part, func(c rune) bool { return strings.ContainsRune(" ,:()", c) })
		if slices.ContainsFunc(names, func(n string) bool { return strings.TrimSuffix(n, ".") == check }) {
			return true
		}
	}
	return false
}

// by names managers.
func by(managers []string) string {
	if len(managers) == 0 {
		return ""
	}
	return " by " + strings.Join(managers, ", ")
}
