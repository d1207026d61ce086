package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/metrics"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// Reasons of events about our checks in ClusterQueues.
const (
	reasonLost      = "AdmissionCheckLost"
	reasonMissing   = "AdmissionCheckMissing"
	reasonDiffers   = "AdmissionCheckDiffers"
	reasonAttached  = "AdmissionCheckAttached"
	reasonWithdrawn = "AdmissionCheckWithdrawn"
	// reasonNoQueue is about a queue that does not exist, on the check.
	reasonNoQueue = "ClusterQueueMissing"
)

// lossSettles is how long an entry must be gone to be lost. Somebody who replaces a
// queue may write twice, and what says that an entry was taken out on purpose comes
// by another watch.
const lossSettles = time.Second

// Wires reconciles how our checks stand in ClusterQueues. A queue without them starts
// jobs ungated, and nothing else would say so.
type Wires struct {
	cached  client.Reader
	events  events.EventRecorder
	log     *slog.Logger
	metrics *metrics.Wiring
	wanted  wiring.Wanted
	memory  *wireMemory
	// mender is nil unless this controller wires queues by itself.
	mender *mender
	queue  atomic.Pointer[queue]
}

// Reconcile looks at one ClusterQueue.
func (w *Wires) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	list, err := ourChecks(ctx, w.cached)
	if err != nil {
		return reconcile.Result{}, err
	}
	checks := make(map[string]*kueue.AdmissionCheck, len(list))
	for i := range list {
		checks[list[i].Name] = &list[i]
	}
	var cq kueue.ClusterQueue
	err = w.cached.Get(ctx, req.NamespacedName, &cq)
	switch {
	case apierrors.IsNotFound(err):
		w.gone(ctx, req.Name, checks)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading the queue: %w", err)
	case cq.DeletionTimestamp != nil:
		return reconcile.Result{}, nil // it gives nobody quota any more
	}
	var result reconcile.Result
	var failed []error
	for _, name := range w.names(&cq) {
		after, err := w.look(ctx, &cq, name, checks[name])
		failed = append(failed, err)
		if after > 0 && (result.RequeueAfter == 0 || after < result.RequeueAfter) {
			result.RequeueAfter = after
		}
	}
	return result, errors.Join(failed...)
}

