package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// podPlace is a namespace with service accounts, and a priority class.
type podPlace struct {
	t         *testing.T
	namespace string
	class     string // of priority 5000, which preempts nobody
}

// The service accounts of a podPlace beside default.
const (
	chosenAccount    = "chosen"
	tokenlessAccount = "tokenless" // mounts no token
)

func newPodPlace(t *testing.T) *podPlace {
	t.Helper()
	p := &podPlace{t: t, namespace: unique("pods"), class: unique("class")}
	never, no := corev1.PreemptNever, false
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}})
	create(t, &corev1.ServiceAccount{ObjectMeta: p.meta(chosenAccount), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "of-chosen"}}})
	create(t, &corev1.ServiceAccount{ObjectMeta: p.meta(tokenlessAccount), AutomountServiceAccountToken: &no})
	create(t, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: p.class}, Value: 5000, PreemptionPolicy: &never})
	eventually(t, patience, "the API server knows the accounts, the class and the policy", func() error {
		for _, account := range []string{"default", tokenlessAccount} {
			if _, err := p.try(p.pod(nil, func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = account })); err != nil {
				return err
			}
		}
		pod, err := p.try(p.pod(p.chosen()))
		if err == nil && (pod.Spec.ServiceAccountName != chosenAccount || pod.Spec.PriorityClassName != p.class) {
			err = errNotYet
		}
		return err
	})
	return p
}

func (p *podPlace) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: p.namespace}
}

// chosen are the annotations of a pod that a hook chose both for.
func (p *podPlace) chosen() map[string]string {
	return map[string]string{v1alpha1.ServiceAccountAnnotation: chosenAccount, v1alpha1.PriorityClassAnnotation: p.class}
}

// pod builds a pod of two containers, one of which runs before the other.
func (p *podPlace) pod(annotations map[string]string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: p.meta("pod"), Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "first", Image: "example.com/first:1"}},
		Containers:     []corev1.Container{{Name: "main", Image: "example.com/main:1"}},
	}}
	pod.Annotations = annotations
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// try returns the pod as the API server would keep it.
func (p *podPlace) try(pod *corev1.Pod) (*corev1.Pod, error) {
	err := shared.admin.Create(p.t.Context(), pod, client.DryRunAll)
	return pod, err
}

func (p *podPlace) mustTry(pod *corev1.Pod) *corev1.Pod {
	p.t.Helper()
	pod, err := p.try(pod)
	if err != nil {
		p.t.Fatal(err)
	}
	return pod
}

// wantChosen wants what a pod has that was written with both fields.
func (p *podPlace) wantChosen(pod *corev1.Pod) {
	p.t.Helper()
	if s := pod.Spec; s.ServiceAccountName != chosenAccount || s.DeprecatedServiceAccount != chosenAccount {
		p.t.Errorf("the account is %q (%q by its old name), want %q", s.ServiceAccountName, s.DeprecatedServiceAccount, chosenAccount)
	}
	if pod.Spec.PriorityClassName != p.class {
		p.t.Errorf("the class is %q, want %q", pod.Spec.PriorityClassName, p.class)
	}
	if n := pod.Spec.Priority; n == nil || *n != 5000 {
		p.t.Errorf("the priority is %v, want that of the class, 5000", n)
	}
	if policy := pod.Spec.PreemptionPolicy; policy == nil || *policy != corev1.PreemptNever {
		p.t.Errorf("the preemption policy is %v, want that of the class, Never", policy)
	}
	if n := tokens(pod); n != [2]int{1, 2} {
		p.t.Errorf("%d token volumes and %d mounts of them, want 1 for both containers", n[0], n[1])
	}
}

