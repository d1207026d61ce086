package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// TestPlacement has the stories of what a hook chooses and others have their say
// in, side by side. Kueue finishes a Workload for good when two of them differ.
func TestPlacement(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	sideBySide(t, map[string]func(*testing.T){
		"Flavor":         conflictWithFlavor,
		"ForeignCheck":   conflictWithForeignCheck,
		"Template":       conflictWithTemplate,
		"Tolerations":    tooManyTolerations,
		"Override":       trainJobIsOverridden,
		"TwoGates":       conflictOfTwoGates,
		"PodExists":      conflictWithPod,
		"NothingIsLeft":  nothingIsLeftOfTheFirstAnswer,
		"KeysDropped":    keysDropped,
		"AccountDropped": accountDropped,
		"TopologyOfPools": func(t *testing.T) {
			topologyStory(t, []kueue.TopologyLevel{{NodeLabel: cluster.PoolLabel}}, "main", "reserved")
		},
		"TopologyOfNodes": func(t *testing.T) {
			topologyStory(t, []kueue.TopologyLevel{{NodeLabel: cluster.PoolLabel}, {NodeLabel: "kubernetes.io/hostname"}}, "node-0", "node-1", "node-2")
		},
	})
	for _, line := range gate.find("level=ERROR") {
		t.Errorf("the gate logged: %s", line)
	}
}

// pool chooses the nodes of a pool.
func pool(name string) admission.Decision {
	return admission.AdmitWith(admission.Changes{NodeSelector: map[string]string{cluster.PoolLabel: name}})
}

// label chooses a label.
func label(value string) admission.Decision {
	return admission.AdmitWith(admission.Changes{Labels: map[string]string{"example.com/team": value}})
}

// newFlavor makes a ResourceFlavor with the name of the queue, whose nodes are those
// of the pool main, and gives all quota of the queue to it.
func (q *queue) newFlavor(changes ...func(*kueue.ResourceFlavorSpec)) {
	q.t.Helper()
	flavor := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: q.name}, Spec: kueue.ResourceFlavorSpec{
		NodeLabels: map[string]string{cluster.PoolLabel: "main"}}}
	for _, change := range changes {
		change(&flavor.Spec)
	}
	create(q.t, flavor)
	q.edit(func(cq *kueue.ClusterQueueSpec) {
		cq.ResourceGroups[0].Flavors[0].Name = kueue.ResourceFlavorReference(q.name)
	})
}

// conflictWithFlavor: the hook wants nodes that the assigned flavor has not. The job
// waits, and its owner is told key and values; it runs once the hook has thought
// better of it.
func conflictWithFlavor(t *testing.T) {
	h := newHook(t, pool("reserved"))
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	q.newFlavor()
	job, plain := q.submit(dispatchName()), q.batchJob("plain")
	for _, o := range []client.Object{job, plain} {
		q.awaitWrong(gate, o, fmt.Sprintf(`nodeSelector %q: the hook chose "reserved", the ResourceFlavor %q has "main"`, cluster.PoolLabel, q.name))
	}
	wantCount(t, job, "")
	h.says(pool("main"))
	q.awaitStart(job, "1")
	for _, o := range []client.Object{job, plain} {
		for _, p := range q.awaitPods(o, 2) {
			if p.Spec.NodeSelector[cluster.PoolLabel] != "main" {
				t.Errorf("a pod of %s has the node selector %v", o.GetName(), p.Spec.NodeSelector)
			}
		}
	}
}

// conflictWithForeignCheck: the check of another controller has given a label.
func conflictWithForeignCheck(t *testing.T) {
	h := newHook(t, admission.Hold("until the other check has answered"))
	gate := newGate(t, h, quick)
	theirs := unique("check") + "-foreign"
	newForeignCheck(t, theirs)
	newCheckWith(t, gate.Name, parametersOf(gate.Name))
	q := newQueueOf(t, gate.Name, theirs)
	q.setQuota("8")
	job, plain := q.submit(dispatchName()), q.batchJob("plain")
	for _, o := range []client.Object{job, plain} {
		h.awaitAsked(o, 1)
		answerWith(t, o, theirs, map[string]string{"example.com/team": "theirs"})
	}
	h.says(label("ours"))
	for _, o := range []client.Object{job, plain} {
		q.awaitWrong(gate, o, fmt.Sprintf(`labels "example.com/team": the hook chose "ours", the check %q has "theirs"`, theirs))
	}
	h.says(label("theirs"))
	for _, o := range []client.Object{job, plain} {
		for _, p := range q.awaitPods(o, 2) {
			if p.Labels["example.com/team"] != "theirs" {
				t.Errorf("a pod of %s has the labels %v", o.GetName(), p.Labels)
			}
		}
	}
}

