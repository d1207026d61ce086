package placement

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

func TestConflict(t *testing.T) {
	one, two := strs{"k": "1"}, strs{"k": "2"}
	own := func(all strs) func(*Facts) {
		return template(func(t *corev1.PodTemplateSpec) { t.Labels, t.Annotations, t.Spec.NodeSelector = all, all, all })
	}
	theirs := func(state kueue.CheckState) func(*Facts) {
		return check("provision", state, kueue.PodSetUpdate{Name: "other", Labels: one}, kueue.PodSetUpdate{Name: "main", NodeSelector: two, Labels: two, Annotations: two})
	}
	cases := map[string]struct {
		reason  string
		changes admission.Changes
		facts   Facts
		want    string
	}{
		"Flavor": {
			reason: "the nodes of the flavor have another label", changes: hook(strs{"zone": "a"}, nil, nil), facts: facts(),
			want: `nodeSelector "zone": the hook chose "a", the ResourceFlavor "spot" has "b"`,
		},
		"SecondFlavor": {
			reason:  "each resource may have its flavor, and Kueue merges them in no fixed order",
			changes: hook(strs{"zone": "b"}, nil, nil),
			facts:   facts(podSet("second", strs{}, "spot", "gpu"), func(f *Facts) { f.Flavors["gpu"] = flavor(strs{"zone": "c"}) }),
			want:    `nodeSelector "zone": the hook chose "b", the ResourceFlavor "gpu" has "c"`,
		},
		"FlavorOfTrainJob": {
			reason: "flavors are merged for a TrainJob too", changes: hook(strs{"zone": "a"}, nil, nil), facts: facts(trainJob),
			want: `nodeSelector "zone": the hook chose "a", the ResourceFlavor "spot" has "b"`,
		},
		"UnknownFlavor": {
			reason: "nobody knows what its nodes have", changes: hook(strs{"pool": "a"}, nil, nil), facts: facts(func(f *Facts) { delete(f.Flavors, "spot") }),
			want: `nodeSelector: the ResourceFlavor "spot" is assigned but not known, so nothing can be compared with its node labels`,
		},
		"NilFlavor": {
			reason: "the same", changes: hook(strs{"pool": "a"}, nil, nil), facts: facts(func(f *Facts) { f.Flavors["spot"] = nil }),
			want: `nodeSelector: the ResourceFlavor "spot" is assigned but not known, so nothing can be compared with its node labels`,
		},
		"CheckNodeSelector": {
			reason: "updates of two checks are merged", changes: hook(one, nil, nil), facts: facts(theirs(kueue.CheckStateReady)),
			want: `nodeSelector "k": the hook chose "1", the check "provision" has "2"`,
		},
		"CheckLabels": {
			reason: "the same", changes: hook(nil, one, nil), facts: facts(theirs(kueue.CheckStateReady)),
			want: `labels "k": the hook chose "1", the check "provision" has "2"`,
		},
		"CheckAnnotations": {
			reason: "the same, for a TrainJob too", changes: hook(nil, nil, one), facts: facts(trainJob, theirs(kueue.CheckStateReady)),
			want: `annotations "k": the hook chose "1", the check "provision" has "2"`,
		},
		"PendingCheck": {
			reason: "what is left in its entry may still be there when it becomes Ready", changes: hook(nil, one, nil), facts: facts(theirs(kueue.CheckStatePending)),
			want: `labels "k": the hook chose "1", the check "provision" has "2"`,
		},
		"CheckOfOurs": {
			reason: "another hook wants another service account", changes: admission.Changes{ServiceAccount: "x"},
			facts: facts(check("ours-2", kueue.CheckStateReady, kueue.PodSetUpdate{Name: "main", Annotations: strs{v1alpha1.ServiceAccountAnnotation: "y"}})),
			want:  `annotations "dispatch.phpboyscout.uk/service-account": the hook chose "x", the check "ours-2" has "y"`,
		},
		"TemplateNodeSelector": {
			reason: "Kueue merges into the template of a Job", changes: hook(one, nil, nil), facts: facts(own(two)),
			want: `nodeSelector "k": the hook chose "1", the pod template of pod set "main" has "2"`,
		},
		"TemplateLabels": {
			reason: "of a JobSet", changes: hook(nil, one, nil), facts: facts(owner("jobset.x-k8s.io/v1alpha2", "JobSet", "js"), own(two)),
			want: `labels "k": the hook chose "1", the pod template of pod set "main" has "2"`,
		},
		"TemplateAnnotations": {
			reason: "of a RayJob", changes: hook(nil, nil, one), facts: facts(owner("ray.io/v1", "RayJob", "rj"), own(two)),
			want: `annotations "k": the hook chose "1", the pod template of pod set "main" has "2"`,
		},
		"TemplateEmptyValue": {
			reason: "an empty value is a value", changes: hook(nil, one, nil), facts: facts(own(strs{"k": ""})),
			want: `labels "k": the hook chose "1", the pod template of pod set "main" has ""`,
		},
		"TemplateOfPod": {
			reason: "the node selector of a pod is known", changes: hook(one, nil, nil), facts: facts(owner("v1", "Pod", "p"), own(two)),
			want: `nodeSelector "k": the hook chose "1", the pod template of pod set "main" has "2"`,
		},
		"TemplateOfUnknownKind": {
			reason: "whatever integrates with Kueue merges, unless known otherwise", changes: hook(nil, one, nil),
			facts: facts(func(f *Facts) { f.Workload.OwnerReferences = nil }, own(two)),
			want:  `labels "k": the hook chose "1", the pod template of pod set "main" has "2"`,
		},
		"TemplateServiceAccount": {
			reason: "the user wrote the annotation by hand", changes: admission.Changes{PriorityClassName: "high"},
			facts: facts(own(strs{v1alpha1.PriorityClassAnnotation: "low"})),
			want:  `annotations "dispatch.phpboyscout.uk/priority-class": the hook chose "high", the pod template of pod set "main" has "low"`,
		},
		"SecondPodSet": {
			reason: "one pod set is enough to lose the job", changes: hook(nil, one, nil), facts: facts(podSet("second", two)),
			want: `labels "k": the hook chose "1", the pod template of pod set "second" has "2"`,
		},
		"TrainJobWithTopology": {
			reason: "looking for nodes, Kueue merges updates into the template of every kind", changes: hook(nil, one, nil), facts: facts(trainJob, own(two), delayed),
			want: `labels "k": the hook chose "1", the pod template of pod set "main" has "2"`,
		},
		"TrainJobPlaced": {
			reason: "it looks again when a node fails", changes: hook(nil, one, nil), facts: facts(trainJob, own(two), placed("h-1")),
			want: `labels "k": the hook chose "1", the pod template of pod set "main" has "2"`,
		},
		"TopologyLevel": {
			reason: "the value that Kueue adds later could not be added", changes: hook(strs{"rack": "r2"}, nil, nil), facts: facts(placed("h-1")),
			want: `nodeSelector "rack": the hook chose "r2", the topology assignment has "r1"`,
		},
		"TopologySecondDomain": {
			reason: "not even for some of the pods", changes: hook(strs{"host": "h-1.x"}, nil, nil), facts: facts(placed("h-1", "h-2")),
			want: `nodeSelector "host": the hook chose "h-1.x", the topology assignment has "h-2.x"`,
		},
		"TopologyFirstDomain": {
			reason: "in whatever order they come", changes: hook(strs{"host": "h-1.x"}, nil, nil), facts: facts(placed("h-2", "h-1")),
			want: `nodeSelector "host": the hook chose "h-1.x", the topology assignment has "h-2.x"`,
		},
		"TopologyOtherForms": {
			reason:  "a value may have neither prefix nor suffix, and Kueue's schema alone makes the lists agree",
			changes: hook(strs{"host": "a"}, nil, nil),
			facts: facts(func(f *Facts) {
				f.Workload.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{
					Levels: []string{"rack", "host"},
					Slices: []kueue.TopologyAssignmentSlice{
						{ValuesPerLevel: []kueue.TopologyAssignmentSliceLevelValues{{Universal: new("r1")}}},
						{ValuesPerLevel: []kueue.TopologyAssignmentSliceLevelValues{{}, {}}},
						{ValuesPerLevel: []kueue.TopologyAssignmentSliceLevelValues{{}, {Individual: &kueue.TopologyAssignmentSliceLevelIndividualValues{Roots: []string{"a", "b", "a"}}}}},
					},
				}
			}),
			want: `nodeSelector "host": the hook chose "a", the topology assignment has "b"`,
		},
		"TopologyOfNodes": {
			reason:  "each pod has its node, and Kueue, which did not ask for the label, tells nothing else of it",
			changes: hook(strs{"row": "a"}, nil, nil), facts: facts(onNode("n-1")),
			want: `nodeSelector "row": Kueue has placed the pods on nodes already, without regard to it; in a queue with a topology, only what the flavor or the pod template has can be chosen`,
		},
		"TopologyOfOtherNode": {
			reason: "the name of a node is known", changes: hook(strs{corev1.LabelHostname: "n-2"}, nil, nil), facts: facts(onNode("n-1")),
			want: `nodeSelector "kubernetes.io/hostname": the hook chose "n-2", the topology assignment has "n-1"`,
		},
		"PodServiceAccount": {
			reason: "the pod exists", changes: admission.Changes{ServiceAccount: "robot"}, facts: facts(owner("v1", "Pod", "p")),
			want: `serviceAccount: the hook chose "robot", the pod, which exists already and cannot change it, has "default"`,
		},
		"PodOldServiceAccount": {
			reason: "templates may have it in the old field alone", changes: admission.Changes{ServiceAccount: "robot"},
			facts: facts(owner("v1", "Pod", "p"), template(func(t *corev1.PodTemplateSpec) { t.Spec.DeprecatedServiceAccount = "old" })),
			want:  `serviceAccount: the hook chose "robot", the pod, which exists already and cannot change it, has "old"`,
		},
		"GroupPriorityClass": {
			reason: "so do those of a group, also of a StatefulSet", changes: admission.Changes{PriorityClassName: "high"}, facts: facts(owner("apps/v1", "StatefulSet", "s"), group),
			want: `priorityClassName: the hook chose "high", the pod, which exists already and cannot change it, has ""`,
		},
		"PodLabels": {
			reason: "Kueue merges into the pods, whose labels no Workload has", changes: hook(nil, one, nil), facts: facts(owner("v1", "Pod", "p"), pods(two)),
			want: `labels "k": the hook chose "1", the pod "p-1" has "2"`,
		},
		"PodAnnotations": {
			reason: "nor their annotations", changes: hook(nil, nil, one), facts: facts(owner("v1", "Pod", "p"), pods(two)),
			want: `annotations "k": the hook chose "1", the pod "p-1" has "2"`,
		},
		"JobName": {
			reason: "Kueue hides the label from the Workload and merges with it all the same", changes: hook(nil, strs{"job-name": "x"}, nil), facts: facts(),
			want: `labels "job-name": the hook chose "x", the Job "train" has "train"`,
		},
		"JobUID": {
			reason: "the same", changes: hook(nil, strs{"controller-uid": "x"}, nil), facts: facts(),
			want: `labels "controller-uid": the hook chose "x", the Job "train" has "uid-1"`,
		},
		"JobNameBelowJobSet": {
			reason: "the API server refuses the child Job", changes: hook(nil, strs{"job-name": "x"}, nil), facts: facts(trainJob),
			want: `labels "job-name": this label is for Kubernetes' Jobs alone to set`,
		},
		"JobOfAnotherGroup": {
			reason: "only the batch API's Job has these labels", changes: hook(nil, strs{"controller-uid": "uid-1"}, nil), facts: facts(owner("batch.volcano.sh/v1alpha1", "Job", "train")),
			want: `labels "controller-uid": this label is for Kubernetes' Jobs alone to set`,
		},
		"FirstOfMany": {
			reason: "always the same one of several: by field, then key, then holder", changes: hook(strs{"b": "1", "a": "1"}, one, one),
			facts: facts(own(strs{"a": "3", "b": "3", "k": "3"}), check("x", kueue.CheckStateReady, kueue.PodSetUpdate{Name: "main", NodeSelector: strs{"a": "2", "b": "2"}})),
			want:  `nodeSelector "a": the hook chose "1", the check "x" has "2"`,
		},
		"LongValues": {
			reason: "a message stays readable", changes: hook(nil, nil, strs{"k": strings.Repeat("€", 100)}), facts: facts(own(strs{"k": strings.Repeat("y", 200)})),
			want: fmt.Sprintf(`annotations "k": the hook chose "%s...", the pod template of pod set "main" has "%s..."`, strings.Repeat("€", 42), strings.Repeat("y", 128)),
		},
		"LongestValue": {
			reason: "up to a length nothing is cut", changes: hook(nil, nil, strs{"k": "x"}), facts: facts(own(strs{"k": strings.Repeat("y", 128)})),
			want: fmt.Sprintf(`annotations "k": the hook chose "x", the pod template of pod set "main" has %q`, strings.Repeat("y", 128)),
		},
		"Syntax": {
			reason: "Kueue's webhook refuses the whole status", changes: hook(strs{"k": "no blank"}, nil, nil), facts: facts(),
			want: `nodeSelector["k"]: the value "no blank" is not a label value: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends`,
		},
		"TooManyTolerations": {
			reason: "the limit of an update", changes: admission.Changes{Tolerations: make([]admission.Toleration, 9)}, facts: facts(),
			want: "tolerations: 9 given, at most 8 allowed",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			conflict := conflictOf(t, tc.changes, tc.facts)
			if conflict == nil {
				t.Fatalf("%s: no conflict", tc.reason)
			}
			if got := conflict.Error(); got != tc.want {
				t.Errorf("%s:\ngot  %s\nwant %s", tc.reason, got, tc.want)
			}
			if len(conflict.Error()) > 900 || !utf8.ValidString(conflict.Error()) {
				t.Errorf("%d bytes, valid UTF-8 %t", len(conflict.Error()), utf8.ValidString(conflict.Error()))
			}
		})
	}
}

