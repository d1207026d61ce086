package integration

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// TestForeignPatch: somebody changes the TrainJob between our read and our
// write. The write conflicts, and what they wrote stays.
func TestForeignPatch(t *testing.T) {
	q := newQueue(t, unique("check"))
	p := newProxy(t)
	held := p.hold(q.in(trainJobWrite))
	gate := startLeading(t, run{name: "gate", via: &p.endpoint})
	job := q.submit(dispatchName())
	held.await(t)
	foreign := client.RawPatch(types.ApplyPatchType, []byte(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"name":"`+job.Name+`","namespace":"`+q.name+`"},
		"spec":{"runtimePatches":[{"manager":"example.com/other","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"metadata":{"labels":{"example.com/kept":"yes"}}}}}}]}}}}]}}`))
	if err := shared.admin.Patch(t.Context(), job.DeepCopy(), foreign, client.FieldOwner("somebody"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	close(held.release)
	gate.await(10*time.Second, "level=INFO", "the trainjob changed before the admission count was raised")
	q.awaitStart(job, "1")
	for _, pod := range ofJob(job, q.pods.live()) {
		if pod.Labels["example.com/kept"] != "yes" {
			t.Errorf("pod %s lost what somebody else patched: %v", pod.Name, pod.Labels)
		}
	}
	gate.noNoise()
}

// TestFaultsOnEveryWrite: each write meets a conflict, a server error and an
// overloaded server once. Nothing is lost, and A rises once.
func TestFaultsOnEveryWrite(t *testing.T) {
	for name, code := range map[string]int{"conflict": http.StatusConflict, "error": http.StatusInternalServerError, "overload": http.StatusTooManyRequests} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, unique("check"))
			p := newProxy(t)
			p.fail(2, code, q.in(trainJobWrite))
			p.fail(2, code, q.in(checkWrite))
			startLeading(t, run{name: "gate", via: &p.endpoint})
			job := q.submit(dispatchName())
			q.awaitStart(job, "1")
			wantCount(t, job, "1")
		})
	}
}

// TestTrainerDown: Trainer's webhook does not answer, so the API server refuses
// every write to TrainJobs. The job waits, and starts when Trainer is back.
func TestTrainerDown(t *testing.T) {
	ours, theirs := unique("check"), unique("check")+"-foreign"
	q := newQueue(t, ours, theirs)
	// Nobody serves the check yet.
	activate(t, &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: ours}})
	job := q.submit(dispatchName())
	awaitWorkload(t, job, "has quota", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadQuotaReserved) })
	if err := shared.cluster.StopComponent(cluster.Trainer); err != nil {
		t.Fatal(err)
	}
	gate := startLeading(t, run{name: "gate"})
	gate.await(patience, "level=ERROR", "raising the admission count", job.Name)
	awaitWorkload(t, job, "says why it waits", func(wl *kueue.Workload) bool {
		return strings.Contains(checkOf(wl, ours).Message, "cannot be written for now")
	})
	if n := len(gate.find("level=ERROR")); n != 1 {
		t.Errorf("one fault was logged %d times", n)
	}
	if err := shared.cluster.StartComponent(t.Context(), cluster.Trainer); err != nil {
		t.Fatal(err)
	}
	awaitCheck(t, job, ours, kueue.CheckStateReady)
	answer(t, job, theirs, kueue.CheckStateReady)
	q.awaitStart(job, "1")
}

// TestChecksStatusForbidden: without the right to update the status of checks a
// full pass fails and says so; the watches serve the check all the same.
func TestChecksStatusForbidden(t *testing.T) {
	name := unique("limited")
	limitedAccount(t, name, "admissionchecks/status")
	check := unique("check")
	q := newQueue(t, check)
	activate(t, &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: check}})
	gate := startLeading(t, run{name: "gate", account: name, flags: []string{"-resync=1s"}})
	gate.await(patience, "level=ERROR", `msg="full pass"`, "admissionchecks")
	job := q.submit(dispatchName())
	q.awaitStart(job, "1")
}

// TestTrainJobsForbidden: without the right to patch TrainJobs the job waits and
// the check says why.
func TestTrainJobsForbidden(t *testing.T) {
	name := unique("limited")
	limitedAccount(t, name, "trainjobs")
	check := unique("check")
	q := newQueue(t, check)
	startLeading(t, run{name: "gate", account: name})
	job := q.submit(dispatchName())
	awaitWorkload(t, job, "says why it waits", func(wl *kueue.Workload) bool {
		c := checkOf(wl, check)
		return c.State == kueue.CheckStatePending && strings.Contains(c.Message, `cannot patch resource "trainjobs"`)
	})
	wantCount(t, job, "")
}

