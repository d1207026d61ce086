package placement

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

type strs = map[string]string

// facts are those of a batch Job's Workload with the pod set "main" on the flavor
// "spot", whose nodes have the label zone=b.
func facts(changes ...func(*Facts)) Facts {
	f := Facts{
		Workload: &kueue.Workload{}, Check: "ours",
		Flavors: map[kueue.ResourceFlavorReference]*kueue.ResourceFlavor{"spot": flavor(strs{"zone": "b"})},
	}
	f.Workload.Name = "wl"
	owner("batch/v1", "Job", "train")(&f)
	podSet("main", strs{}, "spot")(&f)
	for _, change := range changes {
		change(&f)
	}
	return f
}

func flavor(nodeLabels strs) *kueue.ResourceFlavor {
	return &kueue.ResourceFlavor{Spec: kueue.ResourceFlavorSpec{NodeLabels: nodeLabels}}
}

func owner(apiVersion, kind, name string) func(*Facts) {
	return func(f *Facts) {
		f.Workload.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: "uid-1", Controller: new(true)}}
		f.TrainJob = kind == "TrainJob"
	}
}

// podSet adds a pod set whose template has the same map for node selector, labels
// and annotations.
func podSet(name kueue.PodSetReference, all strs, flavors ...kueue.ResourceFlavorReference) func(*Facts) {
	return func(f *Facts) {
		ps := kueue.PodSet{Name: name, Count: 1}
		ps.Template.Labels, ps.Template.Annotations, ps.Template.Spec.NodeSelector = all, all, all
		f.Workload.Spec.PodSets = append(f.Workload.Spec.PodSets, ps)
		a := kueue.PodSetAssignment{Name: name, Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{}}
		for i, ref := range flavors {
			a.Flavors[corev1.ResourceName("r"+string(rune('0'+i)))] = ref
		}
		if f.Workload.Status.Admission == nil {
			f.Workload.Status.Admission = &kueue.Admission{}
		}
		f.Workload.Status.Admission.PodSetAssignments = append(f.Workload.Status.Admission.PodSetAssignments, a)
	}
}

func template(change func(*corev1.PodTemplateSpec)) func(*Facts) {
	return func(f *Facts) { change(&f.Workload.Spec.PodSets[0].Template) }
}

func check(name kueue.AdmissionCheckReference, state kueue.CheckState, updates ...kueue.PodSetUpdate) func(*Facts) {
	return func(f *Facts) {
		f.Workload.Status.AdmissionChecks = append(f.Workload.Status.AdmissionChecks,
			kueue.AdmissionCheckState{Name: name, State: state, PodSetUpdates: updates})
	}
}

func trainJob(f *Facts) { owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "tj")(f) }

func group(f *Facts) { f.Workload.Annotations = strs{groupAnnotation: "true"} }

// delayed lets Kueue place the pods after the checks are Ready.
func delayed(f *Facts) {
	f.Workload.Status.Admission.PodSetAssignments[0].DelayedTopologyRequest = new(kueue.DelayedTopologyRequestStatePending)
}

// placed lets Kueue have placed the pods on hosts of one rack.
func placed(hosts ...string) func(*Facts) {
	return func(f *Facts) {
		ta := &kueue.TopologyAssignment{Levels: []string{"rack", "host"}}
		for _, host := range hosts {
			name, _ := strings.CutPrefix(host, "h-")
			ta.Slices = append(ta.Slices, kueue.TopologyAssignmentSlice{ValuesPerLevel: []kueue.TopologyAssignmentSliceLevelValues{
				{Universal: new("r1")},
				{Individual: &kueue.TopologyAssignmentSliceLevelIndividualValues{Prefix: new("h-"), Suffix: new(".x"), Roots: []string{name}}},
			}})
		}
		f.Workload.Status.Admission.PodSetAssignments[0].TopologyAssignment = ta
	}
}

// onNode lets Kueue have placed the pods on a node. The levels above it are left out
// then, because the name of a node says it all.
func onNode(name string) func(*Facts) {
	return func(f *Facts) {
		f.Workload.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{
			Levels: []string{corev1.LabelHostname},
			Slices: []kueue.TopologyAssignmentSlice{{ValuesPerLevel: []kueue.TopologyAssignmentSliceLevelValues{{Universal: &name}}}},
		}
	}
}

func pods(labels strs) func(*Facts) {
	return func(f *Facts) {
		f.Pods = []metav1.ObjectMeta{{Name: "p-0"}, {Name: "p-1", Labels: labels, Annotations: labels}}
	}
}

