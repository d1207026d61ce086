package lifecycle

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// site is what one test has of the cluster: a release in a namespace of its own, a
// check, and a queue in another namespace.
type site struct {
	t *testing.T
	// helm is the path of the Helm that is used.
	helm string
	// release is the name of the release, its namespace, its check, its gate and its
	// Lease; queue that of the ClusterQueue and of the namespace of its jobs.
	release, queue string
	values         map[string]any
}

// unique is a name that no other test has.
func unique(prefix string) string {
	return fmt.Sprintf("%s-%s", prefix, strings.ToLower(rand.Text()[:6]))
}

// eachHelm runs a test with Helm 3 and with Helm 4.
func eachHelm(t *testing.T, test func(*testing.T, string)) {
	t.Helper()
	for name, helm := range map[string]string{"Helm3": shared.cluster.Bin("helm"), "Helm4": shared.helm4} {
		t.Run(name, func(t *testing.T) { test(t, helm) })
	}
}

// newSite makes a queue with quota for three jobs, and values for a release that
// attaches it.
func newSite(t *testing.T, helm string) *site {
	t.Helper()
	s := &site{t: t, helm: helm, release: unique("r"), queue: unique("q")}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.release, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted"}}})
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.queue}})
	s.create(&kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: s.queue}, Spec: kueue.ClusterQueueSpec{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.queue}},
		ResourceGroups: []kueue.ResourceGroup{{
			CoveredResources: []corev1.ResourceName{corev1.ResourceCPU},
			Flavors: []kueue.FlavorQuotas{{Name: "default", Resources: []kueue.ResourceQuota{
				{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("6")}}}},
		}},
	}})
	s.create(&kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Name: "lq", Namespace: s.queue},
		Spec: kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(s.queue)}})
	s.values = map[string]any{
		"admissionChecks": []any{map[string]any{"name": s.release, "gate": map[string]any{"hook": map[string]any{
			"hold": map[string]any{"reofferInterval": "1s"}}}}},
		"adapter":       map[string]any{"policy": map[string]any{"rules": []any{holdLabelled}}},
		"clusterQueues": map[string]any{"attach": map[string]any{"names": []any{s.queue}, "timeout": "60s"}},
		"lease":         map[string]any{"name": s.release, "duration": "5s", "renewDeadline": "4s", "retryPeriod": "500ms"},
		// They are there, and would else belong to the first release.
		"crds": map[string]any{"enabled": false},
	}
	return s
}

// holdLabelled is a rule that holds the jobs with a label.
var holdLabelled = map[string]any{"name": "hold-labelled", "when": `"hold" in request.execution.labels`, "hold": "the label says so"}

// set sets a value by its path.
func (s *site) set(value any, path ...string) {
	at := s.values
	for _, key := range path[:len(path)-1] {
		next, ok := at[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[key] = next
		}
		at = next
	}
	at[path[len(path)-1]] = value
}

// create makes an object that goes with the test, whoever holds on to it.
func (s *site) create(o client.Object) {
	s.t.Helper()
	if err := shared.admin.Create(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = client.IgnoreNotFound(shared.admin.Delete(ctx, o))
	})
}

// try runs Helm on the release, with its values where there are some to give.
func (s *site) try(args ...string) (string, error) {
	s.t.Helper()
	if slices.Contains([]string{"install", "upgrade", "template"}, args[0]) {
		args = append([]string{args[0], s.release, chart(), "--values", "-"}, args[1:]...)
	} else {
		args = append([]string{args[0], s.release}, args[1:]...)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.helm, append(args, "--namespace", s.release, "--kubeconfig", shared.cluster.Kubeconfig())...)
	values, err := json.Marshal(s.values)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(string(values))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// run runs Helm, which must succeed.
func (s *site) run(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.tellPods()
		s.t.Fatal(err)
	}
	return out
}

// refused runs Helm, which must fail and say something.
func (s *site) refused(words string, args ...string) {
	s.t.Helper()
	before := s.podLogs()
	out, err := s.try(args...)
	if err == nil {
		s.t.Fatalf("helm %s went through: %s", strings.Join(args, " "), out)
	}
	if said := err.Error() + s.podLogs().after(before); !strings.Contains(said, words) {
		s.t.Fatalf("nothing says %q:\n%s", words, said)
	}
}