// answerWith makes a foreign check Ready, with labels for the pods.
func answerWith(t *testing.T, job client.Object, check string, labels map[string]string) {
	t.Helper()
	eventually(t, patience, "the foreign check is answered", func() error {
		wl, err := workloadOf(t.Context(), job.GetNamespace(), job.GetUID())
		if err != nil {
			return err
		}
		for i := range wl.Status.AdmissionChecks {
			c := &wl.Status.AdmissionChecks[i]
			if string(c.Name) != check {
				continue
			}
			c.State, c.Message, c.LastTransitionTime, c.PodSetUpdates = kueue.CheckStateReady, "by the test", metav1.Now(), nil
			for _, ps := range wl.Spec.PodSets {
				c.PodSetUpdates = append(c.PodSetUpdates, kueue.PodSetUpdate{Name: ps.Name, Labels: labels})
			}
			return shared.admin.Status().Update(t.Context(), wl)
		}
		return errNotYet
	})
}

// conflictWithTemplate: what the pod template of a Job has, nobody can change.
func conflictWithTemplate(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("20")
	for name, tc := range map[string]struct {
		wrong, right admission.Changes
		change       func(*corev1.PodTemplateSpec)
		words        string
	}{
		"label": {
			admission.Changes{Labels: map[string]string{"example.com/team": "ours"}}, admission.Changes{Labels: map[string]string{"example.com/team": "theirs"}},
			func(p *corev1.PodTemplateSpec) { p.Labels = map[string]string{"example.com/team": "theirs"} },
			`labels "example.com/team": the hook chose "ours", the pod template of pod set "main" has "theirs"`},
		"annotation": {
			admission.Changes{Annotations: map[string]string{"example.com/note": "ours"}}, admission.Changes{Annotations: map[string]string{"example.com/other": "ours"}},
			func(p *corev1.PodTemplateSpec) { p.Annotations = map[string]string{"example.com/note": "theirs"} },
			`annotations "example.com/note": the hook chose "ours", the pod template of pod set "main" has "theirs"`},
		"selector": {
			admission.Changes{NodeSelector: map[string]string{cluster.PoolLabel: "reserved"}}, admission.Changes{},
			func(p *corev1.PodTemplateSpec) { p.Spec.NodeSelector = map[string]string{cluster.PoolLabel: "main"} },
			fmt.Sprintf(`nodeSelector %q: the hook chose "reserved", the pod template of pod set "main" has "main"`, cluster.PoolLabel)},
	} {
		h.says(admission.AdmitWith(tc.wrong))
		job := q.batchJob(name, func(job *batchv1.Job) { tc.change(&job.Spec.Template) })
		q.awaitWrong(gate, job, tc.words)
		h.says(admission.AdmitWith(tc.right))
		q.awaitPods(job, 2)
	}
}

