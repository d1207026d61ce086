package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// The release, as docs/operate.md installs it.
const (
	release   = "dispatch-admission"
	namespace = "dispatch-system"
)

// unfencedCheck is a check of the release's controller that does not wait for pods.
const unfencedCheck = `
apiVersion: dispatch.phpboyscout.uk/v1alpha1
kind: AdmissionGate
metadata: {name: unfenced}
spec: {readmission: {waitForPods: false}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: unfenced}
spec:
  controllerName: dispatch.phpboyscout.uk/admission
  parameters: {apiGroup: dispatch.phpboyscout.uk, kind: AdmissionGate, name: unfenced}
`

// TestRelease takes one release from its install to its end. Each step needs the
// one before.
func TestRelease(t *testing.T) {
	if shared.missing != nil {
		t.Skip("NOT TESTED:", shared.missing)
	}
	t.Cleanup(func() {
		if t.Failed() {
			tell(t)
		}
	})
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Install", installs},
		{"Restarts", restarts},
		{"AdapterHangs", adapterHangs},
		{"Faults", survivesFaults},
		{"AdapterApart", adapterApart},
		{"Rights", nothingDenied}, // while it has them: an uninstall takes them from pods that still end
		{"Uninstall", uninstalls},
	} {
		if !t.Run(step.name, step.run) {
			return
		}
	}
}

// installs: with default values everything gets ready as real pods under the rights
// of the chart, which their namespace restricts.
func installs(t *testing.T) {
	helm(t, "install", "--timeout=2m")
	kubectl(t, "rollout", "status", "deployment/"+release, "-n", namespace, "--timeout=90s")
	helm(t, "test", "--timeout=1m")
	var d appsv1.Deployment
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: release}, &d); err != nil {
		t.Fatal(err)
	}
	if d.Status.ReadyReplicas != 2 {
		t.Errorf("%d replicas are ready, want 2", d.Status.ReadyReplicas)
	}
	for _, pod := range replicas(t) {
		if s := pod.Status.InitContainerStatuses; len(s) != 1 || s[0].Name != "adapter" || !s[0].Ready {
			t.Errorf("the sidecar of %s is %s", pod.Name, harness.Show(s))
		}
	}
	for _, queue := range []string{"training", "fenced"} {
		wantChecks(t, queue, release)
	}
}

// restarts: a job that a more urgent one evicts begins again with another admission
// count, and while the pods of the first start end only where the gate does not wait
// for them.
func restarts(t *testing.T) {
	if err := shared.client.Apply(t.Context(), unfencedCheck); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "wait", "--for=condition=Active", "admissioncheck/unfenced", "--timeout=60s")
	kubectl(t, "patch", "clusterqueue", "unfenced", "--type=merge", "-p", `{"spec":{"admissionChecksStrategy":{"admissionChecks":[{"name":"unfenced"}]}}}`)
	kubectl(t, "wait", "--for=condition=Active", "clusterqueue/unfenced", "--timeout=60s")
	for queue, overlap := range map[string]bool{"fenced": false, "unfenced": true} {
		t.Run(queue, func(t *testing.T) {
			t.Parallel()
			restartsOnce(t, queue, overlap)
		})
	}
}