// limitedAccount makes a ServiceAccount with the product's rights but those to
// write one resource.
func limitedAccount(t *testing.T, name, without string) {
	t.Helper()
	var role rbacv1.ClusterRole
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: release}, &role); err != nil {
		t.Fatal(err)
	}
	var rules []rbacv1.PolicyRule
	for _, r := range role.Rules {
		if slices.Contains(r.Resources, without) {
			reading := r
			reading.Resources = []string{without}
			reading.Verbs = slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == "patch" || v == "update" })
			r.Resources = slices.DeleteFunc(slices.Clone(r.Resources), func(resource string) bool { return resource == without })
			rules = append(rules, reading)
		}
		rules = append(rules, r)
	}
	rules = slices.DeleteFunc(rules, func(r rbacv1.PolicyRule) bool { return len(r.Resources) == 0 || len(r.Verbs) == 0 })
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}
	at := metav1.ObjectMeta{Name: name, Namespace: namespace}
	create(t, &corev1.ServiceAccount{ObjectMeta: at})
	create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
	create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}})
	var bindings rbacv1.RoleBindingList
	if err := shared.admin.List(t.Context(), &bindings, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings.Items {
		create(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + b.Name, Namespace: namespace}, Subjects: subject, RoleRef: b.RoleRef})
	}
}

