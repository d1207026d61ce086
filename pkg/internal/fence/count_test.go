package fence

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

var first = Attempt{Workload: "wl-1", Reserved: 100, Evictions: 0, PendingSince: 90}

// patch is a runtime patch of a manager that sets pod annotations of jobs.
func patch(manager string, annotations map[string]string, jobs ...string) trainer.RuntimePatch {
	spec := &trainer.JobSetSpecPatch{}
	for _, j := range jobs {
		spec.ReplicatedJobs = append(spec.ReplicatedJobs, trainer.ReplicatedJobPatch{Name: j, Template: &trainer.JobTemplatePatch{
			Spec: &trainer.JobSpecPatch{Template: &trainer.PodTemplatePatch{Metadata: &metav1.ObjectMeta{Annotations: annotations}}},
		}})
	}
	return trainer.RuntimePatch{Manager: manager, TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{
		Template: &trainer.JobSetTemplatePatch{Spec: spec},
	}}
}

func stamped(count string, a Attempt) map[string]string {
	return map[string]string{v1alpha1.AdmissionCountAnnotation: count, v1alpha1.AdmissionAttemptAnnotation: a.String()}
}

func job(patches ...trainer.RuntimePatch) *trainer.TrainJob {
	j := &trainer.TrainJob{Spec: trainer.TrainJobSpec{RuntimePatches: patches}}
	j.Name, j.Namespace, j.UID, j.ResourceVersion = "dj", "team", "tj-1", "7"
	return j
}

func TestRead(t *testing.T) {
	ours := func(count string, jobs ...string) trainer.RuntimePatch {
		return patch(v1alpha1.AdmissionManager, stamped(count, first), jobs...)
	}
	foreign := patch("example.com/x", map[string]string{v1alpha1.AdmissionCountAnnotation: "9"}, "node")
	cases := map[string]struct {
		job     *trainer.TrainJob
		want    int64
		wantErr string
		reason  string
	}{
		"never raised":       {job: job(), want: 0, reason: "A starts at 1"},
		"raised":             {job: job(ours("3", "node")), want: 3},
		"highest counts":     {job: job(patch(v1alpha1.AdmissionManager, stamped("3", first), "a"), patch(v1alpha1.AdmissionManager, stamped("5", first), "b")), want: 5, reason: "a half-written count must not come back"},
		"other patches":      {job: job(patch("kueue.x-k8s.io/manager", nil, "node"), ours("2", "node")), want: 2},
		"empty patch":        {job: job(trainer.RuntimePatch{Manager: v1alpha1.AdmissionManager}), want: 0},
		"foreign one before": {job: job(foreign, ours("2", "node")), want: 2, reason: "Trainer lets the later patch win, which is ours"},
		"foreign one alone":  {job: job(foreign), want: 0, reason: "ours will come after it"},
		"foreign one after":  {job: job(ours("2", "node"), foreign), wantErr: `manager "example.com/x"`, reason: "pods would carry the foreign A"},
		"word":               {job: job(ours("two", "node")), wantErr: `is "two", not a positive integer`},
		"zero":               {job: job(ours("0", "node")), wantErr: "not a positive integer"},
		"negative":           {job: job(ours("-1", "node")), wantErr: "not a positive integer"},
		"too large":          {job: job(ours("9223372036854775808", "node")), wantErr: "not a positive integer"},
		"empty":              {job: job(ours("", "node")), wantErr: "not a positive integer"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			rec, err := Read(tc.job)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q: %s", err, tc.wantErr, tc.reason)
				}
				return
			}
			if err != nil || rec.Count != tc.want {
				t.Errorf("count %d, error %v, want %d: %s", rec.Count, err, tc.want, tc.reason)
			}
		})
	}
}