func hook(nodeSelector, labels, annotations strs) admission.Changes {
	return admission.Changes{NodeSelector: nodeSelector, Labels: labels, Annotations: annotations}
}

func TestUpdates(t *testing.T) {
	all := strs{"a": "1"}
	cases := map[string]struct {
		reason  string
		changes admission.Changes
		facts   Facts
		want    []kueue.PodSetUpdate
	}{
		"Zero": {reason: "nothing to change, nothing to update", facts: facts()},
		"ZeroWithUnknownFlavor": {
			reason: "nothing to compare either", facts: facts(func(f *Facts) { f.Flavors = nil }),
		},
		"Everything": {
			reason: "every field of the changes reaches the pods, the two without a field of Kueue's as annotations",
			changes: admission.Changes{
				NodeSelector: strs{"pool": "x"}, Labels: strs{"team": "t"}, Annotations: strs{"note": "n"},
				Tolerations:       []admission.Toleration{{Key: "gpu", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(5))}, {Key: "k", Value: "v"}},
				PriorityClassName: "high", ServiceAccount: "robot",
			},
			facts: facts(),
			want: []kueue.PodSetUpdate{{
				Name: "main", NodeSelector: strs{"pool": "x"}, Labels: strs{"team": "t"},
				Annotations: strs{"note": "n", v1alpha1.PriorityClassAnnotation: "high", v1alpha1.ServiceAccountAnnotation: "robot"},
				Tolerations: []corev1.Toleration{
					{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))},
					{Key: "k", Value: "v"},
				},
			}},
		},
		"EveryPodSet": {
			reason: "all pods of the job get the changes, in the order of the pod sets", changes: hook(nil, all, nil),
			facts: facts(podSet("second", strs{}), podSet("third", strs{})),
			want:  []kueue.PodSetUpdate{{Name: "main", Labels: all}, {Name: "second", Labels: all}, {Name: "third", Labels: all}},
		},
		"ServiceAccountAlone": {
			reason: "annotations come into being for it", changes: admission.Changes{ServiceAccount: "robot"}, facts: facts(),
			want: []kueue.PodSetUpdate{{Name: "main", Annotations: strs{v1alpha1.ServiceAccountAnnotation: "robot"}}},
		},
		"SameValues": {
			reason:  "a key that has the value already is no conflict, whoever has it",
			changes: hook(strs{"zone": "b", "host": "h-1.x", "a": "1"}, strs{"a": "1"}, strs{"a": "1"}),
			facts: facts(template(func(t *corev1.PodTemplateSpec) { t.Labels, t.Annotations, t.Spec.NodeSelector = all, all, all }),
				check("other", kueue.CheckStateReady, kueue.PodSetUpdate{Name: "main", Labels: all, Annotations: all, NodeSelector: all}),
				placed("h-1")),
			want: []kueue.PodSetUpdate{{Name: "main", NodeSelector: strs{"zone": "b", "host": "h-1.x", "a": "1"}, Labels: all, Annotations: all}},
		},
		"OwnEntry": {
			reason: "the earlier answer of the same check is replaced", changes: hook(nil, all, nil),
			facts: facts(check("ours", kueue.CheckStatePending, kueue.PodSetUpdate{Name: "main", Labels: strs{"a": "2"}})),
			want:  []kueue.PodSetUpdate{{Name: "main", Labels: all}},
		},
		"EvictingEntries": {
			reason: "a Workload with such an entry does not start with it", changes: hook(nil, all, nil),
			facts: facts(check("x", kueue.CheckStateRetry, kueue.PodSetUpdate{Name: "main", Labels: strs{"a": "2"}}),
				check("y", kueue.CheckStateRejected, kueue.PodSetUpdate{Name: "main", Labels: strs{"a": "2"}})),
			want: []kueue.PodSetUpdate{{Name: "main", Labels: all}},
		},
		"OtherPodSet": {
			reason: "flavors and updates of another pod set do not count", changes: hook(strs{"zone": "a"}, all, nil),
			facts: facts(func(f *Facts) { *f = Facts{Workload: &kueue.Workload{}, Check: "ours"} }, podSet("main", strs{}),
				check("x", kueue.CheckStateReady, kueue.PodSetUpdate{Name: "second", Labels: strs{"a": "2"}})),
			want: []kueue.PodSetUpdate{{Name: "main", NodeSelector: strs{"zone": "a"}, Labels: all}},
		},
		"NoAdmission": {
			reason: "nothing is assigned, nothing contradicts", changes: hook(strs{"zone": "a"}, nil, nil),
			facts: facts(func(f *Facts) { f.Workload.Status.Admission = nil }),
			want:  []kueue.PodSetUpdate{{Name: "main", NodeSelector: strs{"zone": "a"}}},
		},
		"NotAssigned": {
			reason: "nor is anything for this pod set", changes: hook(strs{"zone": "a"}, nil, nil),
			facts: facts(func(f *Facts) { f.Workload.Status.Admission.PodSetAssignments[0].Name = "gone" }),
			want:  []kueue.PodSetUpdate{{Name: "main", NodeSelector: strs{"zone": "a"}}},
		},
		"OtherTopologyLevel": {
			reason: "Kueue placed the pods by other keys", changes: hook(strs{"row": "a"}, nil, nil), facts: facts(placed("h-1")),
			want: []kueue.PodSetUpdate{{Name: "main", NodeSelector: strs{"row": "a"}}},
		},
		"TopologyOfTheNode": {
			reason: "the pods are there", changes: hook(strs{corev1.LabelHostname: "n-1"}, nil, nil), facts: facts(onNode("n-1")),
			want: []kueue.PodSetUpdate{{Name: "main", NodeSelector: strs{corev1.LabelHostname: "n-1"}}},
		},
		"TopologyOfNodesAndTemplate": {
			reason: "Kueue looked for nodes with it", changes: hook(strs{"row": "a"}, nil, nil),
			facts: facts(onNode("n-1"), template(func(t *corev1.PodTemplateSpec) { t.Spec.NodeSelector = strs{"row": "a"} })),
			want:  []kueue.PodSetUpdate{{Name: "main", NodeSelector: strs{"row": "a"}}},
		},
		"UnknownFlavorWithoutNodeSelector": {
			reason: "flavors give node labels and nothing else", changes: hook(nil, all, nil),
			facts: facts(func(f *Facts) { f.Flavors = nil }),
			want:  []kueue.PodSetUpdate{{Name: "main", Labels: all}},
		},
		"SameKeyInAnotherField": {
			reason: "a label is no annotation and no node selector", changes: hook(nil, all, nil),
			facts: facts(template(func(t *corev1.PodTemplateSpec) { t.Annotations, t.Spec.NodeSelector = strs{"a": "2"}, strs{"a": "2"} })),
			want:  []kueue.PodSetUpdate{{Name: "main", Labels: all}},
		},
		"TrainJobOverrides": {
			reason:  "Kueue puts updates of a TrainJob into a runtime patch, which wins over the template",
			changes: hook(strs{"a": "1"}, all, all),
			facts: facts(trainJob, template(func(t *corev1.PodTemplateSpec) {
				o := strs{"a": "2"}
				t.Labels, t.Annotations, t.Spec.NodeSelector = o, o, o
			})),
			want: []kueue.PodSetUpdate{{Name: "main", NodeSelector: all, Labels: all, Annotations: all}},
		},
		"PodsHaveWhatWasChosen": {
			reason: "what cannot be changed need not be", facts: facts(owner("v1", "Pod", "p"),
				template(func(t *corev1.PodTemplateSpec) { t.Spec.ServiceAccountName, t.Spec.PriorityClassName = "robot", "high" })),
			changes: admission.Changes{ServiceAccount: "robot", PriorityClassName: "high"},
			want: []kueue.PodSetUpdate{{Name: "main", Annotations: strs{
				v1alpha1.ServiceAccountAnnotation: "robot", v1alpha1.PriorityClassAnnotation: "high",
			}}},
		},
		"JobLabelsOfTheJob": {
			reason: "the very labels that the Job has", changes: hook(nil, strs{"job-name": "train", "controller-uid": "uid-1"}, nil), facts: facts(),
			want: []kueue.PodSetUpdate{{Name: "main", Labels: strs{"job-name": "train", "controller-uid": "uid-1"}}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Updates(tc.changes, tc.facts)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestUpdatesShareNothing: one pod set's update can be changed without the next one,
// the changes or the Workload noticing.
func TestUpdatesShareNothing(t *testing.T) {
	changes := admission.Changes{
		NodeSelector: strs{"pool": "x"}, Labels: strs{"team": "t"}, Annotations: strs{"note": "n"},
		Tolerations: []admission.Toleration{{Key: "k", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(5))}},
	}
	f := facts(trainJob, podSet("second", strs{}), template(func(t *corev1.PodTemplateSpec) {
		t.Spec.Tolerations = []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(7))}}
	}))
	first, err := Updates(changes, f)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Updates(changes, f)
	if err != nil {
		t.Fatal(err)
	}
	u := first[0]
	u.NodeSelector["pool"], u.Labels["team"], u.Annotations["note"] = "changed", "changed", "changed"
	*u.Tolerations[0].TolerationSeconds, *u.Tolerations[1].TolerationSeconds = 0, 0
	if first[1].NodeSelector["pool"] != "x" || first[1].Labels["team"] != "t" || first[1].Annotations["note"] != "n" || *first[1].Tolerations[0].TolerationSeconds != 5 {
		t.Errorf("the update of the next pod set changed: %v", first[1])
	}
	again, err := Updates(changes, f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(second, again); diff != "" {
		t.Errorf("the arguments changed (-want +got):\n%s", diff)
	}
}