// TestParameters: a check with parameters that this version does not know is not
// active, so Kueue stops reserving quota; without them it is active at once. The
// queue and the job are the documentation's example.
func TestParameters(t *testing.T) {
	const name = "dispatch-admission"
	gate := startLeading(t, run{name: "gate"})
	example, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "examples", "gated-queue.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	newCheckWith(t, name, &kueue.AdmissionCheckParametersReference{APIGroup: "dispatch.phpboyscout.uk", Kind: "AdmissionGate", Name: "policy"})
	awaitActive(t, name, metav1.ConditionFalse, "BadParameters")
	gate.await(patience, "level=WARN", "the check cannot be served", "spec.parameters")
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"parameters":null}}`))
	check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := shared.admin.Patch(t.Context(), check, patch); err != nil {
		t.Fatal(err)
	}
	awaitActive(t, name, metav1.ConditionTrue, "ControllerStarted")
	t.Cleanup(func() {
		if _, err := shared.cluster.Kubectl(context.Background(), "delete", "--wait=false", "-f", filepath.Join(harness.Root(), "docs", "examples", "gated-queue.yaml"), "--ignore-not-found"); err != nil {
			t.Log(err)
		}
	})
	if err := shared.cluster.Apply(t.Context(), string(example)); err != nil {
		t.Fatal(err)
	}
	job := &trainer.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "dj-01jdem00000000000000000000-s1", Namespace: "research"}}
	awaitCount(t, job, "1")
}

// TestOwnerGone: Workloads whose TrainJob does not exist, or is another one of
// the same name, are left alone, until Kueue finishes them. The garbage collector,
// which would delete them at once, is out meanwhile.
func TestOwnerGone(t *testing.T) {
	check := unique("check")
	q := newQueue(t, check)
	q.setQuota("8")
	namesake := q.trainJob(dispatchName())
	delete(namesake.Labels, "kueue.x-k8s.io/queue-name")
	suspend := true
	namesake.Spec.Suspend = &suspend
	create(t, namesake)
	if err := shared.cluster.StopComponent(cluster.ControllerManager); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.cluster.StartComponent(context.Background(), cluster.ControllerManager); err != nil {
			t.Error(err)
		}
	})
	gate := startLeading(t, run{name: "gate", flags: []string{"-resync=1s"}})
	mark := auditMark(t)
	for name, owner := range map[string]string{"missing": dispatchName(), "replaced": namesake.Name} {
		wl := ownedWorkload(q.name, name, owner)
		create(t, wl)
		eventually(t, patience, "the gate says so, or Kueue has finished the workload first", func() error {
			if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(wl), wl); err != nil {
				return err
			}
			said := len(gate.find("level=INFO", "the trainjob of the workload does not exist", q.name+"/"+name)) > 0
			if !said && !has(wl, kueue.WorkloadFinished) {
				return errors.New(describeWorkload(wl))
			}
			return nil
		})
		t.Logf("%s: %s", name, describeWorkload(wl))
	}
	if writes := audit(t, mark, func(r request) bool { return r.own() && r.Writes() && r.ObjectRef.Namespace == q.name }); len(writes) != 0 {
		t.Errorf("the gate wrote: %v", writes)
	}
	gate.noNoise()
}

// TestBadCount: an A that somebody spoilt is not guessed at. The job waits, the
// check says what to do, and the job starts once it is done.
func TestBadCount(t *testing.T) {
	check := unique("check")
	q := newQueue(t, check)
	startLeading(t, run{name: "gate"})
	job := q.submit(dispatchName())
	q.awaitStart(job, "1")
	setActive(t, job, false)
	awaitWorkload(t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	setCount(t, job, "one")
	setActive(t, job, true)
	awaitWorkload(t, job, "says what is wrong", func(wl *kueue.Workload) bool {
		return strings.Contains(checkOf(wl, check).Message, `is "one", not a positive integer`)
	})
	setCount(t, job, "7")
	q.awaitStart(job, "8")
}

func setCount(t *testing.T, job client.Object, count string) {
	t.Helper()
	eventually(t, patience, "the count is set by hand", func() error {
		var got trainer.TrainJob
		if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(job), &got); err != nil {
			return err
		}
		for _, p := range got.Spec.RuntimePatches {
			if p.Manager == "dispatch.phpboyscout.uk/admission" {
				p.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Metadata.Annotations["dispatch.phpboyscout.uk/admission-count"] = count
			}
		}
		return shared.admin.Update(t.Context(), &got)
	})
}

// TestUngated: nobody takes a stale answer back, because no gate runs. Kueue
// starts the job on it. The next leader tells.
func TestUngated(t *testing.T) {
	ours, theirs := unique("check"), unique("check")+"-foreign"
	q := newQueue(t, ours, theirs)
	first := startLeading(t, run{name: "first", flags: brisk})
	job := q.submit(dispatchName())
	awaitCheck(t, job, ours, kueue.CheckStateReady)
	first.kill()
	q.startsOnStaleAnswer(job, theirs)

	next := startLeading(t, run{name: "next", flags: brisk})
	next.await(patience, "level=ERROR", "ungated admission", job.Name)
	eventually(t, patience, "events tell", func() error {
		if !told(t, job) {
			return errNotYet
		}
		return nil
	})
	if n := len(next.find("ungated admission")); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// startsOnStaleAnswer has a job whose check is Ready lose its quota and get it again
// while no gate runs, and started once the other check is Ready too.
func (q *queue) startsOnStaleAnswer(job client.Object, theirs string) {
	q.t.Helper()
	q.setStopPolicy(kueue.Hold)
	awaitWorkload(q.t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	// Times have a resolution of one second, and without a gate nobody sees more.
	time.Sleep(1100 * time.Millisecond)
	q.setStopPolicy(kueue.None)
	awaitWorkload(q.t, job, "has quota again", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadQuotaReserved) })
	answer(q.t, job, theirs, kueue.CheckStateReady)
	q.awaitStart(job, "1")
}

// told tells whether events on a TrainJob and on its Workload tell of an ungated
// start.
func told(t *testing.T, job client.Object) bool {
	t.Helper()
	var events corev1.EventList
	if err := shared.admin.List(t.Context(), &events, client.InNamespace(job.GetNamespace())); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, e := range events.Items {
		if e.Reason == "UngatedAdmission" && e.Type == corev1.EventTypeWarning && strings.Contains(e.InvolvedObject.Name, job.GetName()) {
			kinds[e.InvolvedObject.Kind] = true
		}
	}
	return kinds["TrainJob"] && kinds["Workload"]
}

// TestBadFlags: each mistake exits non-zero with one line that names it.
func TestBadFlags(t *testing.T) {
	good := shared.cluster.Kubeconfig()
	notAKubeconfig := t.TempDir() + "/kubeconfig"
	if err := os.WriteFile(notAKubeconfig, []byte("{nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	nobody := t.TempDir() + "/kubeconfig"
	if err := os.WriteFile(nobody, []byte(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		args []string
		env  []string
		code int
		want []string
	}{
		"unknown flag":         {[]string{"-nonsense"}, nil, 2, []string{"-nonsense"}},
		"two dashes":           {[]string{"--nonsense"}, nil, 2, []string{"-nonsense"}},
		"bad duration":         {[]string{"-resync=soon"}, nil, 2, []string{"-resync", `"soon"`}},
		"no resync":            {[]string{"-resync=0s"}, nil, 2, []string{"-resync", "greater than 0"}},
		"negative resync":      {[]string{"-resync=-1m"}, nil, 2, []string{"-resync"}},
		"deadline over lease":  {[]string{"-renew-deadline=15s"}, nil, 2, []string{"-lease-duration", "-renew-deadline"}},
		"retry over deadline":  {[]string{"-retry-period=9s"}, nil, 2, []string{"-renew-deadline", "-retry-period"}},
		"no retry":             {[]string{"-retry-period=0"}, nil, 2, []string{"-retry-period"}},
		"no workers":           {[]string{"-workers=0"}, nil, 2, []string{"-workers"}},
		"workers in words":     {[]string{"-workers=many"}, nil, 2, []string{"-workers"}},
		"no qps":               {[]string{"-kube-api-qps=0"}, nil, 2, []string{"-kube-api-qps"}},
		"qps is no number":     {[]string{"-kube-api-qps=NaN"}, nil, 2, []string{"-kube-api-qps"}},
		"no burst":             {[]string{"-kube-api-burst=0"}, nil, 2, []string{"-kube-api-burst"}},
		"bad address":          {[]string{"-metrics-bind-address=8080"}, nil, 2, []string{"-metrics-bind-address", "host:port"}},
		"bad port":             {[]string{"-health-probe-bind-address=:99999"}, nil, 2, []string{"-health-probe-bind-address", "65535"}},
		"bad level":            {[]string{"-log-level=loud"}, nil, 2, []string{"-log-level", "debug, info, warn, error"}},
		"bad format":           {[]string{"-log-format=xml"}, nil, 2, []string{"-log-format", "text or json"}},
		"bad namespace":        {[]string{"-lease-namespace=A"}, nil, 2, []string{"-lease-namespace"}},
		"no lease name":        {[]string{"-lease-name="}, nil, 2, []string{"-lease-name"}},
		"stray argument":       {[]string{"-workers=2", "run"}, nil, 2, []string{`"run"`}},
		"boolean with a value": {[]string{"-in-cluster", "false"}, nil, 2, []string{`"false"`}},
		"in-cluster and file":  {[]string{"-in-cluster", "-kubeconfig=" + good}, nil, 2, []string{"-in-cluster", "-kubeconfig"}},
		"in-cluster, context":  {[]string{"-in-cluster", "-context=c"}, nil, 2, []string{"-in-cluster", "-context"}},
		"not in a cluster":     {[]string{"-in-cluster"}, nil, 1, []string{"-in-cluster"}},
		"no configuration":     {nil, nil, 1, []string{"-kubeconfig", "$KUBECONFIG"}},
		"missing kubeconfig":   {[]string{"-kubeconfig=/nowhere/config"}, nil, 1, []string{"/nowhere/config"}},
		"missing $KUBECONFIG":  {nil, []string{"KUBECONFIG=/nowhere/config"}, 1, []string{"$KUBECONFIG", "/nowhere/config"}},
		"not a kubeconfig":     {[]string{"-kubeconfig=" + notAKubeconfig}, nil, 1, []string{notAKubeconfig}},
		"unknown context":      {[]string{"-kubeconfig=" + good, "-context=nowhere"}, nil, 1, []string{"nowhere"}},
		"unreachable":          {[]string{"-kubeconfig=" + nobody}, nil, 1, []string{"https://127.0.0.1:1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"HOME=" + t.TempDir()}, tc.env...), tc.args...)
			if code != tc.code || stdout != "" {
				t.Errorf("exit code %d, want %d; standard output %q", code, tc.code, stdout)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "dispatch-admission: ") {
				t.Errorf("want one line of the program, got %q", stderr)
			}
			for _, w := range tc.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("%q does not name %q", stderr, w)
				}
			}
		})
	}
}

func TestVersionAndHelp(t *testing.T) {
	code, stdout, stderr := execute(t, nil, "-version")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "go1.") || !strings.Contains(stdout, "commit") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, nil, "--help")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "-lease-duration") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
}