// TestConflictFields: a caller can read what the text says.
func TestConflictFields(t *testing.T) {
	got := conflictOf(t, hook(strs{"zone": "a"}, nil, nil), facts())
	want := Conflict{PodSet: "main", Field: "nodeSelector", Key: "zone", Chosen: "a", Held: "b", Holder: `the ResourceFlavor "spot"`}
	if *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// TestKueueKeys: what Kueue puts into the pods by itself is merged like the rest, and
// a hook can choose none of it.
func TestKueueKeys(t *testing.T) {
	for _, key := range []string{
		kueue.WorkloadAnnotation, kueue.WorkloadSliceNameAnnotation, kueue.PodSetUnconstrainedTopologyAnnotation,
		kueue.MultiKueueWorkerWorkloadPodLabel,
		"kueue.x-k8s.io/podset", "kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/cluster-queue-name",
	} {
		for _, c := range []admission.Changes{hook(nil, strs{key: "x"}, nil), hook(nil, nil, strs{key: "x"})} {
			if conflict := conflictOf(t, c, facts()); conflict == nil || conflict.Problem != "the key is reserved" {
				t.Errorf("%s: %v, want a conflict over a reserved key", key, conflict)
			}
		}
	}
}

func TestAnnotationSize(t *testing.T) {
	annotated := func(size int) func(*Facts) {
		return template(func(t *corev1.PodTemplateSpec) { t.Annotations = strs{"own": strings.Repeat("x", size)} })
	}
	other := func(size int) func(*Facts) {
		return check("x", kueue.CheckStateReady, kueue.PodSetUpdate{Name: "main", Annotations: strs{"theirs": strings.Repeat("x", size)}})
	}
	const (
		room = 256<<10 - 1<<10 // Kueue adds some of its own
		want = "annotations: with those that the pods have anyway there are more than the 262144 bytes that Kubernetes allows"
	)
	cases := map[string]struct {
		reason  string
		changes admission.Changes
		facts   Facts
		over    bool
	}{
		"Fits":     {reason: "up to the limit", changes: hook(nil, nil, strs{"k": "v"}), facts: facts(annotated(room - len("own") - 2))},
		"Template": {reason: "one byte more", changes: hook(nil, nil, strs{"k": "v"}), facts: facts(annotated(room - len("own") - 1)), over: true},
		"Check":    {reason: "updates of others count", changes: hook(nil, nil, strs{"k": "v"}), facts: facts(other(room)), over: true},
		"Once":     {reason: "a key that is there already counts once", changes: hook(nil, nil, strs{"own": strings.Repeat("x", room-10)}), facts: facts(annotated(room - 10))},
		"TrainJob": {reason: "the template's stay there", changes: hook(nil, nil, strs{"k": "v"}), facts: facts(trainJob, annotated(room)), over: true},
		"None":     {reason: "what the hook did not choose is not its fault", changes: hook(nil, strs{"k": "v"}, nil), facts: facts(annotated(room))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			conflict := conflictOf(t, tc.changes, tc.facts)
			if over := conflict != nil; over != tc.over || over && conflict.Error() != want {
				t.Errorf("%s: conflict %v, want one %t", tc.reason, conflict, tc.over)
			}
		})
	}
}

