package controller

import (
	"context"
	"fmt"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/fence"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/hold"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/wiring"
)

// snapshot reads what a decision needs, from the informers alone.
func (g *Gate) snapshot(ctx context.Context, key types.NamespacedName) (gate.Snapshot, error) {
	var wl kueue.Workload
	if err := g.cached.Get(ctx, key, &wl); err != nil {
		return gate.Snapshot{}, fmt.Errorf("reading the workload: %w", err)
	}
	snap := gate.Snapshot{Workload: &wl, Answers: map[kueue.AdmissionCheckReference]gate.Answer{}}
	var err error
	if snap.Checks, err = g.readChecks(ctx); err != nil {
		return gate.Snapshot{}, err
	}
	if owner := gate.TrainJobOwner(&wl); owner != nil {
		if snap.TrainJob, err = trainJob(ctx, g.cached, wl.Namespace, owner.Name); err != nil {
			return gate.Snapshot{}, err
		}
	}
	switch gate.PhaseOf(&wl) {
	case gate.PhaseReserved:
		err = g.readAttempt(ctx, &snap)
	case gate.PhaseEvicted:
		snap.Detached, err = g.detached(ctx, &wl)
	case gate.PhaseQueued, gate.PhaseAdmitted, gate.PhaseEnded:
	}
	return snap, err
}

// detached tells whether the queue that a held Workload gave its quota back to has
// lost all checks that hold it. Kueue itself looks at such a Workload only when the
// time of its next offer has come. A loss that is about to be mended is none.
func (g *Gate) detached(ctx context.Context, wl *kueue.Workload) (bool, error) {
	book := hold.Read(wl)
	if book.Queue == "" || len(book.Checks) == 0 {
		return false, nil
	}
	var cq kueue.ClusterQueue
	if err := g.cached.Get(ctx, types.NamespacedName{Name: string(book.Queue)}, &cq); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if !book.Detached(&cq) || !g.losses.settled(cq.Name, time.Now()) {
		return false, nil
	}
	for name := range book.Checks {
		if mends, err := g.mends(ctx, &cq, string(name)); mends || err != nil {
			return false, err
		}
	}
	return true, nil
}

// mends tells whether this controller puts a check back into a queue.
func (g *Gate) mends(ctx context.Context, cq *kueue.ClusterQueue, name string) (bool, error) {
	if !g.mend || g.wanted.Of(cq, name) == nil {
		return false, nil
	}
	var check kueue.AdmissionCheck
	if err := g.cached.Get(ctx, types.NamespacedName{Name: name}, &check); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return !wiring.KeptDetached(&check, cq.Name), nil
}

// readChecks reads our checks and what their gates say.
func (g *Gate) readChecks(ctx context.Context) (map[kueue.AdmissionCheckReference]gate.Check, error) {
	list, err := ourChecks(ctx, g.cached)
	if err != nil {
		return nil, err
	}
	checks := make(map[kueue.AdmissionCheckReference]gate.Check, len(list))
	for i := range list {
		policy, broken, err := g.policies.ofCheck(ctx, &list[i])
		if err != nil {
			return nil, err
		}
		checks[kueue.AdmissionCheckReference(list[i].Name)] = gate.Check{Broken: broken, Policy: policy}
	}
	return checks, nil
}

// readAttempt reads what is needed of a Workload with quota, as far as its checks
// need it.
func (g *Gate) readAttempt(ctx context.Context, snap *gate.Snapshot) (err error) {
	hooked, waits := false, false
	for _, c := range snap.Workload.Status.AdmissionChecks {
		if p := snap.Checks[c.Name].Policy; p != nil {
			hooked, waits = hooked || p.Hook != nil, waits || p.WaitForPods
		}
	}
	if hooked {
		if err := g.readQuota(ctx, snap); err != nil {
			return err
		}
	}
	if waits && snap.TrainJob != nil && fence.IsDispatch(snap.TrainJob) {
		snap.Remains, err = g.pods.left(ctx, snap.TrainJob)
	}
	return err
}

// readQuota reads the flavors that were assigned to a Workload, and whether others
// wait for the quota that it sits on.
func (g *Gate) readQuota(ctx context.Context, snap *gate.Snapshot) error {
	admission := snap.Workload.Status.Admission
	if admission == nil {
		return nil
	}
	snap.Flavors = map[kueue.ResourceFlavorReference]*kueue.ResourceFlavor{}
	for _, assignment := range admission.PodSetAssignments {
		for _, name := range assignment.Flavors {
			if _, ok := snap.Flavors[name]; ok {
				continue
			}
			var flavor kueue.ResourceFlavor
			switch err := g.cached.Get(ctx, types.NamespacedName{Name: string(name)}, &flavor); {
			case err == nil:
				snap.Flavors[name] = &flavor
			case !apierrors.IsNotFound(err):
				return fmt.Errorf("reading the flavor: %w", err)
			}
		}
	}
	var queues kueue.ClusterQueueList
	if err := g.cached.List(ctx, &queues); err != nil {
		return fmt.Errorf("listing the queues: %w", err)
	}
	snap.Crowded = crowded(queues.Items, string(admission.ClusterQueue))
	return nil
}

// crowded tells whether Workloads wait in a ClusterQueue, or in one that could
// borrow its quota. Cohorts may be nested in a way that is not looked at here, so
// every queue with a cohort counts as a neighbour of every other: quota that is
// given back in vain costs a held job nothing.
func crowded(queues []kueue.ClusterQueue, name string) bool {
	shared := false
	for i := range queues {
		if queues[i].Name == name {
			shared = queues[i].Spec.CohortName != ""
		}
	}
	for i := range queues {
		q := &queues[i]
		if q.Status.PendingWorkloads > 0 && (q.Name == name || shared && q.Spec.CohortName != "") {
			return true
		}
	}
	return false
}

// trainJob reads a TrainJob; nil if there is none.
func trainJob(ctx context.Context, r client.Reader, namespace, name string) (*trainer.TrainJob, error) {
	var job trainer.TrainJob
	err := r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &job)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is one of the facts that a decision rests on
	}
	if err != nil {
		return nil, fmt.Errorf("reading the trainjob: %w", err)
	}
	return &job, nil
}
