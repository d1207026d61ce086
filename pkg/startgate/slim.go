package startgate

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// Of each object only what decisions use is kept. What the objects are made of,
// such as the usage of a queue, would be most of the memory.

func slimLocalQueue(lq *kueue.LocalQueue) localQueue {
	return localQueue{
		clusterQueue: string(lq.Spec.ClusterQueue),
		stop:         stopOf(lq.Spec.StopPolicy),
		deleting:     lq.DeletionTimestamp != nil,
		active:       conditionOf(lq.Status.Conditions, kueue.LocalQueueActive),
	}
}

func slimClusterQueue(cq *kueue.ClusterQueue) clusterQueue {
	slim := clusterQueue{
		stop:     stopOf(cq.Spec.StopPolicy),
		deleting: cq.DeletionTimestamp != nil,
		active:   conditionOf(cq.Status.Conditions, kueue.ClusterQueueActive),
	}
	if cq.Spec.AdmissionChecksStrategy != nil {
		for _, r := range cq.Spec.AdmissionChecksStrategy.AdmissionChecks {
			slim.rules = append(slim.rules, slimRule(r))
		}
	}
	for _, group := range cq.Spec.ResourceGroups {
		for _, flavor := range group.Flavors {
			slim.flavors = append(slim.flavors, string(flavor.Name))
		}
	}
	return slim
}

func slimRule(r kueue.AdmissionCheckStrategyRule) rule {
	slim := rule{check: string(r.Name)}
	for _, flavor := range r.OnFlavors {
		slim.onFlavors = append(slim.onFlavors, string(flavor))
	}
	return slim
}

func slimCheck(c *kueue.AdmissionCheck) check {
	return check{
		ours:     c.Spec.ControllerName == v1alpha1.ControllerName,
		deleting: c.DeletionTimestamp != nil,
		active:   conditionOf(c.Status.Conditions, kueue.AdmissionCheckActive),
	}
}

func stopOf(p *kueue.StopPolicy) kueue.StopPolicy {
	if p == nil {
		return kueue.None
	}
	return *p
}

func conditionOf(all []metav1.Condition, name string) condition {
	c := meta.FindStatusCondition(all, name)
	if c == nil {
		return condition{}
	}
	return condition{known: true, active: c.Status == metav1.ConditionTrue, reason: c.Reason, message: c.Message}
}
