package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// TestCtl has the stories of dispatchctl, the program that ships, beside one
// running gate.
func TestCtl(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	sideBySide(t, map[string]func(*testing.T){
		"RequestHeld":    ctlRequestHeld,
		"RequestRunning": ctlRequestRunning,
		"RequestQueued":  ctlRequestQueued,
		"RequestUnknown": ctlRequestUnknown,
		"AttachDetach":   ctlAttachDetach,
		"LastEntry":      ctlLastEntry,
		"Flavors":        ctlFlavors,
		"DetachWaiting":  ctlDetachWaiting,
		"DetachParked":   ctlDetachParked,
		"NotServed":      ctlNotServed,
		"Withdraw":       ctlWithdraw,
		"Concurrent":     ctlConcurrent,
		"Explain":        ctlExplain,
		"Refused":        ctlRefused,
		"Uninstall":      ctlUninstall,
		"UninstallFree":  ctlUninstallDetach,
		"Verify":         ctlVerify,
	})
	// A gate that is missing is a warning, and stories of this test take one away.
	if failed := gate.find("level=ERROR"); len(failed) > 0 {
		t.Errorf("the gate logged %q", failed)
	}
}

// ctlRun is what came of one call of dispatchctl.
type ctlRun struct {
	code           int
	stdout, stderr string
}

func (r ctlRun) String() string {
	return fmt.Sprintf("exit code %d, standard output\n%s\nstandard error\n%s", r.code, r.stdout, r.stderr)
}

// ctl runs dispatchctl as the administrator.
func ctl(tb testing.TB, args ...string) ctlRun {
	tb.Helper()
	return ctlAs(tb, shared.cluster.Kubeconfig(), args...)
}

// ctlAs runs dispatchctl with a kubeconfig.
func ctlAs(tb testing.TB, kubeconfig string, args ...string) ctlRun {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shared.program("dispatchctl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		tb.Fatal(err)
	}
	return ctlRun{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// ok fails the test unless the call succeeded.
func (r ctlRun) ok(t *testing.T) ctlRun {
	t.Helper()
	if r.code != 0 {
		t.Fatal(r)
	}
	return r
}

// fails fails the test unless the call ended with a code, and said all words.
func (r ctlRun) fails(t *testing.T, code int, words ...string) ctlRun {
	t.Helper()
	if r.code != code {
		t.Fatalf("want exit code %d: %s", code, r)
	}
	return r.says(t, words...)
}

// says fails the test unless the call said all words.
func (r ctlRun) says(t *testing.T, words ...string) ctlRun {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(r.stdout+r.stderr, w) {
			t.Errorf("%q is missing: %s", w, r)
		}
	}
	return r
}

// request reads the request that dispatchctl request printed as JSON.
func (r ctlRun) request(t *testing.T) *admission.Request {
	t.Helper()
	var req admission.Request
	if err := json.Unmarshal([]byte(r.ok(t).stdout), &req); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
	return &req
}

// wantSameRequest compares what dispatchctl printed with what the hook was asked.
func wantSameRequest(t *testing.T, got, want *admission.Request) {
	t.Helper()
	if g, w := asJSON(t, got), asJSON(t, want); g != w {
		t.Errorf("dispatchctl printed\n%s\nthe hook was asked\n%s", g, w)
	}
}

// ctlRequestHeld: what is printed about a held job is what the hook is asked at
// the next offer, for jobs of every kind.
func ctlRequestHeld(t *testing.T) {
	h := newHook(t, admission.Hold("not now"))
	g := newGate(t, h) // the next offer is half a minute away
	q := fullQueue(t, g)
	class := q.newChoices()
	plain := q.batchJob("plain", func(job *batchv1.Job) { job.Labels, job.Spec.Template = fullLabels(), fullPod(class) })
	set := q.jobSet("set", func(js *jobset.JobSet) { js.Labels = fullLabels() })
	train := q.wideJob(dispatchName(), class)
	printed := map[string]*admission.Request{}
	jobs := map[string]client.Object{"job/plain": plain, "jobset/set": set, "trainjob/" + train.Name: train}
	for name, job := range jobs {
		h.awaitAsked(job, 1)
		awaitMessage(t, job, g.Name, kueue.CheckStatePending, "not now")
		printed[name] = ctl(t, "request", "-n", q.name, name, "-o", "json").says(t, "note: the hook is asked next at ").request(t)
	}
	editGate(t, g.Name, quick) // an edited gate asks at once
	for name, job := range jobs {
		want := h.awaitAsked(job, 2)[1]
		if want.OfferCount != 2 || want.HeldSince.IsZero() {
			t.Errorf("%s was offered with %+v", name, *want)
		}
		wantSameRequest(t, printed[name], want)
	}
}

// ctlRequestRunning: what is printed about a running job is what the hook was
// asked, whatever the number of the start, by any name of the job.
func ctlRequestRunning(t *testing.T) {
	h := newHook(t, admission.Admit())
	g := newGate(t, h, noWait)
	q := newHookedQueue(t, g)
	q.setQuota("40")
	train, plain := q.submit(dispatchName()), q.batchJob("plain")
	for try := 1; try <= 2; try++ {
		if try > 1 {
			q.restart(train, plain)
		}
		q.awaitStart(train, fmt.Sprint(try))
		q.awaitPods(plain, 2)
		wl, err := workloadOf(t.Context(), q.name, train.UID)
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{q.name + "/" + wl.Name}, {"-n", q.name, wl.Name}, {"-n", q.name, "workload/" + wl.Name, "--check", g.Name}, {"-n", q.name, "trainjob/" + train.Name}} {
			got := ctl(t, append([]string{"request", "-o", "json"}, args...)...).says(t, "note: the job runs").request(t)
			wantSameRequest(t, got, last(h.asked(train)))
		}
		wantSameRequest(t, ctl(t, "request", "-n", q.name, "job/plain", "-o", "json").request(t), last(h.asked(plain)))
	}
	yaml := ctl(t, "request", "-n", q.name, "job/plain").ok(t).stdout
	if !strings.Contains(yaml, "tryNumber: 2\n") {
		t.Errorf("not YAML: %s", yaml)
	}
}