func TestTolerationsOfTrainJob(t *testing.T) {
	core := func(keys ...string) []corev1.Toleration {
		var all []corev1.Toleration
		for _, key := range keys {
			all = append(all, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
		return all
	}
	chosen := func(keys ...string) admission.Changes {
		var c admission.Changes
		for _, key := range keys {
			c.Tolerations = append(c.Tolerations, admission.Toleration{Key: key, Operator: "Exists"})
		}
		return c
	}
	own := func(list []corev1.Toleration) func(*Facts) {
		return template(func(t *corev1.PodTemplateSpec) { t.Spec.Tolerations = list })
	}
	equal := []corev1.Toleration{{Key: "a", Value: "v", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))}}
	cases := map[string]struct {
		reason  string
		changes admission.Changes
		facts   Facts
		want    []corev1.Toleration
		wantErr string
	}{
		"Job":      {reason: "Kueue adds to the template of a Job", changes: chosen("a"), facts: facts(own(core("b"))), want: core("a")},
		"TrainJob": {reason: "the template of a TrainJob would lose its own", changes: chosen("a"), facts: facts(trainJob, own(core("b", "c"))), want: core("a", "b", "c")},
		"None":     {reason: "an update without tolerations replaces none", changes: hook(nil, strs{"k": "v"}, nil), facts: facts(trainJob, own(core("b")))},
		"Same":     {reason: "each is there once", changes: chosen("a", "b"), facts: facts(trainJob, own(core("b", "c"))), want: core("a", "b", "c")},
		"DefaultOperator": {
			reason:  "an empty operator is Equal, and seconds make no other toleration, as Kueue sees it",
			changes: admission.Changes{Tolerations: []admission.Toleration{{Key: "a", Operator: "Equal", Value: "v", Effect: "NoExecute"}}},
			facts:   facts(trainJob, own(equal)),
			want:    []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoExecute}},
		},
		"OtherValue": {
			reason:  "another value is another toleration",
			changes: admission.Changes{Tolerations: []admission.Toleration{{Key: "a", Value: "w", Effect: "NoExecute"}}},
			facts:   facts(trainJob, own(equal)),
			want:    append([]corev1.Toleration{{Key: "a", Value: "w", Effect: corev1.TaintEffectNoExecute}}, equal...),
		},
		"Eight": {reason: "the limit", changes: chosen("1", "2", "3", "4"), facts: facts(trainJob, own(core("5", "6", "7", "8"))), want: core("1", "2", "3", "4", "5", "6", "7", "8")},
		"Nine": {
			reason: "one over", changes: chosen("1", "2", "3", "4"), facts: facts(trainJob, own(core("5", "6", "7", "8", "9"))),
			wantErr: `tolerations: with those of the pod template of pod set "main", which a TrainJob would lose, there are 9; Kueue takes at most 8`,
		},
		"NineWithoutAny": {reason: "many in the template alone are none of the hook's business", changes: hook(nil, strs{"k": "v"}, nil), facts: facts(trainJob, own(core("1", "2", "3", "4", "5", "6", "7", "8", "9")))},
		"Numeric": {
			reason: "Kubernetes knows operators that Kueue does not", changes: chosen("a"),
			facts:   facts(trainJob, own([]corev1.Toleration{{Key: "sla", Operator: corev1.TolerationOpGt, Value: "95", Effect: corev1.TaintEffectNoSchedule}})),
			wantErr: `tolerations: that of the pod template of pod set "main", which a TrainJob would lose, is none that Kueue takes in an update: sla Gt 95:NoSchedule`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			updates, err := Updates(tc.changes, tc.facts)
			if text := fmt.Sprint(err); tc.wantErr != "" && text != tc.wantErr || tc.wantErr == "" && err != nil {
				t.Fatalf("%s: error %v, want %q", tc.reason, err, tc.wantErr)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tc.want, updates[0].Tolerations); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestMadeOfPods(t *testing.T) {
	cases := map[string]struct {
		reason string
		wl     func(*Facts)
		want   bool
	}{
		"Job":        {reason: "makes its pods when it starts", wl: owner("batch/v1", "Job", "j")},
		"Pod":        {reason: "one pod, for instance of a Deployment", wl: owner("v1", "Pod", "p"), want: true},
		"ForeignPod": {reason: "a namesake in another group", wl: owner("example.com/v1", "Pod", "p")},
		"Group": {reason: "many owners, none of them the controller", want: true, wl: func(f *Facts) {
			f.Workload.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet"}, {APIVersion: "v1", Kind: "Pod"}}
		}},
		"GroupBeforeItsPods": {reason: "Kueue marks the Workload", wl: group, want: true},
		"NoOwner":            {reason: "a Workload made by hand", wl: func(f *Facts) { f.Workload.OwnerReferences = nil }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := MadeOfPods(facts(tc.wl).Workload); got != tc.want {
				t.Errorf("%s: %t", tc.reason, got)
			}
		})
	}
}