// tooManyTolerations: Kueue takes eight. A TrainJob would lose those of its
// template, so they count, and the pods have both.
func tooManyTolerations(t *testing.T) {
	chosen := func(n int) admission.Decision {
		var c admission.Changes
		for i := range n {
			c.Tolerations = append(c.Tolerations, admission.Toleration{Key: fmt.Sprintf("example.com/t%d", i), Operator: "Exists"})
		}
		return admission.AdmitWith(c)
	}
	h := newHook(t, chosen(9))
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	q.newRuntime(fmt.Sprintf(wideRuntime, q.name, "system-cluster-critical"))
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: chosenAccount, Namespace: q.name}})
	plain := q.batchJob("plain")
	q.awaitWrong(gate, plain, "changes.tolerations: 9 given, at most 8 allowed")
	h.says(chosen(8))
	q.awaitPods(plain, 2)
	q.edit(func(cq *kueue.ClusterQueueSpec) {
		cq.ResourceGroups[0].CoveredResources = append(cq.ResourceGroups[0].CoveredResources, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, gpu)
		for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage, gpu} {
			cq.ResourceGroups[0].Flavors[0].Resources = append(cq.ResourceGroups[0].Flavors[0].Resources,
				kueue.ResourceQuota{Name: name, NominalQuota: resource.MustParse("100Gi")})
		}
	})
	job := q.submit(dispatchName(), func(job *trainer.TrainJob) { job.Spec.RuntimeRef.Name = q.name })
	q.awaitWrong(gate, job, `with those of the pod template of pod set "node"`, "there are 9; Kueue takes at most 8")
	h.says(chosen(7))
	for _, p := range q.awaitPods(job, 3) {
		// JobSet repeats those with seconds at each start.
		keys := map[string]bool{}
		for _, o := range p.Spec.Tolerations {
			keys[o.Key] = strings.HasPrefix(o.Key, "example.com/")
		}
		maps.DeleteFunc(keys, func(_ string, ours bool) bool { return !ours })
		if want := map[bool]int{true: 8, false: 7}[strings.Contains(p.Name, "-node-")]; len(keys) != want {
			t.Errorf("pod %s has %d tolerations, want %d: %+v", p.Name, len(keys), want, p.Spec.Tolerations)
		}
	}
}

// trainJobIsOverridden: a TrainJob's own values are no conflict, the hook's win.
func trainJobIsOverridden(t *testing.T) {
	h := newHook(t, admission.AdmitWith(admission.Changes{
		Labels: map[string]string{"example.com/team": "ours"}, Annotations: map[string]string{"example.com/note": "ours"}}))
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	job := q.submit(dispatchName(), patchPods(trainer.PodTemplatePatch{Metadata: &metav1.ObjectMeta{
		Labels: map[string]string{"example.com/team": "theirs", "example.com/kept": "yes"}, Annotations: map[string]string{"example.com/note": "theirs"}}}))
	q.awaitStart(job, "1")
	for _, p := range q.awaitPods(job, 2) {
		if p.Labels["example.com/team"] != "ours" || p.Labels["example.com/kept"] != "yes" || p.Annotations["example.com/note"] != "ours" {
			t.Errorf("pod %s has the labels %v and the annotations %v", p.Name, p.Labels, p.Annotations)
		}
	}
}

// conflictOfTwoGates: the hooks of two gates differ. The first to answer has its
// way; the other is told, and the job runs once they agree.
func conflictOfTwoGates(t *testing.T) {
	first, second := newHook(t, label("first")), newHook(t, admission.Hold("after the first"))
	one, two := newGate(t, first, quick), newGate(t, second, quick)
	q := newHookedQueue(t, one, two)
	q.setQuota("8")
	job, plain := q.submit(dispatchName()), q.batchJob("plain")
	for _, o := range []client.Object{job, plain} {
		awaitCheck(t, o, one.Name, kueue.CheckStateReady)
		second.awaitAsked(o, 1)
	}
	second.says(label("second"))
	for _, o := range []client.Object{job, plain} {
		q.awaitWrong(two, o, fmt.Sprintf(`labels "example.com/team": the hook chose "second", the check %q has "first"`, one.Name))
	}
	second.says(admission.AdmitWith(admission.Changes{Labels: map[string]string{"example.com/team": "first", "example.com/second": "too"}}))
	q.awaitStart(job, "1")
	for _, o := range []client.Object{job, plain} {
		for _, p := range q.awaitPods(o, 2) {
			if p.Labels["example.com/team"] != "first" || p.Labels["example.com/second"] != "too" {
				t.Errorf("a pod of %s has the labels %v", o.GetName(), p.Labels)
			}
		}
	}
	if calls := second.asked(job); calls[len(calls)-1].TryNumber != 1 {
		t.Errorf("the last to be asked was told try %d, want that of the first gate, 1", calls[len(calls)-1].TryNumber)
	}
}