// install installs the release and has it removed with the test, whatever became of it.
func (s *site) install() {
	s.t.Helper()
	s.cleanUp()
	s.run("install", "--wait", "--timeout=2m")
}

// cleanUp has the release removed with the test.
func (s *site) cleanUp() {
	s.t.Cleanup(func() {
		_, _ = shared.cluster.Kubectl(context.Background(), "patch", "clusterqueue", s.queue, "--type=merge",
			"-p", `{"spec":{"admissionChecksStrategy":null}}`)
		cmd := exec.Command(s.helm, "uninstall", s.release, "--no-hooks", "--namespace", s.release, "--kubeconfig", shared.cluster.Kubeconfig())
		_ = cmd.Run() // it is gone already where all went well
		_, _ = shared.cluster.Kubectl(context.Background(), "delete", "admissiongate", s.release, "--ignore-not-found")
	})
}

// job makes a Job of one pod in the queue that runs until it is deleted.
func (s *site) job(labels map[string]string) *batchv1.Job {
	s.t.Helper()
	one := int32(1)
	suspended := true
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: unique("job"), Namespace: s.queue, Labels: map[string]string{"kueue.x-k8s.io/queue-name": "lq"}},
		Spec: batchv1.JobSpec{Parallelism: &one, Suspend: &suspended, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
				Name: "main", Image: "example.com/train:1",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
			}}},
		}},
	}
	s.create(job)
	return job
}

// held makes a job that the policy holds, and waits until it does. A policy that has
// just been written may not have reached the adapter; a job that was let pass goes, and
// another one comes.
func (s *site) held() *batchv1.Job {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		job, held := s.job(map[string]string{"hold": "yes"}), false
		s.await(job, "is held with the rule's reason, or passes", func(wl *kueue.Workload) bool {
			c := meta.FindStatusCondition(wl.Status.Conditions, v1alpha1.WorkloadHeld)
			held = c != nil && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, "the label says so")
			return held || meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted)
		})
		if held {
			return job
		}
		if time.Now().After(deadline) {
			s.t.Fatal("the policy does not hold jobs with the label")
		}
		if err := shared.admin.Delete(s.t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// running makes a job that runs.
func (s *site) running() *batchv1.Job {
	s.t.Helper()
	job := s.job(nil)
	s.awaitRunning(job)
	return job
}

func (s *site) awaitRunning(job client.Object) {
	s.t.Helper()
	s.await(job, "runs", func(wl *kueue.Workload) bool {
		return meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted)
	})
}

// await waits until the Workload of a job is as wanted.
func (s *site) await(job client.Object, what string, ok func(*kueue.Workload) bool) {
	s.t.Helper()
	s.eventually(90*time.Second, "the job "+what, func() error {
		wl, err := workloadOf(s.t.Context(), job)
		if err != nil {
			return err
		}
		if !ok(wl) {
			return fmt.Errorf("the Workload is %s", harness.Show(wl.Status))
		}
		return nil
	})
}

func workloadOf(ctx context.Context, job client.Object) (*kueue.Workload, error) {
	var list kueue.WorkloadList
	if err := shared.admin.List(ctx, &list, client.InNamespace(job.GetNamespace())); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if owner := metav1.GetControllerOf(&list.Items[i]); owner != nil && owner.UID == job.GetUID() {
			return &list.Items[i], nil
		}
	}
	return nil, errors.New("the job has no Workload")
}

// stillRuns fails the test if a job that ran does not, or was started again.
func (s *site) stillRuns(job *batchv1.Job) {
	s.t.Helper()
	wl, err := workloadOf(s.t.Context(), job)
	if err != nil {
		s.t.Fatal(err)
	}
	if !meta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted) || meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted) != nil {
		s.t.Errorf("a job that ran was disturbed: %s", harness.Show(wl.Status))
	}
}

// neverRan fails the test if a job has ever been admitted.
func (s *site) neverRan(job *batchv1.Job) {
	s.t.Helper()
	wl, err := workloadOf(s.t.Context(), job)
	if err != nil {
		s.t.Fatal(err)
	}
	if meta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted) != nil {
		s.t.Errorf("a job that was held has run: %s", harness.Show(wl.Status))
	}
}