// tokens counts the volumes with a token of the service account, and where they
// are mounted.
func tokens(pod *corev1.Pod) [2]int {
	volumes, mounts := map[string]bool{}, 0
	for _, v := range pod.Spec.Volumes {
		for i := 0; v.Projected != nil && i < len(v.Projected.Sources); i++ {
			if v.Projected.Sources[i].ServiceAccountToken != nil {
				volumes[v.Name] = true
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			if volumes[m.Name] {
				mounts++
			}
		}
	}
	return [2]int{len(volumes), mounts}
}

func TestPodPolicyGivesWhatWasChosen(t *testing.T) {
	p := newPodPlace(t)
	lowest := corev1.PreemptLowerPriority
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
	}{
		"Plain": {"the pod said nothing", p.pod(p.chosen())},
		"Other": {"the pod said something else", p.pod(p.chosen(), func(pod *corev1.Pod) {
			pod.Spec.ServiceAccountName, pod.Spec.PriorityClassName, pod.Spec.PreemptionPolicy = "default", "system-node-critical", &lowest
		})},
		"OldName": {"the pod used the old name", p.pod(p.chosen(), func(pod *corev1.Pod) { pod.Spec.DeprecatedServiceAccount = "default" })},
		"Tokenless": {"the pod's own account mounts no token", p.pod(p.chosen(), func(pod *corev1.Pod) {
			pod.Spec.ServiceAccountName = tokenlessAccount
		})},
		"Same": {"the pod has it all", p.pod(p.chosen(), func(pod *corev1.Pod) {
			pod.Spec.ServiceAccountName, pod.Spec.PriorityClassName = chosenAccount, p.class
		})},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			q := &podPlace{t, p.namespace, p.class}
			q.wantChosen(q.mustTry(tc.pod.DeepCopy()))
		})
	}
	t.Run("OneOfTwo", func(t *testing.T) {
		q := &podPlace{t, p.namespace, p.class}
		got := q.mustTry(p.pod(map[string]string{v1alpha1.ServiceAccountAnnotation: chosenAccount}))
		if s := got.Spec; s.ServiceAccountName != chosenAccount || s.PriorityClassName != "" || *s.Priority != 0 {
			t.Errorf("account %q, class %q, priority %d; want the account alone changed", s.ServiceAccountName, s.PriorityClassName, *s.Priority)
		}
		got = q.mustTry(p.pod(map[string]string{v1alpha1.PriorityClassAnnotation: p.class}))
		if s := got.Spec; s.ServiceAccountName != "default" || s.PriorityClassName != p.class || *s.Priority != 5000 {
			t.Errorf("account %q, class %q, priority %d; want the class alone changed", s.ServiceAccountName, s.PriorityClassName, *s.Priority)
		}
	})
	t.Run("Kept", func(t *testing.T) {
		q := &podPlace{t, p.namespace, p.class}
		pod := p.pod(p.chosen())
		create(t, pod)
		var kept corev1.Pod
		if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(pod), &kept); err != nil {
			t.Fatal(err)
		}
		q.wantChosen(&kept)
	})
}

// TestPodPolicyLeavesOthersAlone compares pods with what they are in a cluster
// where the policy is bound to nothing.
func TestPodPolicyLeavesOthersAlone(t *testing.T) {
	p := newPodPlace(t)
	pods := map[string]*corev1.Pod{
		"Plain":   p.pod(nil),
		"Others":  p.pod(map[string]string{"example.com/service-account": chosenAccount, v1alpha1.AdmissionCountAnnotation: "1"}),
		"Empty":   p.pod(map[string]string{v1alpha1.ServiceAccountAnnotation: "", v1alpha1.PriorityClassAnnotation: ""}),
		"Label":   p.pod(nil, func(pod *corev1.Pod) { pod.Labels = p.chosen() }),
		"Account": p.pod(nil, func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = tokenlessAccount }),
		"Class":   p.pod(nil, func(pod *corev1.Pod) { pod.Spec.PriorityClassName = "system-cluster-critical" }),
		// What was chosen is there, so the policy has nothing to do either.
		"Same": p.pod(p.chosen(), func(pod *corev1.Pod) {
			pod.Spec.ServiceAccountName, pod.Spec.PriorityClassName = chosenAccount, p.class
		}),
	}
	with := map[string]string{}
	for name, pod := range pods {
		with[name] = p.written(pod)
	}
	unbound(t, p)
	for name, pod := range pods {
		if want := p.written(pod); with[name] != want {
			t.Errorf("%s: the pod is\n%s\nwith the policy, and without it\n%s", name, with[name], want)
		}
	}
}