func restartsOnce(t *testing.T, queue string, overlap bool) {
	t.Helper()
	pods := follow(t, queue)
	job := submit(t, queue, "slow-to-end", "low")
	first := runs(t, job, 2)
	for _, pod := range first {
		if said := kubectl(t, "logs", "-n", queue, pod.Name); said != "admission count 1\n" {
			t.Errorf("a container of the first start says %q", said)
		}
	}
	completes(t, submit(t, queue, "short", "high"))
	if overlap {
		begins(t, job, "2")
	} else {
		checkMessage(t, job, "Waiting for the pods of an earlier start to end: 2 pods of the start with admission count 1")
	}
	for _, pod := range first { // told again, they end at once
		if err := shared.SignalContainer(t.Context(), pod.Status.ContainerStatuses[0].ContainerID, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	completes(t, job)
	all := starts(pods.records(t, job))
	if len(all) != 2 || len(all["1"]) != 2 || len(all["2"]) != 2 {
		t.Fatalf("the starts are %v, want two of two pods each", all)
	}
	ended := slices.MaxFunc(all["1"], func(a, b record) int { return a.End.Compare(b.End) }).End
	began := slices.MinFunc(all["2"], func(a, b record) int { return a.Begin.Compare(b.Begin) }).Begin
	t.Logf("the second start began %s after the first had ended", began.Sub(ended).Round(time.Millisecond))
	if began.Before(ended) != overlap {
		t.Errorf("the starts overlap: %v, want %v", !overlap, overlap)
	}
}

// adapterHangs: while the adapter of the leader hangs, jobs are held and the check
// says so; when it has been restarted they start.
func adapterHangs(t *testing.T) {
	pod := leader(t)
	adapter := pod.Status.InitContainerStatuses[0]
	signal := func(sig syscall.Signal) {
		t.Helper()
		if err := shared.SignalContainer(t.Context(), adapter.ContainerID, sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	job := submit(t, "training", "short", "low")
	checkMessage(t, job, "no verdict")
	if pods, err := podsOf(t.Context(), job); err != nil || len(pods) > 0 {
		t.Errorf("the job has %d pods while nobody answers for it (%v)", len(pods), err)
	}
	signal(syscall.SIGKILL)
	completes(t, job)
	if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	if n := pod.Status.InitContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("the adapter was restarted %d times, want once", n)
	}
	if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the controller beside it was restarted %d times", n)
	}
}

// survivesFaults: in a stream of short jobs the leader goes, then containerd, then
// every replica for an upgrade, and every tenth job is evicted while it runs. No job is
// lost, and no start is without an admission count of its own.
func survivesFaults(t *testing.T) {
	const (
		least = 50 // jobs
		pace  = 2500 * time.Millisecond
	)
	pods := follow(t, "training")
	done := make(chan error, 1)
	first := leader(t)
	go func() { done <- faults(t.Context(), first) }()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	var jobs []*trainer.TrainJob
	var evictions sync.WaitGroup
	defer evictions.Wait()
	twice := func(i int) bool { return i%10 == 9 }
	for ended := false; !ended || len(jobs) < least; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("all faults have happened while %d jobs came", len(jobs))
			ended = true
		case <-ticker.C:
			if !twice(len(jobs)) {
				jobs = append(jobs, submit(t, "training", "short", "low"))
				continue
			}
			job := submit(t, "training", "needs-two", "low")
			jobs = append(jobs, job)
			evictions.Go(func() {
				if err := evictOnce(t.Context(), job); err != nil {
					t.Error(err)
				}
			})
		}
	}
	evictions.Wait()
	for i, job := range jobs {
		completes(t, job)
		all := starts(pods.records(t, job))
		for count, of := range all {
			if len(of) != 1 {
				t.Errorf("%d pods of %s have the admission count %s: %v", len(of), job.Name, count, of)
			}
		}
		if len(all["1"]) == 0 || len(all[""]) > 0 || twice(i) && len(all) < 2 {
			t.Errorf("%s has the starts %v", job.Name, all)
		}
	}
	t.Logf("%d jobs ran", len(jobs))
}

