package wiring

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Status is how one of our checks stands in one queue.
type Status struct {
	Queue string `json:"queue"`
	// Check is empty for a queue that names none of ours.
	Check string `json:"check,omitempty"`
	Wired bool   `json:"wired"`
	// OnFlavors limits the entry; By are the managers that put it there.
	OnFlavors []string `json:"onFlavors,omitempty"`
	By        []string `json:"by,omitempty"`
	// Active tells whether the queue admits jobs, WhyNot why it does not, or why
	// those that it has will wait.
	Active bool   `json:"active"`
	WhyNot string `json:"whyNot,omitempty"`
	// Waiting counts the Workloads that have quota and wait for the check; Pending
	// those of the queue that wait for quota.
	Waiting int `json:"waiting"`
	Pending int `json:"pending"`
}

// Queues are the queues that a selector picks, by name.
func (w *Wirer) Queues(ctx context.Context, selector labels.Selector) ([]kueue.ClusterQueue, error) {
	var list kueue.ClusterQueueList
	if err := w.Client.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b kueue.ClusterQueue) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// Look says how checks stand in queues: a line for each check that a queue names,
// or one for the queue if it names none.
func (w *Wirer) Look(ctx context.Context, queues []kueue.ClusterQueue, checks []kueue.AdmissionCheck) ([]Status, error) {
	waiting, err := w.waiting(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Status, 0, len(queues))
	for i := range queues {
		cq := &queues[i]
		found := false
		for j := range checks {
			if find(cq, checks[j].Name) != nil {
				found = true
				all = append(all, look(cq, &checks[j], waiting[cq.Name]))
			}
		}
		if !found {
			s := LookAt(cq)
			if s.WhyNot == "" {
				s.WhyNot = "no check of ours: its jobs start ungated"
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// LookAt says how a queue stands, whatever its checks.
func LookAt(cq *kueue.ClusterQueue) Status {
	s := Status{Queue: cq.Name, Pending: int(cq.Status.PendingWorkloads)}
	switch active := meta.FindStatusCondition(cq.Status.Conditions, kueue.ClusterQueueActive); {
	case cq.DeletionTimestamp != nil:
		s.WhyNot = "it is being deleted"
	case active == nil:
		s.WhyNot = "Kueue has not looked at it; is Kueue running?"
	case active.Status != metav1.ConditionTrue:
		s.WhyNot = active.Message
	default:
		s.Active = true
	}
	return s
}

// look says how a check stands in a queue that names it.
func look(cq *kueue.ClusterQueue, check *kueue.AdmissionCheck, waiting []kueue.Workload) Status {
	s := LookAt(cq)
	s.Check, s.Wired = check.Name, true
	s.OnFlavors, s.By = flavors(find(cq, check.Name)), Managers(cq, check.Name)
	// Kueue does not notice that a check is about to go, so the queue may be active.
	if why := WhyInactive(check); why != "" {
		s.WhyNot = join(s.WhyNot, "the check: "+why)
	}
	for i := range waiting {
		if slices.ContainsFunc(waiting[i].Status.AdmissionChecks, func(c kueue.AdmissionCheckState) bool {
			return string(c.Name) == check.Name && c.State == kueue.CheckStatePending
		}) {
			s.Waiting++
		}
	}
	return s
}

// pageSize bounds an answer of the API server.
const pageSize = 500

// waiting are the Workloads that have quota and have not started, by queue.
func (w *Wirer) waiting(ctx context.Context) (map[string][]kueue.Workload, error) {
	waiting := map[string][]kueue.Workload{}
	return waiting, w.eachWorkload(ctx, func(wl *kueue.Workload) error {
		if waits(wl) {
			queue := string(wl.Status.Admission.ClusterQueue)
			waiting[queue] = append(waiting[queue], *wl)
		}
		return nil
	})
}

// eachWorkload looks at every Workload until there is an error.
func (w *Wirer) eachWorkload(ctx context.Context, look func(*kueue.Workload) error) error {
	for next := ""; ; {
		var page kueue.WorkloadList
		if err := w.Client.List(ctx, &page, client.Limit(pageSize), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			if err := look(&page.Items[i]); err != nil {
				return err
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// waits tells whether a Workload has quota and has not started.
func waits(wl *kueue.Workload) bool {
	is := func(condition string) bool { return meta.IsStatusConditionTrue(wl.Status.Conditions, condition) }
	return wl.Status.Admission != nil && is(kueue.WorkloadQuotaReserved) && !is(kueue.WorkloadAdmitted) && !is(kueue.WorkloadFinished)
}
