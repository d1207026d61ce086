package wiring

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
)

// Detach takes the entries of checks out of a queue, whoever put them there. With
// hold the queue is stopped first (stopPolicy Hold) and left so, because jobs that
// wait for a check start at once when it goes. What is not there is no problem.
func (w *Wirer) Detach(ctx context.Context, queue string, checks []string, hold bool) []Result {
	results := make([]Result, len(checks))
	for i, check := range checks {
		results[i] = Result{Queue: queue, Check: check, Change: Unchanged}
	}
	named, err := w.named(ctx, results)
	stop := stopping{}
	if err == nil && hold && named {
		stop, err = w.hold(ctx, queue, checks[0])
	}
	for i := range results {
		r := &results[i]
		if r.Note != "" {
			continue // there is nothing to take out
		}
		r.Note, r.Held = stop.note, stop.held
		if err == nil {
			err = w.detach(ctx, r)
		}
		switch {
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
			r.Note = "the queue does not exist"
		case err != nil:
			r.Problem = problem(err)
		}
	}
	return results
}

// LetGo waits until no job is kept out of a queue until its next offer by checks that
// the queue does not name any more, one of those given among them. Kueue looks at such
// a job only then, but a gate that leads lets it go at once. If none does, note says what
// people can do.
func (w *Wirer) LetGo(ctx context.Context, checks []string) (note string, err error) {
	patient := time.Now().Add(w.Settle)
	err = w.until(ctx, "no job is kept out of a queue for a check that the queue does not name", func() (string, error) {
		kept, err := w.kept(ctx, checks)
		if err != nil || len(kept) == 0 {
			return "", err
		}
		if time.Now().After(patient) {
			note = fmt.Sprintf("no gate has let go of them within %s, so %d jobs stay without quota until their next offer; to let one go: "+
				`kubectl patch workload -n %s %s --subresource=status --type=merge -p '{"status":{"requeueState":{"requeueAt":null}}}'`,
				w.Settle, len(kept), kept[0].Namespace, kept[0].Name)
			return "", nil
		}
		return fmt.Sprintf("%d are", len(kept)), nil
	})
	return note, err
}

// kept are the jobs that LetGo waits for.
func (w *Wirer) kept(ctx context.Context, checks []string) (kept []types.NamespacedName, err error) {
	queues := map[kueue.ClusterQueueReference]*kueue.ClusterQueue{}
	err = w.eachWorkload(ctx, func(wl *kueue.Workload) error {
		book, ok := parkedFor(wl, checks, time.Now())
		if !ok {
			return nil
		}
		cq, known := queues[book.Queue]
		if !known {
			read, err := w.read(ctx, string(book.Queue))
			if client.IgnoreNotFound(err) != nil {
				return err
			}
			cq, queues[book.Queue] = read, read
		}
		if cq != nil && book.Detached(cq) {
			kept = append(kept, client.ObjectKeyFromObject(wl))
		}
		return nil
	})
	return kept, err
}

// parkedFor returns the holds of a Workload that is kept out of its queue for one of
// the checks.
func parkedFor(wl *kueue.Workload, checks []string, now time.Time) (hold.Book, bool) {
	book, st := hold.Read(wl), wl.Status.RequeueState
	if st == nil || st.RequeueAt == nil || !st.RequeueAt.After(now) || !st.RequeueAt.Time.Equal(book.Park) ||
		wl.DeletionTimestamp != nil || meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadFinished) {
		return book, false
	}
	return book, slices.ContainsFunc(checks, func(check string) bool {
		_, held := book.Checks[kueue.AdmissionCheckReference(check)]
		return held
	})
}

// named notes which checks a queue does not name, and tells whether it names any.
func (w *Wirer) named(ctx context.Context, results []Result) (some bool, err error) {
	cq, err := w.read(ctx, results[0].Queue)
	if err != nil {
		return false, err
	}
	for i := range results {
		if find(cq, results[i].Check) == nil {
			results[i].Note = "the queue does not name it"
			continue
		}
		some = true
	}
	return some, nil
}

func (w *Wirer) detach(ctx context.Context, r *Result) error {
	managers, err := w.remove(ctx, r)
	if err != nil || r.Change != Detached {
		return err
	}
	if theirs := others(managers); len(theirs) > 0 {
		r.Note = join(r.Note, fmt.Sprintf("it was put there%s; take it out there too, or it may come back", by(theirs)))
	}
	if w.DryRun {
		return nil
	}
	cq, err := w.read(ctx, r.Queue)
	if err == nil && find(cq, r.Check) != nil {
		r.Problem = "it is there again, put there" + by(Managers(cq, r.Check)) + "; take it out there"
	}
	return err
}

// remove takes an entry out of a queue and returns the managers that it had.
//
// An apply without the entry would leave what somebody else has put there as well.
// So the list is written as read, less the entry, which the API server refuses if
// the queue has changed; others keep the fields they manage.
func (w *Wirer) remove(ctx context.Context, r *Result) (managers []string, err error) {
	err = write(ctx, func() error {
		cq := &unstructured.Unstructured{}
		cq.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("ClusterQueue"))
		if err := w.Client.Get(ctx, types.NamespacedName{Name: r.Queue}, cq); err != nil {
			return err
		}
		rest, found, err := without(cq, r.Check)
		if err != nil || !found {
			return err
		}
		managers = Managers(&kueue.ClusterQueue{ObjectMeta: metaOf(cq)}, r.Check)
		if err := w.patch(ctx, cq, r.Check, map[string]any{"admissionChecksStrategy": rest}); err != nil {
			return err
		}
		r.Change = Detached
		return nil
	})
	return managers, err
}