// evictOnce has a job evicted when its first start runs, and queued again.
func evictOnce(ctx context.Context, job *trainer.TrainJob) error {
	var wl *kueue.Workload
	look := func(what string, ok func() bool) error {
		return within(ctx, job.Name+" "+what, func() (err error) {
			if wl, err = workloadOf(ctx, job); err == nil && !ok() {
				err = errors.New(harness.Show(wl.Status))
			}
			return err
		})
	}
	activate := func(yes bool) error {
		return shared.admin.Patch(ctx, wl, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"active":%t}}`, yes)))
	}
	is := func(condition string) bool { return meta.IsStatusConditionTrue(wl.Status.Conditions, condition) }
	if err := look("runs", func() bool { return is(kueue.WorkloadPodsReady) && is(kueue.WorkloadAdmitted) }); err != nil {
		return err
	}
	if err := activate(false); err != nil {
		return err
	}
	if err := look("is evicted", func() bool { return is(kueue.WorkloadEvicted) && !is(kueue.WorkloadQuotaReserved) }); err != nil {
		return err
	}
	return activate(true)
}

// faults are what happens to the release while jobs come.
func faults(ctx context.Context, first *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	if err := shared.admin.Delete(ctx, first); err != nil {
		return fmt.Errorf("delete the leader: %w", err)
	}
	if _, err := shared.client.Run(ctx, "rollout", "status", "deployment/"+release, "-n", namespace, "--timeout=90s"); err != nil {
		return err
	}
	if err := within(ctx, "another replica leads", func() error {
		pod, err := findLeader(ctx)
		if err == nil && pod.UID == first.UID {
			err = errors.New("the Lease is held by the one that was deleted")
		}
		return err
	}); err != nil {
		return err
	}
	if err := shared.RestartContainerd(ctx); err != nil {
		return err
	}
	before, err := podsLabelled(ctx, controllerLabel)
	if err != nil {
		return err
	}
	if _, err := runHelm(ctx, "upgrade", "--set=log.level=debug", "--wait", "--timeout=5m"); err != nil {
		return err
	}
	return within(ctx, "the upgrade has replaced every replica", func() error {
		after, err := podsLabelled(ctx, controllerLabel)
		for _, pod := range after {
			if slices.ContainsFunc(before, func(old corev1.Pod) bool { return old.UID == pod.UID }) {
				return fmt.Errorf("%s is there still", pod.Name)
			}
		}
		return err
	})
}

// adapterApart: an upgrade gives the adapter pods of its own, which the controller
// asks through their Service, with certificates on both sides.
func adapterApart(t *testing.T) {
	const server, client = "hook-server", "hook-client"
	service := release + "-adapter." + namespace + ".svc"
	certs, err := harness.NewCertificates(service)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]map[string][]byte{
		server: {corev1.TLSCertKey: certs.Server.Cert, corev1.TLSPrivateKeyKey: certs.Server.Key, corev1.ServiceAccountRootCAKey: certs.CA},
		client: {corev1.TLSCertKey: certs.Client.Cert, corev1.TLSPrivateKeyKey: certs.Client.Key},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS, Data: data}
		if err := shared.admin.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	helm(t, "upgrade", "--wait", "--timeout=2m", "--set=adapter.mode=Deployment", "--set=adapter.tls.source=Secrets",
		"--set=adapter.tls.serverSecret="+server, "--set=adapter.tls.clientSecret="+client,
		"--set-string=adapter.tls.caBundle="+base64.StdEncoding.EncodeToString(certs.CA),
		`--set-json=adapter.policy={"rules":[{"name":"team","admit":{"labels":{"team":"request.tenantID"}}}]}`)
	helm(t, "test", "--timeout=1m")
	for _, pod := range replicas(t) {
		if n := len(pod.Spec.InitContainers); n > 0 && pod.DeletionTimestamp == nil {
			t.Errorf("%s still has a sidecar", pod.Name)
		}
	}
	job := submit(t, "training", "short", "low")
	completes(t, job)
	pods, err := podsOf(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 1 || pods[0].Labels["team"] != "training" {
		t.Errorf("the pods of the job are %s, want one with the label that the adapter adds", harness.Show(pods))
	}
}

// uninstalls: jobs that run go on, and nothing starts any more.
func uninstalls(t *testing.T) {
	job := submit(t, "training", "long", "low")
	before := runs(t, job, 1)
	helm(t, "uninstall", "--timeout=3m")
	wantChecks(t, "training")
	wantChecks(t, "fenced")
	var cq kueue.ClusterQueue
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: "training"}, &cq); err != nil {
		t.Fatal(err)
	}
	if p := cq.Spec.StopPolicy; p == nil || *p != kueue.Hold {
		t.Errorf("the stop policy is %s, want Hold", harness.Show(p))
	}
	after := runs(t, job, 1)
	if after[0].UID != before[0].UID || after[0].DeletionTimestamp != nil || after[0].Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("the pod that ran was disturbed: %s", harness.Show(after[0].Status))
	}
	eventually(t, "nothing of the release runs", func() error {
		left, err := podsLabelled(t.Context(), client.MatchingLabels{"app.kubernetes.io/instance": release})
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d pods are left, %s among them", len(left), left[0].Name)
		}
		return err
	})
}

var controllerLabel = client.MatchingLabels{"app.kubernetes.io/component": "controller"}

// podsLabelled lists pods of the release.
func podsLabelled(ctx context.Context, labels client.MatchingLabels) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := shared.admin.List(ctx, &list, client.InNamespace(namespace), labels)
	return list.Items, err
}

// replicas lists the pods of the controller.
func replicas(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := podsLabelled(t.Context(), controllerLabel)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// leader waits until one of the replicas leads.
func leader(t *testing.T) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	eventually(t, "a replica leads", func() (err error) {
		found, err = findLeader(t.Context())
		return err
	})
	return found
}

func findLeader(ctx context.Context) (*corev1.Pod, error) {
	var lease coordinationv1.Lease
	if err := shared.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: release}, &lease); err != nil {
		return nil, err
	}
	if lease.Spec.HolderIdentity == nil {
		return nil, errors.New("nobody holds the Lease")
	}
	pods, err := podsLabelled(ctx, controllerLabel)
	for i := range pods {
		if strings.HasPrefix(*lease.Spec.HolderIdentity, pods[i].Name+"_") {
			return &pods[i], nil
		}
	}
	return nil, errors.Join(err, fmt.Errorf("the Lease is held by %s", *lease.Spec.HolderIdentity))
}

// wantChecks sees which checks a queue names, and that it is active unless it was stopped.
func wantChecks(t *testing.T, queue string, want ...string) {
	t.Helper()
	var cq kueue.ClusterQueue
	eventually(t, "the queue "+queue+" is active or stopped", func() error {
		if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: queue}, &cq); err != nil {
			return err
		}
		stopped := cq.Spec.StopPolicy != nil && *cq.Spec.StopPolicy != kueue.None
		if !stopped && !meta.IsStatusConditionTrue(cq.Status.Conditions, kueue.ClusterQueueActive) {
			return fmt.Errorf("its conditions are %s", harness.Show(cq.Status.Conditions))
		}
		return nil
	})
	var got []string
	if cq.Spec.AdmissionChecksStrategy != nil {
		for _, rule := range cq.Spec.AdmissionChecksStrategy.AdmissionChecks {
			got = append(got, string(rule.Name))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the queue %s names the checks %q, want %q", queue, got, want)
	}
}

// runHelm runs Helm on the release, with default values but for image and queues.
func runHelm(ctx context.Context, verb string, args ...string) (string, error) {
	all := []string{verb, release}
	if verb == "install" || verb == "upgrade" {
		all = append(all, filepath.Join(harness.Root(), "charts", "dispatch-admission"), "--set=image.tag="+tag, "--set=clusterQueues.attach.names={training,fenced}")
	}
	all = append(append(all, args...), "--namespace", namespace, "--kubeconfig", shared.Kubeconfig())
	out, err := exec.CommandContext(ctx, shared.tools.Bin("helm"), all...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("helm %s: %w: %s", strings.Join(all, " "), err, out)
	}
	return string(out), err
}

func helm(t *testing.T, verb string, args ...string) {
	t.Helper()
	if _, err := runHelm(t.Context(), verb, args...); err != nil {
		t.Fatal(err)
	}
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := shared.client.Run(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tell puts what there is to see of a failure into the log of the test.
func tell(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "nodes,pods,jobs,workloads,clusterqueues,admissionchecks", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"logs", "-n", namespace, "-l", "app.kubernetes.io/instance=" + release, "--all-containers", "--tail=40", "--prefix"},
	} {
		out, err := shared.client.Run(context.WithoutCancel(t.Context()), args...)
		t.Logf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
