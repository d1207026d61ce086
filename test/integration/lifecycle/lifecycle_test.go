package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// TestWholeLife takes a release from its first day to its last, with jobs that run
// and jobs that wait all the time, for each policy of its end.
func TestWholeLife(t *testing.T) {
	eachHelm(t, func(t *testing.T, helm string) {
		for policy, end := range map[string]func(*site, *batchv1.Job){
			"HoldAndDetach": (*site).endsHeld, "Detach": (*site).endsDetached, "Refuse": (*site).endsRefused,
		} {
			t.Run(policy, func(t *testing.T) {
				s := newSite(t, helm)
				s.set(policy, "clusterQueues", "onUninstall")
				before := s.running()
				s.install()
				s.wantWired(true)
				s.stillRuns(before) // it was there before the gate
				s.run("test", "--timeout=1m")
				waits := s.held()
				s.gated()

				s.set("debug", "log", "level")
				s.run("upgrade", "--wait", "--timeout=2m")
				s.wantWired(true)
				s.neverRan(waits)
				held := s.held() // for a short time only, so that it is offered again soon

				s.set([]any{}, "adapter", "policy", "rules")
				s.run("upgrade", "--wait", "--timeout=2m")
				s.awaitRunning(held)

				s.run("rollback", "2", "--wait", "--timeout=2m")
				s.set([]any{holdLabelled}, "adapter", "policy", "rules") // for upgrades after it
				s.wantWired(true)
				waits = s.held()
				s.stillRuns(before)

				end(s, waits)
				s.stillRuns(before)
				s.stillRuns(held)
				s.wantNothingLeft()
			})
		}
	})
}

// gated starts a TrainJob of dispatch and sees that its start was counted.
func (s *site) gated() {
	s.t.Helper()
	job := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Name: "dj-01jz0000000000000000000000-s1", Namespace: s.queue, Labels: map[string]string{"kueue.x-k8s.io/queue-name": "lq"}},
		Spec:       trainer.TrainJobSpec{RuntimeRef: trainer.RuntimeRef{Name: "two-nodes"}},
	}
	s.create(job)
	s.awaitRunning(job)
	s.eventually(20*time.Second, "the pods of the first start carry A = 1", func() error {
		out, err := shared.cluster.Kubectl(s.t.Context(), "get", "pods", "-n", s.queue, "-l", "jobset.sigs.k8s.io/jobset-name="+job.Name,
			"-o", `jsonpath={range .items[*]}{.metadata.annotations.dispatch\.phpboyscout\.uk/admission-count}{" "}{end}`)
		if err == nil && strings.TrimSpace(out) != "1 1" {
			err = fmt.Errorf("they carry %q", out)
		}
		return err
	})
	if err := shared.admin.Delete(s.t.Context(), job); err != nil {
		s.t.Fatal(err)
	}
}

// endsHeld: nothing starts ungated; the queue is left stopped and goes on when opened.
func (s *site) endsHeld(waits *batchv1.Job) {
	s.t.Helper()
	out := s.run("uninstall", "--timeout=3m")
	s.wantWired(false)
	if p := s.clusterQueue().Spec.StopPolicy; p == nil || *p != kueue.Hold {
		s.t.Errorf("the stop policy of the queue is %s, want Hold", harness.Show(p))
	}
	if said := out + s.podLogs().after(nil); !strings.Contains(said, "kubectl patch clusterqueue "+s.queue) {
		s.t.Errorf("nothing says how to open the queue:\n%s", said)
	}
	s.neverRan(waits)
	s.open()
	s.awaitRunning(waits)
}

// endsDetached: what waited starts at once.
func (s *site) endsDetached(waits *batchv1.Job) {
	s.t.Helper()
	s.run("uninstall", "--timeout=3m")
	s.wantWired(false)
	if p := s.clusterQueue().Spec.StopPolicy; p != nil && *p != kueue.None {
		s.t.Errorf("the stop policy of the queue is %s, want None", *p)
	}
	s.awaitRunning(waits)
}

// endsRefused: nothing is removed while a queue names the check, and who would rather
// keep the release gets it back as it was.
func (s *site) endsRefused(waits *batchv1.Job) {
	s.t.Helper()
	s.refused("dispatchctl queues detach "+s.queue, "uninstall", "--timeout=2m")
	s.wantWired(true)
	s.neverRan(waits)
	s.dispatchctl("queues", "detach", s.queue, "--check", s.release, "--hold-first")
	s.run("rollback", "4", "--wait", "--timeout=2m")
	if !s.wired() {
		s.t.Error("after a rollback the queue does not name the check")
	}
	s.kubectl("patch", "clusterqueue", s.queue, "--type=merge", "-p", `{"spec":{"stopPolicy":"None"}}`)
	s.run("upgrade", "--wait", "--timeout=2m") // which a release that is half uninstalled does not take
	s.wantWired(true)
	s.neverRan(waits)
	s.dispatchctl("queues", "detach", s.queue, "--check", s.release, "--hold-first")
	s.run("uninstall", "--timeout=3m")
	s.wantWired(false)
	s.neverRan(waits)
}