func TestMatch(t *testing.T) {
	rec, err := Read(job(patch(v1alpha1.AdmissionManager, stamped("2", first), "launcher", "node")))
	if err != nil {
		t.Fatal(err)
	}
	torn, err := Read(job(patch(v1alpha1.AdmissionManager, stamped("1", first), "launcher"), patch(v1alpha1.AdmissionManager, stamped("2", first), "node")))
	if err != nil {
		t.Fatal(err)
	}
	garbled, err := Read(job(patch(v1alpha1.AdmissionManager, map[string]string{v1alpha1.AdmissionCountAnnotation: "2", v1alpha1.AdmissionAttemptAnnotation: "?"}, "node")))
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*Attempt)) Attempt {
		a := first
		change(&a)
		return a
	}
	cases := map[string]struct {
		rec              Record
		jobs             []string
		attempt          Attempt
		answered, unansw bool
		reason           string
	}{
		"same attempt":       {rec, []string{"launcher", "node"}, first, true, true, "raised for it"},
		"one of the jobs":    {rec, []string{"node"}, first, true, true, "all jobs asked for carry it"},
		"a job without":      {rec, []string{"node", "evaluator"}, first, false, false, "its pods would start without A"},
		"no jobs":            {rec, nil, first, false, false, "nothing carries it"},
		"torn":               {torn, []string{"launcher", "node"}, first, false, false, "pods would disagree on A"},
		"unreadable attempt": {garbled, []string{"node"}, first, false, false, "in doubt raise again"},
		"recreated":          {rec, []string{"node"}, with(func(a *Attempt) { a.Workload = "wl-2" }), false, false, "the name came back, the UID did not"},
		"reserved later":     {rec, []string{"node"}, with(func(a *Attempt) { a.Reserved++ }), false, false, "another reservation"},
		"evicted meanwhile":  {rec, []string{"node"}, with(func(a *Attempt) { a.Evictions++ }), false, false, "another reservation within the same second"},
		"taken back":         {rec, []string{"node"}, with(func(a *Attempt) { a.PendingSince++ }), true, false, "the A went out with an answer; only a pending check can tell"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.rec.Match(tc.jobs, tc.attempt); got != tc.answered {
				t.Errorf("Match = %v, want %v: %s", got, tc.answered, tc.reason)
			}
			if got := tc.rec.MatchPending(tc.jobs, tc.attempt); got != tc.unansw {
				t.Errorf("MatchPending = %v, want %v: %s", got, tc.unansw, tc.reason)
			}
		})
	}
}

func TestNext(t *testing.T) {
	if got, err := (Record{}).Next(); got != 1 || err != nil {
		t.Errorf("first A = %d, %v, want 1", got, err)
	}
	if got, err := (Record{Count: 41}).Next(); got != 42 || err != nil {
		t.Errorf("A after 41 = %d, %v", got, err)
	}
	if got, err := (Record{Count: math.MaxInt64}).Next(); err == nil {
		t.Errorf("A after the largest = %d, want an error: it would start again below", got)
	}
}

func TestPatchReadsBack(t *testing.T) {
	raise := Raise{Count: 4, Attempt: first, Jobs: []string{"launcher", "node"}}
	u := raise.Patch(job())
	data, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	var back trainer.TrainJob
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if back.UID != "tj-1" || back.ResourceVersion != "7" || back.Name != "dj" || back.Namespace != "team" || back.Kind != "TrainJob" {
		t.Errorf("identity lost: %+v", back.ObjectMeta)
	}
	rec, err := Read(&back)
	if err != nil || rec.Count != 4 || !rec.MatchPending(raise.Jobs, first) {
		t.Errorf("record %+v, error %v", rec, err)
	}
	if len(back.Spec.RuntimePatches) != 1 || u.Object["status"] != nil || len(u.Object["spec"].(map[string]any)) != 1 {
		t.Errorf("the patch claims more than our own entry: %s", data)
	}
}

func TestAttemptText(t *testing.T) {
	for _, a := range []Attempt{{Workload: "x"}, first, {Workload: "6d0e", Reserved: math.MaxInt64, Evictions: 7, PendingSince: -1}} {
		back, err := ParseAttempt(a.String())
		if err != nil {
			t.Errorf("%q: %v", a, err)
		}
		if diff := cmp.Diff(a, back); diff != "" {
			t.Error(diff)
		}
	}
	for _, bad := range []string{"", "v1", "v1//1/2/3", "v2/x/1/2/3", "v1/x/1/2", "v1/x/1/2/3/4", "v1/x/a/2/3", "v1/x/1/2/99999999999999999999"} {
		if a, err := ParseAttempt(bad); err == nil {
			t.Errorf("%q read as %+v", bad, a)
		}
	}
}

func FuzzParseAttempt(f *testing.F) {
	f.Add(first.String())
	f.Add("v1/a/b/c/d")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAttempt(s)
		if err != nil {
			return
		}
		if again, err := ParseAttempt(a.String()); err != nil || again != a {
			t.Errorf("%q: %+v became %+v, %v", s, a, again, err)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add("1", first.String(), "node")
	f.Add("", "", "")
	f.Fuzz(func(t *testing.T, count, attempt, name string) {
		rec, err := Read(job(patch(v1alpha1.AdmissionManager, map[string]string{
			v1alpha1.AdmissionCountAnnotation: count, v1alpha1.AdmissionAttemptAnnotation: attempt}, name)))
		n, parseErr := strconv.ParseInt(count, 10, 64)
		if valid := parseErr == nil && n >= 1; valid != (err == nil) {
			t.Fatalf("count %q: error %v", count, err)
		}
		if err == nil && rec.Count != n {
			t.Errorf("count %q read as %d", count, rec.Count)
		}
	})
}