// clusterQueue reads the queue.
func (s *site) clusterQueue() *kueue.ClusterQueue {
	s.t.Helper()
	var cq kueue.ClusterQueue
	if err := shared.admin.Get(s.t.Context(), client.ObjectKey{Name: s.queue}, &cq); err != nil {
		s.t.Fatal(err)
	}
	return &cq
}

// wired tells whether the queue names the check of the release.
func (s *site) wired() bool {
	s.t.Helper()
	strategy := s.clusterQueue().Spec.AdmissionChecksStrategy
	return strategy != nil && slices.ContainsFunc(strategy.AdmissionChecks, func(r kueue.AdmissionCheckStrategyRule) bool {
		return string(r.Name) == s.release
	})
}

// wantWired sees that the queue names the check and is active, or does not name it.
func (s *site) wantWired(want bool) {
	s.t.Helper()
	if got := s.wired(); got != want {
		s.t.Errorf("the queue names the check: %v, want %v", got, want)
	}
	if active := meta.FindStatusCondition(s.clusterQueue().Status.Conditions, kueue.ClusterQueueActive); want && (active == nil || active.Status != metav1.ConditionTrue) {
		s.t.Errorf("the queue is not active: %s", harness.Show(active))
	}
}

// wantNothingLeft sees that of the release nothing is left but what is to stay.
func (s *site) wantNothingLeft() {
	s.t.Helper()
	s.wantNothingBut()
	var check kueue.AdmissionCheck
	if err := shared.admin.Get(s.t.Context(), client.ObjectKey{Name: s.release}, &check); !apierrors.IsNotFound(err) {
		s.t.Errorf("the check is there still: %s %v", harness.Show(check.ObjectMeta), err)
	}
}

// kindsOfRelease are those that a release has objects of.
var kindsOfRelease = []string{"admissionchecks.kueue.x-k8s.io", "admissiongates.dispatch.phpboyscout.uk", "deployments", "replicasets", "jobs", "pods", "services",
	"configmaps", "serviceaccounts", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "poddisruptionbudgets"}

// wantNothingBut sees that nothing is left of the release, some kinds aside.
func (s *site) wantNothingBut(aside ...string) {
	s.t.Helper()
	kinds := slices.DeleteFunc(slices.Clone(kindsOfRelease), func(kind string) bool { return slices.Contains(aside, kind) })
	s.eventually(30*time.Second, "nothing of the release is left", func() error {
		out, err := shared.cluster.Kubectl(s.t.Context(), "get", strings.Join(kinds, ","), "--all-namespaces", "-l", "app.kubernetes.io/instance="+s.release, "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = errors.New(out)
		}
		return err
	})
}

// open lets a stopped queue go on.
func (s *site) open() {
	s.t.Helper()
	s.kubectl("patch", "clusterqueue", s.queue, "--type=merge", "-p", `{"spec":{"stopPolicy":"None"}}`)
}

func (s *site) kubectl(args ...string) string {
	s.t.Helper()
	out, err := shared.cluster.Kubectl(s.t.Context(), args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// dispatchctl runs our command line as the administrator.
func (s *site) dispatchctl(args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), shared.programs+"/dispatchctl", append(args, "--kubeconfig", shared.cluster.Kubeconfig())...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("dispatchctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *site) eventually(within time.Duration, what string, try func() error) {
	s.t.Helper()
	if err := harness.Within(s.t.Context(), within, what, try); err != nil {
		s.tellPods()
		s.t.Fatal(err)
	}
}

// podLogs are what the pods of the release have said, those of the hooks too, by file.
type podLogs map[string]string

func (s *site) podLogs() podLogs {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(shared.cluster.Logs(cluster.PodRunner)), "pods", s.release+"_*.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	logs := podLogs{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			s.t.Error(err)
		}
		logs[filepath.Base(file)] = string(text)
	}
	return logs
}

// after is what was said later than before.
func (l podLogs) after(before podLogs) string {
	var b strings.Builder
	for _, file := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&b, "%s:\n%s\n", file, strings.TrimPrefix(l[file], before[file]))
	}
	return b.String()
}

// tellPods puts what the pods of the release have said into the log of the test.
func (s *site) tellPods() {
	s.t.Helper()
	s.t.Logf("the pods of the release said:\n%s", s.podLogs().after(nil))
}
