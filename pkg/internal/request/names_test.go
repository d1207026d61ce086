package request

import (
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

func TestAttemptNames(t *testing.T) {
	label := &v1alpha1.NameSource{Label: "k"}
	annotation := &v1alpha1.NameSource{Annotation: "k"}
	inTemplate := func(labels, annotations strs) func(*Input) {
		return template(func(t *corev1.PodTemplateSpec) { t.Labels, t.Annotations = labels, annotations })
	}
	inTrainJob := func(labels, annotations strs) func(*Input) {
		return func(in *Input) {
			in.TrainJob = &trainer.TrainJob{}
			in.TrainJob.Labels, in.TrainJob.Annotations = labels, annotations
		}
	}
	inWorkload := func(labels, annotations strs) func(*Input) {
		return func(in *Input) { in.Workload.Labels, in.Workload.Annotations = labels, annotations }
	}
	of := func(v string) strs { return strs{"k": v, "": "no key"} }
	cases := map[string]struct {
		reason string
		source *v1alpha1.NameSource
		in     []func(*Input)
		want   string
	}{
		"Unset":              {reason: "not mapped", in: []func(*Input){inTemplate(of("t"), nil)}, want: "default"},
		"Label":              {reason: "of the template", source: label, in: []func(*Input){inTemplate(of("t"), of("a"))}, want: "t"},
		"Annotation":         {reason: "of the template", source: annotation, in: []func(*Input){inTemplate(of("t"), of("a"))}, want: "a"},
		"TemplateFirst":      {reason: "nearest to the pods", source: label, in: []func(*Input){inTemplate(of("t"), nil), inTrainJob(of("j"), nil), inWorkload(of("w"), nil)}, want: "t"},
		"TrainJobSecond":     {reason: "then what the owner made", source: label, in: []func(*Input){inTrainJob(of("j"), nil), inWorkload(of("w"), nil)}, want: "j"},
		"WorkloadLast":       {reason: "then Kueue's object, the only place for a pod", source: label, in: []func(*Input){inTrainJob(nil, nil), inWorkload(of("w"), nil)}, want: "w"},
		"TrainJobAnnotation": {reason: "there too", source: annotation, in: []func(*Input){inTrainJob(of("j"), of("ja"))}, want: "ja"},
		"WorkloadAnnotation": {reason: "there too", source: annotation, in: []func(*Input){inWorkload(of("w"), of("wa"))}, want: "wa"},
		"Missing":            {reason: "a job that does not have it gets the default", source: label, in: []func(*Input){inTemplate(strs{"other": "x"}, of("a"))}, want: "default"},
		"Empty":              {reason: "an empty name is none", source: label, in: []func(*Input){inTemplate(of(""), nil), inWorkload(of("w"), nil)}, want: "w"},
		"EmptyEverywhere":    {reason: "so the default remains", source: label, in: []func(*Input){inTemplate(of(""), nil)}, want: "default"},
		"NoKey":              {reason: "a source without a key finds nothing", source: &v1alpha1.NameSource{}, in: []func(*Input){inTemplate(of("t"), of("a"))}, want: "default"},
		"Manifest":           {reason: "no annotation with a manifest becomes a name", source: annotation, in: []func(*Input){inWorkload(nil, of(`{"apiVersion":"v1","kind":"Pod"}`))}, want: "default"},
		"OtherPodSet":        {reason: "only the main pod set counts", source: label, in: []func(*Input){podSets("a", "b"), func(in *Input) { in.Workload.Spec.PodSets[1].Template.Labels = of("t") }}, want: "default"},
		"NoPodSet":           {reason: "and there may be none", source: label, in: []func(*Input){podSets(), inWorkload(of("w"), nil)}, want: "w"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			set := map[string]func(*v1alpha1.AttemptNames){
				"tenant": func(n *v1alpha1.AttemptNames) { n.TenantID = tc.source },
				"dag":    func(n *v1alpha1.AttemptNames) { n.DagID = tc.source },
				"run":    func(n *v1alpha1.AttemptNames) { n.RunID = tc.source },
				"task":   func(n *v1alpha1.AttemptNames) { n.TaskID = tc.source },
			}
			for which, apply := range set {
				in := input(tc.in...)
				plain := Build(in)
				apply(&in.Names)
				got := Build(in)
				want := map[string]string{"tenant": plain.TenantID, "dag": plain.DagID, "run": plain.RunID, "task": plain.TaskID}
				if tc.want != "default" {
					want[which] = tc.want
				}
				have := map[string]string{"tenant": got.TenantID, "dag": got.DagID, "run": got.RunID, "task": got.TaskID}
				for field := range want {
					if have[field] != want[field] {
						t.Errorf("%s mapped: %s is %q, want %q: %s", which, field, have[field], want[field], tc.reason)
					}
				}
			}
		})
	}
}
