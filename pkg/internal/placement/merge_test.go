package placement

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/request"
)

// The rules by which Kueue v0.19.2 merges updates, written down once more from its
// pkg/podset, the start of a job in pkg/controller/jobframework and the search for
// nodes in pkg/cache/scheduler.

var errMerge = errors.New("merge")

// info is a podset.PodSetInfo.
type info struct{ nodeSelector, labels, annotations strs }

func (i info) clone() info {
	clone := func(m strs) strs {
		c := strs{}
		maps.Copy(c, m)
		return c
	}
	return info{clone(i.nodeSelector), clone(i.labels), clone(i.annotations)}
}

// merge is PodSetInfo.Merge.
func (i info) merge(o info) error {
	for _, m := range [][2]strs{{i.annotations, o.annotations}, {i.labels, o.labels}, {i.nodeSelector, o.nodeSelector}} {
		for key, value := range m[1] {
			if old, ok := m[0][key]; ok && old != value {
				return fmt.Errorf("%w: %s has %s and %s", errMerge, key, old, value)
			}
		}
		maps.Copy(m[0], m[1])
	}
	return nil
}

func fromUpdate(u kueue.PodSetUpdate) info { return info{u.NodeSelector, u.Labels, u.Annotations} }

func fromTemplate(ps *kueue.PodSet) info {
	return info{ps.Template.Spec.NodeSelector, ps.Template.Labels, ps.Template.Annotations}
}

// mergeStart is what Kueue does to one pod set when it starts the job, with the
// entries as they are once all checks are Ready, and the flavors in one of the orders
// in which a map may give them.
func mergeStart(f Facts, index int, entries []kueue.AdmissionCheckState, flavors []kueue.ResourceFlavorReference) error {
	ps := &f.Workload.Spec.PodSets[index]
	got := info{}.clone()
	for _, ref := range flavors {
		maps.Copy(got.nodeSelector, f.Flavors[ref].Spec.NodeLabels)
	}
	got.annotations[kueue.WorkloadAnnotation] = f.Workload.Name
	got.labels["kueue.x-k8s.io/podset"] = string(ps.Name)
	for _, e := range entries {
		i := slices.IndexFunc(e.PodSetUpdates, func(u kueue.PodSetUpdate) bool { return u.Name == ps.Name })
		if i < 0 {
			continue
		}
		if err := got.merge(fromUpdate(e.PodSetUpdates[i])); err != nil {
			return err
		}
	}
	if f.TrainJob {
		return nil // a runtime patch, which Trainer lets win
	}
	return fromTemplate(ps).clone().merge(got)
}

// mergePlacement is what Kueue does to it when it looks for nodes itself.
func mergePlacement(f Facts, index int, entries []kueue.AdmissionCheckState) error {
	ps := &f.Workload.Spec.PodSets[index]
	got := fromTemplate(ps).clone()
	for _, e := range entries {
		for _, u := range e.PodSetUpdates {
			if u.Name != ps.Name {
				continue
			}
			if err := got.merge(fromUpdate(u)); err != nil {
				return err
			}
		}
	}
	return nil
}

// mergeAll is the first conflict that Kueue can come upon.
func mergeAll(f Facts, entries []kueue.AdmissionCheckState) error {
	for i := range f.Workload.Spec.PodSets {
		a := f.Workload.Status.Admission.PodSetAssignments[i]
		assigned := slices.Sorted(maps.Values(a.Flavors))
		for range assigned {
			assigned = append(assigned[1:], assigned[0])
			if err := mergeStart(f, i, entries, assigned); err != nil {
				return err
			}
		}
		if err := mergeStart(f, i, entries, assigned); err != nil {
			return err
		}
		if a.DelayedTopologyRequest == nil {
			continue
		}
		if err := mergePlacement(f, i, entries); err != nil {
			return err
		}
	}
	return nil
}

