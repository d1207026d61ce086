package controller

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/gate"
)

// fat is a Workload with all that decisions use and much that they do not.
func fat(conditions ...string) *kueue.Workload {
	yes := true
	wl := &kueue.Workload{}
	wl.Name, wl.Namespace, wl.UID, wl.ResourceVersion = "wl", "team", "wl-1", "5"
	wl.Annotations = map[string]string{"big": strings.Repeat("x", 1000)}
	wl.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kueue"}}
	wl.OwnerReferences = []metav1.OwnerReference{{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "dj", UID: "tj-1", Controller: &yes}}
	wl.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 4, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "big"}}}}
	wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "ours", State: kueue.CheckStatePending, LastTransitionTime: metav1.Unix(5, 0)}}
	wl.Status.SchedulingStats = &kueue.SchedulingStats{Evictions: []kueue.WorkloadSchedulingStatsEviction{{Count: 2}}}
	for _, c := range conditions {
		wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Unix(9, 0), Message: "long"})
	}
	return wl
}

// TestSlimDecidesAlike: what the informers keep must not change any decision.
func TestSlimDecidesAlike(t *testing.T) {
	suspended := true
	job := &trainer.TrainJob{Spec: trainer.TrainJobSpec{Suspend: &suspended, RuntimeRef: trainer.RuntimeRef{Name: "big"},
		RuntimePatches: []trainer.RuntimePatch{{Manager: v1alpha1.DispatchManager}}}}
	job.Name, job.UID = "dj", "tj-1"
	slimJob, err := slimTrainJob(job.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	checks := map[kueue.AdmissionCheckReference]gate.Check{"ours": {}}
	now := time.Unix(100, 0)
	for _, conditions := range [][]string{
		{}, {kueue.WorkloadQuotaReserved}, {kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted},
		{kueue.WorkloadQuotaReserved, kueue.WorkloadEvicted}, {kueue.WorkloadFinished},
	} {
		whole := fat(conditions...)
		slim, err := slimWorkload(whole.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		want := gate.Decide(gate.Snapshot{Workload: whole, TrainJob: job, Checks: checks}, now)
		got := gate.Decide(gate.Snapshot{Workload: slim.(*kueue.Workload), TrainJob: slimJob.(*trainer.TrainJob), Checks: checks}, now)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: %s", conditions, diff)
		}
		kept := slim.(*kueue.Workload)
		if again, err := slimWorkload(kept.DeepCopy()); err != nil || !cmp.Equal(again, slim) {
			t.Errorf("%v: slimmed again it is another one (%v): %s", conditions, err, cmp.Diff(slim, again))
		}
		if told := gate.PhaseOf(kept) == gate.PhaseReserved; kept.ManagedFields != nil || kept.Annotations != nil && !told {
			t.Errorf("%v: keeps what nobody uses", conditions)
		}
	}
	if o, err := slimWorkload("a tombstone"); o != "a tombstone" || err != nil {
		t.Errorf("%v, %v", o, err)
	}
}

func TestRefusal(t *testing.T) {
	jobs := schema.GroupResource{Group: "trainer.kubeflow.org", Resource: "trainjobs"}
	undeclared := apierrors.NewInternalError(errors.New(`failed to create typed patch object: .spec.runtimePatches: field not declared in schema`))
	for name, tc := range map[string]struct {
		err     error
		refused bool
		reason  string
	}{
		"a webhook said no":  {apierrors.NewForbidden(jobs, "dj", errors.New("still active")), true, "still active"},
		"a schema said no":   {apierrors.NewInvalid(schema.GroupKind{Kind: "TrainJob"}, "dj", nil), true, "dj"},
		"a malformed one":    {apierrors.NewBadRequest("strict decoding"), true, "strict decoding"},
		"an old Trainer":     {undeclared, true, "needs Kubeflow Trainer v2.2"},
		"wrapped":            {fmt.Errorf("patching: %w", apierrors.NewBadRequest("x")), true, "x"},
		"a conflict":         {apierrors.NewConflict(jobs, "dj", errors.New("changed")), false, ""},
		"gone":               {apierrors.NewNotFound(jobs, "dj"), false, ""},
		"webhook is down":    {apierrors.NewInternalError(errors.New("failed calling webhook")), false, ""},
		"overloaded":         {apierrors.NewTooManyRequests("slow down", 1), false, ""},
		"timeout":            {apierrors.NewGenericServerResponse(http.StatusGatewayTimeout, "patch", jobs, "dj", "", 0, true), false, ""},
		"no answer":          {errors.New("connection refused"), false, ""},
		"nothing went wrong": {nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reason, refused := refusal(tc.err)
			if refused != tc.refused || !strings.Contains(reason, tc.reason) {
				t.Errorf("%q, %v, want %q, %v", reason, refused, tc.reason, tc.refused)
			}
		})
	}
}

func TestActiveCondition(t *testing.T) {
	check := &kueue.AdmissionCheck{}
	check.Generation = 3
	want, right := activeCondition(check, "")
	if right || want.Status != metav1.ConditionTrue || want.Reason != "ControllerStarted" || want.ObservedGeneration != 3 || want.LastTransitionTime.IsZero() {
		t.Errorf("%+v, right %v", want, right)
	}
	want.LastTransitionTime = metav1.Unix(1, 0)
	check.Status.Conditions = []metav1.Condition{want}
	if again, right := activeCondition(check, ""); !right || !again.LastTransitionTime.Equal(&want.LastTransitionTime) {
		t.Errorf("what is right is written again: %+v", again)
	}
	broken, right := activeCondition(check, "spec.parameters: wrong")
	if right || broken.Status != metav1.ConditionFalse || broken.Reason != "BadParameters" || broken.Message != "spec.parameters: wrong" {
		t.Errorf("%+v, right %v", broken, right)
	}
}