// conflictWithPod: of pods that exist already, some things cannot be changed, and
// some can.
func conflictWithPod(t *testing.T) {
	h := newHook(t, admission.AdmitWith(admission.Changes{ServiceAccount: chosenAccount}))
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	q.newChoices()
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "example.com/job:1", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}}}
	pod := q.pod("alone", map[string]string{"kueue.x-k8s.io/queue-name": "lq"}, template)
	awaitMessage(t, pod, gate.Name, kueue.CheckStatePending, `serviceAccount: the hook chose "chosen"`, `which exists already and cannot change it, has "default"`)
	h.says(admission.AdmitWith(admission.Changes{
		NodeSelector: map[string]string{cluster.PoolLabel: "reserved"}, Labels: map[string]string{"example.com/team": "ours"},
		Annotations: map[string]string{"example.com/note": "ours"},
		Tolerations: []admission.Toleration{{Key: cluster.ReservedTaint, Operator: "Exists"}}}))
	awaitRunning(t, pod)
	taken := q.pod("taken", map[string]string{"kueue.x-k8s.io/queue-name": "lq", "example.com/team": "theirs"}, template)
	awaitMessage(t, taken, gate.Name, kueue.CheckStatePending, `labels "example.com/team": the hook chose "ours", the pod "taken" has "theirs"`)
	group := map[string]string{"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/pod-group-name": "pair", "example.com/team": "theirs"}
	size := func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{"kueue.x-k8s.io/pod-group-total-count": "2"}
	}
	for _, name := range []string{"first", "second"} {
		q.pod(name, group, template, size)
	}
	eventually(t, patience, "the group is told whose label it is", func() error {
		var wl kueue.Workload
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Namespace: q.name, Name: "pair"}, &wl); err != nil {
			return err
		}
		if m := checkOf(&wl, gate.Name).Message; !strings.Contains(m, `labels "example.com/team": the hook chose "ours", the pod "first" has "theirs"`) {
			return fmt.Errorf("the check says %q", m)
		}
		return nil
	})
	q.statefulSet("set", template)
	eventually(t, patience, "the StatefulSet is told whose label it is", func() error {
		var list kueue.WorkloadList
		if err := shared.admin.List(t.Context(), &list, client.InNamespace(q.name)); err != nil {
			return err
		}
		for i := range list.Items {
			if strings.HasPrefix(list.Items[i].Name, "statefulset-") {
				if m := checkOf(&list.Items[i], gate.Name).Message; !strings.Contains(m, `labels "example.com/team": the hook chose "ours", the pod "set-0" has "theirs"`) {
					return fmt.Errorf("the check says %q", m)
				}
				return nil
			}
		}
		return errNotYet
	})
	h.says(admission.Admit())
	awaitRunning(t, taken)
	if pod.Spec.NodeName != "node-2" || pod.Labels["example.com/team"] != "ours" || pod.Annotations["example.com/note"] != "ours" {
		t.Errorf("the pod runs on %s with the labels %v and the annotations %v", pod.Spec.NodeName, pod.Labels, pod.Annotations)
	}
}

// statefulSet creates one of one pod, whose label is theirs.
func (q *queue) statefulSet(name string, template corev1.PodTemplateSpec) {
	q.t.Helper()
	one := int32(1)
	template = *template.DeepCopy()
	template.Labels = map[string]string{"app": name, "example.com/team": "theirs"}
	create(q.t, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: q.name, Labels: map[string]string{"kueue.x-k8s.io/queue-name": "lq"}},
		Spec: appsv1.StatefulSetSpec{Replicas: &one, ServiceName: name, Template: template,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
	})
}