// names are the checks that a queue has, had, or is to have.
func (w *Wires) names(cq *kueue.ClusterQueue) []string {
	names := w.memory.checks(cq)
	for _, e := range wiring.Entries(cq) {
		names = append(names, string(e.Name))
	}
	for _, name := range w.wanted.Checks {
		if w.wanted.Of(cq, name) != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// look looks at one check in a queue; check is nil if there is none of ours of that
// name. It returns when to look again, 0 for when something changes.
func (w *Wires) look(ctx context.Context, cq *kueue.ClusterQueue, name string, check *kueue.AdmissionCheck) (time.Duration, error) {
	want := w.wanted.Of(cq, name)
	if w.mender != nil && w.mender.ahead(cq, name) {
		return 0, nil // what it looks like now will come
	}
	switch stands := wiring.Stands(cq, name, want, w.memory.had(cq, name)); {
	case want == nil && (stands == wiring.Unconcerned || unserved(check) || stands == wiring.Lost && wiring.KeptDetached(check, cq.Name)):
		w.memory.drop(cq, name)
		w.metrics.Delete(cq.Name, name)
	case stands == wiring.Wired:
		w.memory.wired(cq, name)
		w.metrics.Set(cq.Name, name, true)
	default:
		return w.unwired(ctx, cq, wire{check: name, stands: stands, want: want, kept: check != nil && wiring.KeptDetached(check, cq.Name)})
	}
	return 0, nil
}

// unserved tells whether a check does not concern us: it is none of ours, or about to
// go, and should be in no queue.
func unserved(check *kueue.AdmissionCheck) bool {
	return check == nil || check.DeletionTimestamp != nil
}

// wire is a check in a queue that is not as it should be.
type wire struct {
	check  string
	stands wiring.Standing
	want   *wiring.Entry
	// kept tells that people took it out to stay out.
	kept bool
	// by is who took it out.
	by string
}

// unwired deals with a check in a queue that is not as it should be.
func (w *Wires) unwired(ctx context.Context, cq *kueue.ClusterQueue, x wire) (time.Duration, error) {
	if x.stands == wiring.Lost {
		if wait := lossSettles - w.memory.lostFor(cq, x.check, time.Now()); wait > 0 {
			return wait, nil
		}
		x.by = w.memory.by(cq, x.check)
	}
	w.metrics.Set(cq.Name, x.check, false)
	r, err := w.mend(ctx, cq, &x)
	if err != nil {
		return 0, err
	}
	if x.kept || r.withdrawn {
		x.stands = wiring.Missing // nobody else has taken it out
	}
	if !r.found {
		w.tell(ctx, cq, x, r)
	}
	if r.done {
		w.metrics.Mended(cq.Name, x.check)
	}
	if r.done || r.found {
		w.memory.wired(cq, x.check)
	}
	return r.after, nil
}

// mend puts a check into a queue that is to have it, if that is wanted of us.
func (w *Wires) mend(ctx context.Context, cq *kueue.ClusterQueue, x *wire) (remedy, error) {
	if x.want == nil || w.mender == nil {
		return remedy{}, nil
	}
	r, err := w.mender.mend(ctx, cq, *x.want)
	if err == nil {
		x.kept = r.kept
	}
	return r, err
}

// tell says once what is wrong with a check in a queue, and what was done.
func (w *Wires) tell(ctx context.Context, cq *kueue.ClusterQueue, x wire, r remedy) {
	if x.stands == wiring.Lost && w.memory.count(cq, x.check) {
		w.metrics.Lost(cq.Name, x.check)
	}
	reason, text := finding(cq, x, r)
	if !w.memory.tell(cq, x.check, reason+r.why) {
		return
	}
	kind, level := corev1.EventTypeWarning, slog.LevelWarn
	if reason == reasonAttached || x.kept {
		kind, level = corev1.EventTypeNormal, slog.LevelInfo
	}
	w.log.Log(ctx, level, "the wiring of a queue", "clusterqueue", cq.Name, "admissioncheck", x.check, "reason", reason, "message", text)
	// With its version, or an event of the same reason would only count up.
	about := &corev1.ObjectReference{
		APIVersion: kueue.SchemeGroupVersion.String(), Kind: "ClusterQueue", Name: cq.Name, UID: cq.UID, ResourceVersion: textVersion(cq.ResourceVersion + text),
	}
	w.events.Eventf(about, nil, kind, reason, "Wire", "%s", text)
}

// gone forgets a queue that does not exist, and tells if it was to have checks: a name
// that is wrong gates nothing.
func (w *Wires) gone(ctx context.Context, name string, checks map[string]*kueue.AdmissionCheck) {
	w.metrics.Delete(name, "")
	if w.mender != nil {
		w.mender.forget(name)
	}
	if !slices.Contains(w.wanted.Queues, name) {
		return
	}
	text := fmt.Sprintf("There is no ClusterQueue %q, which is to have this check; is the name right?", name)
	for _, check := range w.wanted.Checks {
		w.metrics.Set(name, check, false)
		if w.memory.tellGone(name, check) {
			w.log.WarnContext(ctx, "a queue that is to have a check does not exist", "clusterqueue", name, "admissioncheck", check)
		}
		if c := checks[check]; c != nil && w.memory.tellGone(name, string(c.UID)) {
			w.events.Eventf(&corev1.ObjectReference{
				APIVersion: kueue.SchemeGroupVersion.String(), Kind: "AdmissionCheck", Name: c.Name, UID: c.UID, ResourceVersion: textVersion(text),
			}, nil, corev1.EventTypeWarning, reasonNoQueue, "Wire", "%s", text)
		}
	}
}