// answered are the entries when all checks are Ready, with ours as given. Kueue
// never starts a job that another check wants to retry or rejected.
func answered(f Facts, updates []kueue.PodSetUpdate) []kueue.AdmissionCheckState {
	entries := slices.Clone(f.Workload.Status.AdmissionChecks)
	entries = slices.DeleteFunc(entries, func(e kueue.AdmissionCheckState) bool {
		return e.Name != f.Check && (e.State == kueue.CheckStateRetry || e.State == kueue.CheckStateRejected)
	})
	for i := range entries {
		if entries[i].Name == f.Check {
			entries[i].PodSetUpdates = updates
		}
	}
	return entries
}

// naive are the updates without any look at who else has the keys.
func naive(c admission.Changes, f Facts) []kueue.PodSetUpdate {
	var all []kueue.PodSetUpdate
	for _, ps := range f.Workload.Spec.PodSets {
		all = append(all, kueue.PodSetUpdate{Name: ps.Name, NodeSelector: c.NodeSelector, Labels: c.Labels, Annotations: annotations(c)})
	}
	return all
}

// world makes small random facts and changes, in which keys and values often meet.
type world struct{ *rand.Rand }

func (w world) keys(most int) strs {
	var all strs
	for range w.IntN(most + 1) {
		if all == nil {
			all = strs{}
		}
		all[string(rune('a'+w.IntN(6)))] = string(rune('x' + w.IntN(2)))
	}
	return all
}

func (w world) facts() Facts {
	f := Facts{Workload: &kueue.Workload{}, Check: "ours", TrainJob: w.IntN(3) == 0, Flavors: map[kueue.ResourceFlavorReference]*kueue.ResourceFlavor{}}
	f.Workload.Name = "wl"
	for _, ref := range []kueue.ResourceFlavorReference{"f1", "f2"} {
		f.Flavors[ref] = flavor(w.keys(1))
	}
	f.Workload.Status.Admission = &kueue.Admission{}
	names := []kueue.PodSetReference{"one", "two"}[:1+w.IntN(2)]
	for _, name := range names {
		ps := kueue.PodSet{Name: name}
		ps.Template.Labels, ps.Template.Annotations, ps.Template.Spec.NodeSelector = w.keys(1), w.keys(1), w.keys(1)
		f.Workload.Spec.PodSets = append(f.Workload.Spec.PodSets, ps)
		a := kueue.PodSetAssignment{Name: name, Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{}}
		for i := range w.IntN(3) {
			a.Flavors[corev1.ResourceName(fmt.Sprint("r", i))] = []kueue.ResourceFlavorReference{"f1", "f2"}[w.IntN(2)]
		}
		if w.IntN(4) == 0 {
			a.DelayedTopologyRequest = new(kueue.DelayedTopologyRequestStatePending)
		}
		f.Workload.Status.Admission.PodSetAssignments = append(f.Workload.Status.Admission.PodSetAssignments, a)
	}
	states := []kueue.CheckState{kueue.CheckStateReady, kueue.CheckStatePending, kueue.CheckStateRetry, kueue.CheckStateRejected}
	for _, name := range []kueue.AdmissionCheckReference{"a-check", "ours", "z-check"} {
		e := kueue.AdmissionCheckState{Name: name, State: states[w.IntN(len(states))]}
		for _, ps := range names {
			if w.IntN(2) == 0 {
				e.PodSetUpdates = append(e.PodSetUpdates, kueue.PodSetUpdate{Name: ps, NodeSelector: w.keys(1), Labels: w.keys(1), Annotations: w.keys(1)})
			}
		}
		f.Workload.Status.AdmissionChecks = append(f.Workload.Status.AdmissionChecks, e)
	}
	return f
}

func (w world) changes() admission.Changes {
	c := hook(w.keys(1), w.keys(1), w.keys(1))
	if w.IntN(4) == 0 {
		c.ServiceAccount = "robot"
	}
	return c
}