// nothingIsLeftOfTheFirstAnswer: the hook changed the first start and lets the
// second one pass. Kueue leaves updates of a check standing that nobody clears.
func nothingIsLeftOfTheFirstAnswer(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	class := q.newChoices()
	h.says(admission.AdmitWith(everything(class)))
	plain := q.batchJob("plain")
	for _, p := range q.awaitPods(plain, 2) {
		wantEverything(t, p, class)
	}
	h.says(admission.Admit())
	before := podUIDs(q.awaitPods(plain, 2))
	q.restart(plain)
	for _, p := range q.awaitOtherPods(plain, 2, before) {
		wantNothing(t, p)
	}
	wl := awaitCheck(t, plain, gate.Name, kueue.CheckStateReady)
	if u := checkOf(wl, gate.Name).PodSetUpdates; len(u) > 0 {
		t.Errorf("the check still has the updates %v", u)
	}
}

// wantNothing fails the test if a pod has anything of everything.
func wantNothing(t *testing.T, p *corev1.Pod) {
	t.Helper()
	tolerated := false
	for _, o := range p.Spec.Tolerations {
		tolerated = tolerated || o.Key == cluster.ReservedTaint
	}
	if s := p.Spec; tolerated || len(s.NodeSelector) > 0 || s.ServiceAccountName != "default" || s.PriorityClassName != "" ||
		p.Labels["example.com/team"] != "" || p.Annotations["example.com/note"] != "" {
		t.Errorf("something of the first answer is left on %s: %s", p.Name, asJSON(t, p))
	}
}

func podUIDs(pods []*corev1.Pod) map[types.UID]bool {
	uids := map[types.UID]bool{}
	for _, p := range pods {
		uids[p.UID] = true
	}
	return uids
}

// awaitOtherPods waits until a job has n live pods, none of which is among before.
func (q *queue) awaitOtherPods(job client.Object, n int, before map[types.UID]bool) []*corev1.Pod {
	q.t.Helper()
	var pods []*corev1.Pod
	eventually(q.t, patience, job.GetName()+" has other pods", func() error {
		if pods = podsOf(job, q.pods.live()); len(pods) != n {
			return fmt.Errorf("%d pods; %s", len(pods), describe(q.t.Context(), job))
		}
		for _, p := range pods {
			if before[p.UID] {
				return errNotYet
			}
		}
		return nil
	})
	return pods
}

// keysDropped: the hook gives other keys to a later start than to the first. JobSet
// merges what it gets into Jobs that it has, so the pods have both; the owner of the
// hook is warned. Another value of the same key takes the place of the first.
func keysDropped(t *testing.T) {
	h := newHook(t, admission.AdmitWith(admission.Changes{
		NodeSelector: map[string]string{cluster.PoolLabel: "main"},
		Labels:       map[string]string{"example.com/first": "1", "example.com/both": "1"},
		Annotations:  map[string]string{"example.com/first": "1"},
		Tolerations:  []admission.Toleration{{Key: "example.com/first", Operator: "Exists"}},
	}))
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	job, set := q.submit(dispatchName()), q.jobSet("set", func(*jobset.JobSet) {})
	q.awaitStart(job, "1")
	before := podUIDs(q.awaitPods(set, 5))
	h.says(admission.AdmitWith(admission.Changes{Labels: map[string]string{"example.com/second": "2", "example.com/both": "2"}}))
	q.restart(job, set)
	q.awaitStart(job, "2")
	for _, p := range append(q.awaitPods(job, 2), q.awaitOtherPods(set, 5, before)...) {
		first := p.Labels["example.com/first"] == "1" && p.Annotations["example.com/first"] == "1" && p.Spec.NodeSelector[cluster.PoolLabel] == "main" &&
			slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool { return o.Key == "example.com/first" })
		if !first || p.Labels["example.com/second"] != "2" || p.Labels["example.com/both"] != "2" {
			t.Errorf("a pod of the second start lacks what JobSet keeps of the first, or what the second has: %s", asJSON(t, p))
		}
	}
	for o, podSet := range map[client.Object]string{job: "node", set: "work"} {
		awaitEvents(t, o, "PlacementKeysDropped", "The hook no longer sets", podSet+"/labels/example.com/first",
			podSet+"/nodeSelector/"+cluster.PoolLabel, podSet+"/annotations/example.com/first", podSet+"/tolerations/example.com/first")
	}
}

