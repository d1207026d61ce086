package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// requestNames: the operator maps the names of an attempt, and what a job does not
// have gets its default.
func requestNames(t *testing.T) {
	h := newHook(t, admission.Admit())
	gate := newGate(t, h, func(s *v1alpha1.AdmissionGateSpec) {
		s.Hook.Attempt = v1alpha1.AttemptNames{
			TenantID: &v1alpha1.NameSource{Label: "example.com/tenant"},
			DagID:    &v1alpha1.NameSource{Annotation: "example.com/dag"},
			RunID:    &v1alpha1.NameSource{Annotation: "example.com/run"},
			TaskID:   &v1alpha1.NameSource{Label: "example.com/task"},
		}
	})
	q := newHookedQueue(t, gate)
	q.setQuota("40")
	of := func(job client.Object) string {
		r := h.awaitAsked(job, 1)[0]
		return fmt.Sprint(r.TenantID, " ", r.DagID, " ", r.RunID, " ", r.TaskID)
	}
	want := func(job client.Object, want string) {
		t.Helper()
		if got := of(job); got != want {
			t.Errorf("the attempt of %s is %q, want %q", job.GetName(), got, want)
		}
	}
	whole := q.batchJob("whole", func(job *batchv1.Job) {
		job.Spec.Template.Labels = map[string]string{"example.com/tenant": "physics", "example.com/task": "fit"}
		job.Spec.Template.Annotations = map[string]string{"example.com/dag": "nightly", "example.com/run": "42"}
	})
	want(whole, "physics nightly 42 fit")
	part := q.batchJob("part", func(job *batchv1.Job) {
		job.Spec.Template.Labels = map[string]string{"example.com/tenant": "physics"}
		job.Spec.Template.Annotations = map[string]string{"example.com/dag": ""}
	})
	want(part, "physics part "+string(part.UID)+" main")
	none := q.submit(dispatchName())
	want(none, q.name+" "+strings.TrimSuffix(none.Name, "-s1")+" s1 node")
	marked := q.submit(dispatchName(), func(job *trainer.TrainJob) {
		job.Labels["example.com/tenant"] = "chemistry"
		job.Annotations = map[string]string{"example.com/run": "7"}
	})
	want(marked, "chemistry "+strings.TrimSuffix(marked.Name, "-s1")+" 7 node")
}

// requestTries: the number of the try rises with each start, not with the offers
// in between, and is the A that the pods of this start get.
func requestTries(t *testing.T) {
	h := newHook(t, admission.Hold("wait once"))
	gate := newGate(t, h, quick)
	q := newHookedQueue(t, gate)
	q.setQuota("40")
	job := q.submit(dispatchName())
	plain := q.batchJob("plain")
	set := q.jobSet("set", func(*jobset.JobSet) {})
	jobs := []client.Object{job, plain, set}
	for _, o := range jobs {
		calls := h.awaitAsked(o, 2)
		if a, b := calls[0], calls[1]; a.TryNumber != 1 || b.TryNumber != 1 || a.OfferCount != 1 || b.OfferCount != 2 || !a.HeldSince.IsZero() ||
			time.Since(b.HeldSince) > time.Minute || b.HeldSince.Location() != time.UTC {
			t.Errorf("%s was offered with %+v, then %+v", o.GetName(), *a, *b)
		}
	}
	wantCount(t, job, "") // while it waits, A is not raised
	h.says(admission.Admit())
	for try := 1; try <= 3; try++ {
		if try > 1 {
			q.restart(jobs...)
		}
		q.awaitStart(job, fmt.Sprint(try))
		q.awaitPods(plain, 2)
		q.awaitPods(set, 5)
		for _, o := range jobs {
			calls := h.asked(o)
			if last := calls[len(calls)-1]; last.TryNumber != try || try > 1 && (last.OfferCount != 1 || !last.HeldSince.IsZero()) {
				t.Errorf("try %d of %s was offered with TryNumber %d, OfferCount %d, HeldSince %s", try, o.GetName(), last.TryNumber, last.OfferCount, last.HeldSince)
			}
		}
	}
	q.noSharedCount(job)
}

// secret begins every text that must not reach a hook.
const secret = "s3cret-"