// TestMisspelledQueue: the install fails and says why, and what is left of it can be
// removed.
func TestMisspelledQueue(t *testing.T) {
	eachHelm(t, func(t *testing.T, helm string) {
		s := newSite(t, helm)
		s.cleanUp()
		s.set([]any{s.queue + "x"}, "clusterQueues", "attach", "names")
		s.refused(`"`+s.queue+`x" not found`, "install", "--wait", "--timeout=2m")
		s.run("uninstall", "--timeout=3m")
		s.wantNothingBut("jobs", "pods") // the Job that failed stays for its log
		s.refused(`"`+s.queue+`x" not found`, "install", "--wait", "--timeout=2m")
		s.wantWired(false)
		job := s.running() // nobody gates it
		s.set([]any{s.queue}, "clusterQueues", "attach", "names")
		s.run("upgrade", "--wait", "--timeout=2m")
		s.wantWired(true)
		s.stillRuns(job)
		s.run("uninstall", "--timeout=3m")
		s.wantNothingLeft()
	})
}

// TestHalfFailedInstall: a release whose pods never came up can be removed.
func TestHalfFailedInstall(t *testing.T) {
	eachHelm(t, func(t *testing.T, helm string) {
		s := newSite(t, helm)
		s.cleanUp()
		s.set([]any{"-no-such-flag"}, "controller", "extraArgs")
		if _, err := s.try("install", "--wait", "--timeout=15s"); err == nil {
			t.Fatal("an install whose controller cannot start went through")
		}
		s.wantWired(false)
		s.run("uninstall", "--timeout=3m")
		s.wantNothingLeft()
	})
}

// TestTwoReleases: there is one in a cluster, and the next is told of it before it
// touches anything.
func TestTwoReleases(t *testing.T) {
	eachHelm(t, func(t *testing.T, helm string) {
		first, second := newSite(t, helm), newSite(t, helm)
		first.install()
		second.cleanUp()
		second.refused("the release "+first.release+" in namespace "+first.release+" serves every AdmissionCheck of ours", "install")
		second.wantWired(false)
		first.wantWired(true)
		first.run("upgrade") // its own does not stand in its way
		first.run("uninstall", "--timeout=3m")
		second.install()
		second.run("uninstall", "--timeout=3m")
		second.wantNothingLeft()
	})
}

// TestRename: a check of another name takes the place of the old one, and the old one
// does not go while a queue names it.
func TestRename(t *testing.T) {
	eachHelm(t, func(t *testing.T, helm string) {
		s := newSite(t, helm)
		s.install()
		old, next := map[string]any{"name": s.release}, map[string]any{"name": s.release + "-next"}
		s.set([]any{next}, "admissionChecks")
		s.refused(fmt.Sprintf("dispatchctl queues detach %s --check %s", s.queue, s.release), "upgrade")
		s.wantWired(true)
		s.set([]any{old, next}, "admissionChecks")
		s.run("upgrade", "--wait", "--timeout=2m")
		s.dispatchctl("queues", "detach", "--all", "--check", s.release)
		s.set([]any{next}, "admissionChecks")
		s.run("upgrade", "--wait", "--timeout=2m")
		s.wantWired(false) // by the old one
		if checks := s.clusterQueue().Spec.AdmissionChecksStrategy; checks == nil || len(checks.AdmissionChecks) != 1 {
			t.Errorf("the queue names %s, want the new check alone", harness.Show(checks))
		}
		s.run("uninstall", "--timeout=3m")
		s.wantNothingLeft()
	})
}

// TestOwnerReapplies: who re-applies a queue without our entry is told of it, and in
// the mode Controller the entry comes back.
func TestOwnerReapplies(t *testing.T) {
	for mode, back := range map[string]bool{"Job": false, "Controller": true} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t, shared.cluster.Bin("helm"))
			s.set(mode, "clusterQueues", "attach", "mode")
			if back { // and a queue is known by its labels
				s.kubectl("label", "clusterqueue", s.queue, "team="+s.queue)
				s.set([]any{}, "clusterQueues", "attach", "names")
				s.set("team="+s.queue, "clusterQueues", "attach", "selector")
			}
			s.install()
			s.wantWired(true)
			s.kubectl("patch", "clusterqueue", s.queue, "--type=merge", "-p", `{"spec":{"admissionChecksStrategy":null}}`)
			s.eventually(30*time.Second, "it is told that the queue lost the check", func() error {
				out, err := shared.cluster.Kubectl(t.Context(), "get", "events", "-A", "--field-selector=reason=AdmissionCheckLost,involvedObject.name="+s.queue, "-o", "name")
				if err == nil && out == "" {
					err = errors.New("there is no event")
				}
				return err
			})
			if back {
				s.eventually(30*time.Second, "the check is back", func() error {
					if !s.wired() {
						return errors.New("it is not")
					}
					return nil
				})
			} else {
				time.Sleep(5 * time.Second) // a mender would have been there
				s.wantWired(false)
			}
			s.run("uninstall", "--timeout=3m")
			s.wantWired(false)
			s.wantNothingLeft()
		})
	}
}