func TestDropped(t *testing.T) {
	update := func(name string, keys strs, tolerations ...corev1.Toleration) kueue.PodSetUpdate {
		return kueue.PodSetUpdate{Name: kueue.PodSetReference(name), NodeSelector: keys, Labels: keys, Annotations: keys, Tolerations: tolerations}
	}
	cases := map[string]struct {
		reason        string
		before, after []kueue.PodSetUpdate
		want          []string
	}{
		"Nothing":   {reason: "there was nothing"},
		"Same":      {reason: "all is still there", before: []kueue.PodSetUpdate{update("a", strs{"k": "1"})}, after: []kueue.PodSetUpdate{update("a", strs{"k": "1"})}},
		"New":       {reason: "more is no loss", after: []kueue.PodSetUpdate{update("a", strs{"k": "1"})}},
		"NewValue":  {reason: "the new value takes the place of the old one", before: []kueue.PodSetUpdate{update("a", strs{"k": "1"})}, after: []kueue.PodSetUpdate{update("a", strs{"k": "2"})}},
		"Key":       {reason: "in each field by itself, sorted", before: []kueue.PodSetUpdate{update("a", strs{"k": "1", "example.com/j": "1"})}, after: []kueue.PodSetUpdate{{Name: "a", Labels: strs{"k": "1"}}}, want: []string{"a/annotations/example.com/j", "a/annotations/k", "a/labels/example.com/j", "a/nodeSelector/example.com/j", "a/nodeSelector/k"}},
		"PodSet":    {reason: "pod sets are told apart", before: []kueue.PodSetUpdate{{Name: "b", Labels: strs{"k": "1"}}, {Name: "a", Labels: strs{"k": "1"}}}, after: []kueue.PodSetUpdate{{Name: "b", Labels: strs{"k": "1"}}}, want: []string{"a/labels/k"}},
		"Unchanged": {reason: "an answer that changes nothing drops all", before: []kueue.PodSetUpdate{{Name: "a", Labels: strs{"k": "1"}}}, want: []string{"a/labels/k"}},
		"Tolerations": {
			reason: "each is what it tolerates; seconds and the default operator do not matter",
			before: []kueue.PodSetUpdate{update("a", nil,
				corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))},
				corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
				corev1.Toleration{Key: "k", Operator: corev1.TolerationOpEqual, Value: "v"},
				corev1.Toleration{Key: "k"},
				corev1.Toleration{Operator: corev1.TolerationOpExists})},
			after: []kueue.PodSetUpdate{update("a", nil,
				corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				corev1.Toleration{Key: "k", Value: "v"},
				corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists})},
			want: []string{"a/tolerations/*", "a/tolerations/gpu:NoSchedule", "a/tolerations/k="},
		},
		"Twice": {reason: "each is told once", before: []kueue.PodSetUpdate{update("a", nil, corev1.Toleration{Key: "k"}, corev1.Toleration{Key: "k"})}, want: []string{"a/tolerations/k="}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Dropped(tc.before, tc.after)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// conflictOf is the error of Updates, which must be a Conflict and come alone.
func conflictOf(t *testing.T, c admission.Changes, f Facts) *Conflict {
	t.Helper()
	updates, err := Updates(c, f)
	var conflict *Conflict
	if err != nil && !errors.As(err, &conflict) {
		t.Fatalf("%v is no Conflict", err)
	}
	if err != nil && updates != nil {
		t.Errorf("updates beside a conflict: %v", updates)
	}
	return conflict
}