func last[T any](all []T) T { return all[len(all)-1] }

// ctlRequestQueued: what is printed about a job without quota is what the hook is
// asked once it has some, but for the flavors that come with it.
func ctlRequestQueued(t *testing.T) {
	h := newHook(t, admission.Admit())
	q := newHookedQueue(t, newGate(t, h))
	q.setQuota("0")
	train := q.submit(dispatchName())
	awaitWorkload(t, train, "is there", func(*kueue.Workload) bool { return true })
	got := ctl(t, "request", "-n", q.name, "trainjob/"+train.Name, "-o", "json").says(t, "note: no quota is reserved").request(t)
	q.setQuota("40")
	want := h.awaitAsked(train, 1)[0].Clone()
	for i := range want.PodSets {
		want.PodSets[i].Flavors = nil
	}
	wantSameRequest(t, got, want)
}

// ctlRequestUnknown: what is not there is told with the way out.
func ctlRequestUnknown(t *testing.T) {
	q := newQueue(t, unique("plain"))
	ctl(t, "request", "-n", q.name, "job/nowhere").fails(t, 1, `no Workload of job/nowhere in namespace "`+q.name+`"`, "kueue.x-k8s.io/queue-name")
	ctl(t, "request", q.name+"/nowhere").fails(t, 1, `there is no Workload "nowhere"`)
	plain := q.batchJob("plain", func(job *batchv1.Job) {
		job.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TOKEN", Value: secret + "token"}}
	})
	awaitWorkload(t, plain, "is admitted", func(wl *kueue.Workload) bool { return has(wl, kueue.WorkloadAdmitted) })
	r := ctl(t, "request", "-n", q.name, "job/plain").ok(t).says(t, "no check of this job has a hook", "dagID: plain")
	if strings.Contains(r.stdout, secret) {
		t.Errorf("a secret is printed: %s", r)
	}
	ctl(t, "request", "-n", q.name, "job/plain", "--check", "nowhere").fails(t, 1, `--check "nowhere": there is no AdmissionCheck of that name`)
	nobody := filepath.Join(t.TempDir(), "kubeconfig")
	ctlAs(t, nobody, "request", "a/b").fails(t, 1, "names no cluster")
}