// TestCreatedQueue: a queue that comes with the release gates from its first moment,
// outlives the release with the jobs in it, and is taken in by the next one.
func TestCreatedQueue(t *testing.T) {
	eachHelm(t, func(t *testing.T, helm string) {
		s := newSite(t, helm)
		s.queue = unique("created")
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.queue}})
		t.Cleanup(func() {
			_, _ = shared.cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "clusterqueue", s.queue, "--wait=false", "--ignore-not-found")
		})
		s.set([]any{}, "clusterQueues", "attach", "names")
		s.set([]any{map[string]any{
			"name": s.queue,
			"spec": map[string]any{
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": s.queue}},
				"resourceGroups": []any{map[string]any{"coveredResources": []any{"cpu"}, "flavors": []any{map[string]any{
					"name": "default", "resources": []any{map[string]any{"name": "cpu", "nominalQuota": "6"}}}}}},
			},
			"localQueues": []any{map[string]any{"name": "lq", "namespace": s.queue}},
		}}, "clusterQueues", "create")
		s.install()
		s.wantWired(true)
		runs, waits := s.running(), s.held()

		s.dispatchctl("queues", "detach", s.queue, "--check", s.release, "--hold-first")
		s.wantWired(false)
		s.run("upgrade", "--wait", "--timeout=2m")
		if !s.wired() {
			t.Error("the Job after an upgrade has not attached the queue again")
		}
		s.open()

		s.run("uninstall", "--timeout=3m")
		s.wantWired(false)
		s.neverRan(waits)
		s.stillRuns(runs)
		if p := s.clusterQueue().Spec.StopPolicy; p == nil || *p != kueue.Hold {
			t.Errorf("the stop policy of the queue that stays is %s, want Hold", harness.Show(p))
		}
		s.install()
		if !s.wired() {
			t.Error("the queue that stayed does not name the check of the next release")
		}
		s.open()
		s.neverRan(waits)
		s.stillRuns(runs)
		s.run("uninstall", "--timeout=3m")
	})
}

// TestPlainApply: without Helm's hooks, as docs/operate.md says it.
func TestPlainApply(t *testing.T) {
	eachHelm(t, func(t *testing.T, helm string) {
		s := newSite(t, helm)
		manifests := s.run("template", "--no-hooks", "--set=crds.enabled=false", "--set=test.enabled=false",
			"--kube-version=1.36", "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
		if err := shared.cluster.Apply(t.Context(), manifests); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = shared.cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "mutatingadmissionpolicy,mutatingadmissionpolicybinding,admissioncheck,admissiongate,clusterrole,clusterrolebinding,pdb,deployment,service,serviceaccount,configmap,role,rolebinding",
				"-n", s.release, "-l", "app.kubernetes.io/instance="+s.release, "--ignore-not-found")
		})
		s.dispatchctl("queues", "attach", s.queue, "--check", s.release)
		held := s.held()
		s.dispatchctl("prepare-uninstall", "--check", s.release, "--gate", s.release)
		s.wantWired(false)
		s.neverRan(held)
	})
}

// TestDefaults: what somebody gets who gives no values at all, on a cluster that has
// never seen the chart.
func TestDefaults(t *testing.T) {
	s := newSite(t, shared.cluster.Bin("helm"))
	s.kubectl("delete", "crd", "admissiongates.dispatch.phpboyscout.uk")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = shared.cluster.Kubectl(ctx, "delete", "crd", "admissiongates.dispatch.phpboyscout.uk")
		if err := shared.applyCRDs(ctx); err != nil {
			t.Error(err)
		}
	})
	s.values = map[string]any{}
	s.cleanUp()
	s.run("install", "--timeout=2m") // without --wait
	s.eventually(time.Minute, "the replicas are ready", func() error {
		_, err := shared.cluster.Kubectl(t.Context(), "rollout", "status", "deployment/"+s.release+"-dispatch-admission", "-n", s.release, "--timeout=1s")
		return err
	})
	s.run("test", "--timeout=1m")
	var d appsv1.Deployment
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Namespace: s.release, Name: s.release + "-dispatch-admission"}, &d); err != nil || d.Status.ReadyReplicas != 2 {
		t.Errorf("%d replicas are ready, want 2 (%v)", d.Status.ReadyReplicas, err)
	}
	var gate v1alpha1.AdmissionGate
	if err := shared.admin.Get(t.Context(), client.ObjectKey{Name: "dispatch-admission"}, &gate); err != nil {
		t.Error(err)
	}
	s.run("uninstall", "--timeout=3m")
	s.wantNothingLeft()
}