// written is a pod as the API server would keep it, without what differs each time.
func (p *podPlace) written(pod *corev1.Pod) string {
	p.t.Helper()
	got := p.mustTry(pod.DeepCopy())
	got.UID, got.CreationTimestamp = "", metav1.Time{}
	for i := range got.ManagedFields {
		got.ManagedFields[i].Time = nil
	}
	data, err := json.Marshal(got)
	if err != nil {
		p.t.Fatal(err)
	}
	return regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`).ReplaceAllString(string(data), "kube-api-access-xxxxx")
}

// unbound takes the policy's binding away until the test has ended.
func unbound(t *testing.T, p *podPlace) {
	t.Helper()
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{}
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: v1alpha1.PodPolicyName}, binding); err != nil {
		t.Fatal(err)
	}
	if err := shared.admin.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}
		if err := shared.admin.Create(context.WithoutCancel(t.Context()), binding); err != nil {
			t.Error(err)
		}
	})
	eventually(t, patience, "the policy is bound to nothing", func() error {
		if pod, err := p.try(p.pod(p.chosen())); err != nil || pod.Spec.ServiceAccountName == chosenAccount {
			return errors.Join(errNotYet, err)
		}
		return nil
	})
}

func TestPodPolicyMissing(t *testing.T) {
	p := newPodPlace(t)
	for name, tc := range map[string]struct {
		reason, annotation, value, want string
	}{
		"Account":     {"no such account", v1alpha1.ServiceAccountAnnotation, "missing-account", `serviceaccount "missing-account" not found`},
		"AccountName": {"no account could be called so", v1alpha1.ServiceAccountAnnotation, "a/b", `"a/b"`},
		"Class":       {"no such class", v1alpha1.PriorityClassAnnotation, "missing-class", "no PriorityClass with name missing-class was found"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.try(p.pod(map[string]string{tc.annotation: tc.value}))
			if !apierrors.IsForbidden(err) || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("%s: %v, want Forbidden with %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestPodPolicyJob is how the annotations come to pods: by a template.
func TestPodPolicyJob(t *testing.T) {
	p := newPodPlace(t)
	two := int32(2)
	job := &batchv1.Job{ObjectMeta: p.meta("job"), Spec: batchv1.JobSpec{Parallelism: &two, Completions: &two, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: p.chosen()}, Spec: p.pod(nil).Spec}}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	create(t, job)
	var pods corev1.PodList
	eventually(t, patience, "the Job has its pods", func() error {
		if err := shared.admin.List(t.Context(), &pods, client.InNamespace(p.namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
			return err
		}
		if len(pods.Items) < 2 {
			return errNotYet
		}
		return nil
	})
	for i := range pods.Items {
		p.wantChosen(&pods.Items[i])
	}
}

// TestPodPolicyReinvoked has somebody else change the pods after the policy, which
// makes the API server go through everything a second time.
func TestPodPolicyReinvoked(t *testing.T) {
	p := newPodPlace(t)
	other := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: unique("zz")}}
	other.Spec.ReinvocationPolicy = admissionregistrationv1.IfNeededReinvocationPolicy
	other.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: p.namespace}},
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}}
	// It appends at each turn, so the pod tells how often it was its turn.
	other.Spec.Mutations = []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch,
		JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/spec/tolerations/-", value: Object.spec.tolerations{key: "turn", operator: "Exists"}}]`}}}
	create(t, other)
	create(t, &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: other.Name},
		Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: other.Name}})
	var pod *corev1.Pod
	eventually(t, patience, "the other policy is at work, twice", func() (err error) {
		if pod, err = p.try(p.pod(p.chosen())); err == nil && turns(pod) < 2 {
			err = fmt.Errorf("%w: %d turns", errNotYet, turns(pod))
		}
		return err
	})
	p.wantChosen(pod)
}

func turns(pod *corev1.Pod) (n int) {
	for _, t := range pod.Spec.Tolerations {
		if t.Key == "turn" {
			n++
		}
	}
	return n
}

// TestPodPolicyIsForNewPods has the annotations come late, when the fields cannot
// be changed any more: nothing happens, and nothing is forbidden.
func TestPodPolicyIsForNewPods(t *testing.T) {
	p := newPodPlace(t)
	pod := p.pod(nil)
	create(t, pod)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": maps.Clone(p.chosen())}})
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.admin.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	if s := pod.Spec; s.ServiceAccountName != "default" || s.PriorityClassName != "" {
		t.Errorf("account %q and class %q, want those it began with", s.ServiceAccountName, s.PriorityClassName)
	}
}

// TestPodPolicyComesSecond pins what the policy cannot do: the API server's own
// plugin has seen the pod's first account by then, and does not take back what it
// added for that one.
func TestPodPolicyComesSecond(t *testing.T) {
	p := newPodPlace(t)
	tokenless := map[string]string{v1alpha1.ServiceAccountAnnotation: tokenlessAccount}
	if n := tokens(p.mustTry(p.pod(tokenless))); n[0] != 1 {
		t.Errorf("%d token volumes: an account that mounts none now keeps the mount of the first account out", n[0])
	}
	no := false
	if n := tokens(p.mustTry(p.pod(tokenless, func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = &no }))); n[0] != 0 {
		t.Errorf("%d token volumes, want none: the pod itself asked for none", n[0])
	}
	if got := p.mustTry(p.pod(p.chosen())).Spec.ImagePullSecrets; len(got) != 1 || got[0].Name != "of-chosen" {
		t.Errorf("the pull secrets are %v, want those of the chosen account: the first one has none", got)
	}
	account := &corev1.ServiceAccount{ObjectMeta: p.meta("with-secrets"), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "of-first"}}}
	create(t, account)
	eventually(t, patience, "the first account's pull secrets stay", func() error {
		pod, err := p.try(p.pod(p.chosen(), func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = account.Name }))
		if err == nil && (pod.Spec.ServiceAccountName != chosenAccount || pod.Spec.ImagePullSecrets[0].Name != "of-first") {
			err = fmt.Errorf("account %q with pull secrets %v", pod.Spec.ServiceAccountName, pod.Spec.ImagePullSecrets)
		}
		return err
	})
}