// without is the strategy of a queue without the entries of a check: as read, with
// fields that these types do not know, and null if no entry is left, for a strategy
// has one at least.
func without(cq *unstructured.Unstructured, check string) (strategy any, found bool, err error) {
	list, _, err := unstructured.NestedSlice(cq.Object, "spec", "admissionChecksStrategy", "admissionChecks")
	if err != nil {
		return nil, false, fmt.Errorf("reading spec.admissionChecksStrategy: %w", err)
	}
	rest := []any{}
	for _, item := range list {
		if entry, ok := item.(map[string]any); ok && entry["name"] == check {
			found = true
			continue
		}
		rest = append(rest, item)
	}
	if len(rest) == 0 {
		return nil, found, nil
	}
	return map[string]any{"admissionChecks": rest}, found, nil
}

// patch writes fields of the spec of a queue as read.
func (w *Wirer) patch(ctx context.Context, cq client.Object, check string, spec map[string]any) error {
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": cq.GetUID(), "resourceVersion": cq.GetResourceVersion()}, "spec": spec,
	})
	if err != nil {
		return err
	}
	to := &unstructured.Unstructured{}
	to.SetGroupVersionKind(kueue.SchemeGroupVersion.WithKind("ClusterQueue"))
	to.SetName(cq.GetName())
	api, err := w.writer()
	if err != nil {
		return err
	}
	return api.Patch(ctx, to, client.RawPatch(types.MergePatchType, data), client.FieldOwner(Manager(check)))
}

// stopping is what came of stopping a queue.
type stopping struct {
	// held tells that it was done here.
	held bool
	note string
}

// hold stops a queue, unless it is stopped, and waits until no Workload in it sits
// on quota without having started: such a one would start.
func (w *Wirer) hold(ctx context.Context, queue, check string) (stopping, error) {
	s := stopping{}
	err := write(ctx, func() error {
		cq, err := w.read(ctx, queue)
		if err != nil {
			return err
		}
		if p := cq.Spec.StopPolicy; p != nil && *p != kueue.None {
			s.note = fmt.Sprintf("the queue had stopPolicy %s already", *p)
			return nil
		}
		err = w.patch(ctx, cq, check, map[string]any{"stopPolicy": kueue.Hold})
		s.held = err == nil
		return err
	})
	if err != nil {
		return s, fmt.Errorf("stopping the queue: %w", err)
	}
	if w.DryRun {
		return s, nil
	}
	noticed, err := w.drained(ctx, queue)
	if err == nil && !noticed {
		s.note = join(s.note, "Kueue has not looked at the queue since; no job waits on quota, so none will start ungated when it does")
	}
	return s, err
}

// drained waits until Kueue has noticed that a queue is stopped, for it may give
// quota until then, and no Workload of the queue sits on quota without having
// started.
//
// A Kueue that does not run notices nothing. If nobody sits on quota, nobody will: it
// reads that the queue is stopped before it gives any. But it starts the Workloads
// that have some, if all their checks are gone, before it looks whether the queue is
// stopped; so as long as there are any, the entry must stay.
func (w *Wirer) drained(ctx context.Context, queue string) (noticed bool, err error) {
	patience := 3 * w.Settle // a busy Kueue may take its time
	patient := time.Now().Add(patience)
	err = w.until(ctx, fmt.Sprintf("no Workload of ClusterQueue %q waits on quota", queue), func() (string, error) {
		cq, err := w.read(ctx, queue)
		if err != nil {
			return "", err
		}
		waiting, err := w.waiting(ctx)
		if err != nil {
			return "", err
		}
		active := meta.FindStatusCondition(cq.Status.Conditions, kueue.ClusterQueueActive)
		noticed = active != nil && active.ObservedGeneration >= cq.Generation
		switch n, late := len(waiting[queue]), time.Now().After(patient); {
		case !noticed && n > 0 && late:
			return "", fmt.Errorf("no Kueue runs, or it does not look at the queue: it has not noticed within %s that the queue is stopped, and %d of its jobs sit on quota; "+
				"they would start ungated as soon as Kueue runs again, so the entry stays; start Kueue and try again", patience, n)
		case n > 0:
			return fmt.Sprintf("%d do", n), nil
		case !noticed && !late:
			return "Kueue has not noticed that it is stopped", nil
		}
		return "", nil
	})
	return noticed, err
}

// OpenCommand is the command by which people open a queue that was stopped.
func OpenCommand(queue string) string {
	return fmt.Sprintf(`kubectl patch clusterqueue %s --type=merge -p '{"spec":{"stopPolicy":"None"}}'`, queue)
}

// metaOf is the part of a queue that says who manages what.
func metaOf(cq *unstructured.Unstructured) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: cq.GetName(), ManagedFields: cq.GetManagedFields()}
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