// requestSecrets: what a job's owner may have put into a pod to keep, wherever it
// stands, does not go over the wire.
func requestSecrets(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := newHookedQueue(t, newGate(t, h))
	q.setQuota("40")
	job := q.batchJob("plain", func(job *batchv1.Job) {
		job.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": secret + "job-manifest"}
		job.Spec.Template = secretive(job.Spec.Template)
	})
	set := q.jobSet("set", func(js *jobset.JobSet) {
		js.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": secret + "set-manifest"}
		js.Spec.ReplicatedJobs[0].Template.Spec.Template = secretive(js.Spec.ReplicatedJobs[0].Template.Spec.Template)
	})
	template := secretive(job.Spec.Template)
	template.Labels = map[string]string{}
	pod := q.pod("alone", map[string]string{"kueue.x-k8s.io/queue-name": "lq"}, template)
	tj := q.submit(dispatchName(), secretiveTrainJob)
	for _, o := range []client.Object{job, set, pod, tj} {
		h.awaitAsked(o, 1)
	}
	wire := h.wire()
	for _, o := range []client.Object{job, set, pod, tj} {
		if !strings.Contains(wire, string(o.GetUID())) {
			t.Errorf("%s is not on the wire, so nothing is proved", o.GetName())
		}
	}
	if n := strings.Count(wire, "example.com/kept"); n < 3 {
		t.Errorf("an innocent annotation is %d times on the wire, so nothing is proved:\n%s", n, wire)
	}
	for i := strings.Index(wire, secret); i >= 0; i = strings.Index(wire, secret) {
		t.Errorf("on the wire: …%s…", wire[max(0, i-40):min(len(wire), i+40)])
		wire = wire[i+len(secret):]
	}
}

// secretive plants secrets all over a pod.
func secretive(t corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	t = *t.DeepCopy()
	manifest := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"image":"x","env":[{"value":%q}]}]}}`, secret+"manifest")
	t.Annotations = map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": manifest,
		"example.com/Last-Applied":                         secret + "last-applied",
		"kapp.k14s.io/original":                            secret + "kapp",
		"objectset.rio.cattle.io/applied":                  secret + "rancher",
		"example.com/backup":                               manifest,
		"example.com/kept":                                 "innocent",
	}
	t.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret + "pull"}}
	t.Spec.Hostname = secret + "host"
	t.Spec.Volumes = []corev1.Volume{
		{Name: secret + "volume", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret + "volume"}}},
		{Name: "path", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/" + secret + "path"}}},
	}
	main := &t.Spec.Containers[0]
	main.Command, main.Args, main.WorkingDir = []string{secret + "command"}, []string{"--token=" + secret + "argument"}, "/"+secret+"dir"
	main.Env = []corev1.EnvVar{{Name: "TOKEN", Value: secret + "value"}, {Name: "REF", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret + "ref"}, Key: secret + "key"}}}}
	main.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: secret + "from"}}}}
	main.VolumeMounts = []corev1.VolumeMount{{Name: "path", MountPath: "/" + secret + "mount"}}
	main.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{secret + "probe"}}}}
	first := *main.DeepCopy()
	first.Name, first.LivenessProbe = "first", nil
	t.Spec.InitContainers = []corev1.Container{first}
	return t
}

// secretiveTrainJob plants secrets where a TrainJob has room for them.
func secretiveTrainJob(job *trainer.TrainJob) {
	job.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": secret + "trainjob-manifest"}
	job.Spec.Trainer = &trainer.Trainer{
		Command: []string{secret + "command"}, Args: []string{secret + "argument"},
		Env: []corev1.EnvVar{{Name: "TOKEN", Value: secret + "value"}},
	}
	patchPods(trainer.PodTemplatePatch{
		Metadata: &metav1.ObjectMeta{Annotations: map[string]string{
			"example.com/kept": "innocent", "kubectl.kubernetes.io/last-applied-configuration": secret + "patch-manifest"}},
		Spec: &trainer.PodSpecPatch{
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: secret + "pull"}},
			Volumes:          []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret + "volume"}}}},
		},
	})(job)
}

// patchPods gives a TrainJob a runtime patch of its owner's.
func patchPods(p trainer.PodTemplatePatch) func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) {
		job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, trainer.RuntimePatch{
			Manager: "example.com/owner",
			TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{
				ReplicatedJobs: []trainer.ReplicatedJobPatch{{Name: "node", Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{Template: &p}}}},
			}}},
		})
	}
}