// againstKueue compares Updates with the rules: it must find a conflict exactly when
// Kueue can come upon one that would not be there without the hook.
func againstKueue(t *testing.T, seed uint64) (conflict bool) {
	t.Helper()
	w := world{rand.New(rand.NewPCG(seed, 1))}
	f, c := w.facts(), w.changes()
	// Others may be at odds among themselves, which is not for the hook to mend.
	if mergeAll(f, answered(f, nil)) != nil {
		return false
	}
	updates, err := Updates(c, f)
	if err == nil {
		if merged := mergeAll(f, answered(f, updates)); merged != nil {
			t.Fatalf("seed %d: Kueue refuses updates that pass: %v\nchanges %+v\nupdates %+v", seed, merged, c, updates)
		}
		return false
	}
	// A node label may also be hidden below that of another flavor, whichever Kueue
	// takes last; the orders above include both.
	if mergeAll(f, answered(f, naive(c, f))) == nil {
		t.Fatalf("seed %d: Kueue would take what is refused: %v\nchanges %+v", seed, err, c)
	}
	return true
}

func TestAgainstKueue(t *testing.T) {
	conflicts, passes := 0, 0
	for seed := range uint64(20_000) {
		if againstKueue(t, seed) {
			conflicts++
		} else {
			passes++
		}
	}
	if conflicts < 500 || passes < 500 {
		t.Errorf("%d conflicts and %d passes: the worlds are too much alike to tell anything", conflicts, passes)
	}
}

func FuzzUpdates(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { againstKueue(t, seed) })
}

// TestSlimmed: a Workload whose pod sets were slimmed gets the same updates, and a
// conflict when the full one does.
func TestSlimmed(t *testing.T) {
	manifest := strs{"kubectl.kubernetes.io/last-applied-configuration": `{"apiVersion":"v1","kind":"Pod"}`}
	full := facts(owner("v1", "Pod", "p"), template(func(t *corev1.PodTemplateSpec) {
		t.Labels, t.Annotations, t.Spec.NodeSelector = strs{"l": "1"}, manifest, strs{"n": "1"}
		t.Spec.ServiceAccountName, t.Spec.PriorityClassName = "robot", "high"
		t.Spec.Containers = []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "KEY", Value: "s3cret"}}}}
		t.Spec.Tolerations = []corev1.Toleration{{Key: "k"}}
	}))
	slim := full
	slim.Workload = full.Workload.DeepCopy()
	slim.Workload.Spec.PodSets = request.Slim(slim.Workload.Spec.PodSets)
	for name, c := range map[string]admission.Changes{
		"same":                   hook(strs{"n": "1"}, strs{"l": "1"}, strs{"a": "1"}),
		"label":                  hook(nil, strs{"l": "2"}, nil),
		"node selector":          hook(strs{"n": "2"}, nil, nil),
		"withheld annotation":    hook(nil, nil, strs{"kubectl.kubernetes.io/last-applied-configuration": "{}"}),
		"service account":        {ServiceAccount: "other"},
		"same service account":   {ServiceAccount: "robot"},
		"priority class":         {PriorityClassName: "low"},
		"same priority class":    {PriorityClassName: "high"},
		"toleration":             {Tolerations: []admission.Toleration{{Key: "t"}}},
		"toleration that it has": {Tolerations: []admission.Toleration{{Key: "k"}}},
	} {
		for _, isTrainJob := range []bool{false, true} {
			full.TrainJob, slim.TrainJob = isTrainJob, isTrainJob
			want, wantErr := Updates(c, full)
			got, err := Updates(c, slim)
			if diff := cmp.Diff(want, got); diff != "" || (wantErr == nil) != (err == nil) {
				t.Errorf("%s, TrainJob %t: error %v, want %v (-want +got):\n%s", name, isTrainJob, err, wantErr, diff)
			}
			if strings.Contains(fmt.Sprint(err), "apiVersion") {
				t.Errorf("%s: the manifest came through: %v", name, err)
			}
		}
	}
}