// accountDropped: so it is with the account and the class, which come to the pods by
// annotations: a hook that gave them once has to give others to take them away.
func accountDropped(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h)
	q := newHookedQueue(t, gate)
	q.setQuota("8")
	class := q.newChoices()
	h.says(admission.AdmitWith(everything(class)))
	job := q.submit(dispatchName())
	q.awaitStart(job, "1")
	h.says(admission.Admit())
	q.restart(job)
	q.awaitStart(job, "2")
	for _, p := range q.awaitPods(job, 2) {
		wantEverything(t, p, class)
	}
	awaitEvents(t, job, "PlacementKeysDropped", "node/annotations/"+v1alpha1.ServiceAccountAnnotation, "node/annotations/"+v1alpha1.PriorityClassAnnotation)
	h.says(admission.AdmitWith(admission.Changes{ServiceAccount: "default"}))
	q.restart(job)
	q.awaitStart(job, "3")
	for _, p := range q.awaitPods(job, 2) {
		if p.Spec.ServiceAccountName != "default" || p.Spec.PriorityClassName != class {
			t.Errorf("account %q and class %q, want the default one and that of the first start", p.Spec.ServiceAccountName, p.Spec.PriorityClassName)
		}
	}
}

// topologyStory: Kueue itself places the pods, by the lowest of the levels, which
// has domains. A hooked job runs there, and again after an eviction; what the hook
// chooses has to be where Kueue has placed the pods.
func topologyStory(t *testing.T, levels []kueue.TopologyLevel, domains ...string) {
	t.Helper()
	key := levels[len(levels)-1].NodeLabel
	h := newHook(t, admission.Hold("until the test knows where"))
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	create(t, &kueue.Topology{ObjectMeta: metav1.ObjectMeta{Name: q.name}, Spec: kueue.TopologySpec{Levels: levels}})
	topology := kueue.TopologyReference(q.name)
	q.newFlavor(func(f *kueue.ResourceFlavorSpec) {
		f.NodeLabels, f.TopologyName = map[string]string{"kubernetes.io/os": "linux"}, &topology
	})
	job := q.submit(dispatchName(), patchPods(trainer.PodTemplatePatch{
		Metadata: &metav1.ObjectMeta{Annotations: map[string]string{"kueue.x-k8s.io/podset-required-topology": key}},
		Spec:     &trainer.PodSpecPatch{Tolerations: []corev1.Toleration{{Key: cluster.ReservedTaint, Operator: corev1.TolerationOpExists}}},
	}))
	choose := func(value string) {
		h.says(admission.AdmitWith(admission.Changes{NodeSelector: map[string]string{key: value}}))
	}
	at := placeOf(t, h, job, 1)
	other := slices.DeleteFunc(slices.Clone(domains), func(d string) bool { return d == at })[0]
	choose(other)
	q.awaitWrong(gate, job, fmt.Sprintf("nodeSelector %q: the hook chose %q, the topology assignment has %q", key, other, at))
	if key == corev1.LabelHostname {
		// Kueue tells the names of nodes and none of their other labels.
		h.says(pool("reserved"))
		q.awaitWrong(gate, job, fmt.Sprintf("nodeSelector %q: Kueue has placed the pods on nodes already", cluster.PoolLabel))
	}
	choose(at)
	q.awaitStart(job, "1")
	q.awaitRunning(job, 2)
	// The key is set at each start, because JobSet would keep it anyway.
	h.says(admission.Hold("until the test knows where"))
	n := len(h.asked(job))
	q.restart(job)
	choose(placeOf(t, h, job, n+1))
	q.awaitStart(job, "2")
	q.awaitRunning(job, 2)
}

// placeOf waits until the hook has been asked n times about a job, and returns the
// one domain where Kueue has placed it.
func placeOf(t *testing.T, h *testHook, job client.Object, n int) string {
	t.Helper()
	h.awaitAsked(job, n)
	wl := awaitWorkload(t, job, "is placed", func(wl *kueue.Workload) bool {
		return wl.Status.Admission != nil && wl.Status.Admission.PodSetAssignments[0].TopologyAssignment != nil
	})
	return *wl.Status.Admission.PodSetAssignments[0].TopologyAssignment.Slices[0].ValuesPerLevel[0].Universal
}
