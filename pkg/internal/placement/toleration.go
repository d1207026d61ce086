package placement

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// tolerations are those that the hook chose. Of a TrainJob the list in Kueue's
// runtime patch replaces the one of the template (kueue issue 15161, still so in
// v0.19.2), so the template's are repeated.
func (f Facts) tolerations(c admission.Changes, ps *kueue.PodSet) ([]corev1.Toleration, *Conflict) {
	var list []corev1.Toleration
	for _, t := range c.Tolerations {
		list = append(list, fromHook(t))
	}
	if !f.TrainJob || len(list) == 0 {
		return list, nil
	}
	return withTemplate(list, ps)
}

// withTemplate adds the tolerations of the pod template that are not in the list.
func withTemplate(list []corev1.Toleration, ps *kueue.PodSet) ([]corev1.Toleration, *Conflict) {
	template := fmt.Sprintf("of the pod template of pod set %q, which a TrainJob would lose,", ps.Name)
	for _, t := range ps.Template.Spec.Tolerations {
		if slices.ContainsFunc(list, func(o corev1.Toleration) bool { return same(t, o) }) {
			continue
		}
		if !allowed(t) {
			return nil, &Conflict{Field: tolerationsField, Problem: fmt.Sprintf("that %s is none that Kueue takes in an update: %s", template, describe(t))}
		}
		list = append(list, *t.DeepCopy())
	}
	if len(list) > admission.MaxTolerations {
		return nil, &Conflict{Field: tolerationsField, Problem: fmt.Sprintf(
			"with those %s there are %d; Kueue takes at most %d", template, len(list), admission.MaxTolerations)}
	}
	return list, nil
}

// allowed tells whether Kueue takes a toleration in an update. Templates may have
// others: some operators are newer, and nobody checks the templates of a runtime.
func allowed(t corev1.Toleration) bool {
	return admission.Changes{Tolerations: []admission.Toleration{toHook(t)}}.Validate() == nil
}

// same is Kueue's idea of equal tolerations: the seconds do not count, and the first
// of two wins.
func same(a, b corev1.Toleration) bool {
	return a.Key == b.Key && operator(a) == operator(b) && a.Value == b.Value && a.Effect == b.Effect
}

func operator(t corev1.Toleration) corev1.TolerationOperator {
	if t.Operator == "" {
		return corev1.TolerationOpEqual
	}
	return t.Operator
}

func fromHook(t admission.Toleration) corev1.Toleration {
	out := corev1.Toleration{
		Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect),
	}
	if t.TolerationSeconds != nil {
		out.TolerationSeconds = new(*t.TolerationSeconds)
	}
	return out
}

func toHook(t corev1.Toleration) admission.Toleration {
	return admission.Toleration{
		Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect), TolerationSeconds: t.TolerationSeconds,
	}
}

// describe writes a toleration as key=value:effect, without the value or the effect
// where any will do, and with * for any key.
func describe(t corev1.Toleration) string {
	text := cmp.Or(t.Key, "*")
	switch op := operator(t); op {
	case corev1.TolerationOpExists:
	case corev1.TolerationOpEqual:
		text += "=" + t.Value
	default:
		text += " " + string(op) + " " + t.Value
	}
	if t.Effect != "" {
		text += ":" + string(t.Effect)
	}
	return text
}
