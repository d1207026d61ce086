package e2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// patience is how long anything may take beside what a test waits for by itself.
const patience = 90 * time.Second

// jobSetLabel is on the pods of a TrainJob, with its name.
const jobSetLabel = "jobset.sigs.k8s.io/jobset-name"

func quoted(args []string) string { return `"` + strings.Join(args, `", "`) + `"` }

// submit makes a TrainJob named as dispatch names the first step of its jobs.
func submit(t *testing.T, namespace, runtime, priority string) *trainer.TrainJob {
	t.Helper()
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	ulid := make([]byte, 26)
	_, _ = rand.Read(ulid) // it never fails
	for i, b := range ulid {
		ulid[i] = alphabet[b%32]
	}
	ulid[0] = '0' // a ULID has 128 bits
	job := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Name: "dj-" + string(ulid) + "-s1", Namespace: namespace, Labels: map[string]string{
			"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/priority-class": priority}},
		Spec: trainer.TrainJobSpec{RuntimeRef: trainer.RuntimeRef{Name: runtime}},
	}
	if err := shared.admin.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.IgnoreNotFound(shared.admin.Delete(context.WithoutCancel(t.Context()), job))
	})
	return job
}

// completes waits until a job has done its work.
func completes(t *testing.T, job *trainer.TrainJob) {
	t.Helper()
	eventually(t, job.Namespace+"/"+job.Name+" completes", func() error {
		if err := shared.admin.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobComplete) {
			return fmt.Errorf("its status is %s", harness.Show(job.Status))
		}
		return nil
	})
}

// podsOf lists the pods of a job.
func podsOf(ctx context.Context, job *trainer.TrainJob) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := shared.admin.List(ctx, &list, client.InNamespace(job.Namespace), client.MatchingLabels{jobSetLabel: job.Name})
	return list.Items, err
}

// runs waits until so many pods of a job run.
func runs(t *testing.T, job *trainer.TrainJob, want int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, fmt.Sprintf("%d pods of %s run", want, job.Name), func() (err error) {
		pods, err = podsOf(t.Context(), job)
		running := 0
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if err == nil && running != want {
			err = fmt.Errorf("%d of %d do", running, len(pods))
		}
		return err
	})
	return pods
}

// begins waits until a container of a job has begun with an admission count.
func begins(t *testing.T, job *trainer.TrainJob, count string) {
	t.Helper()
	eventually(t, "a container with the admission count "+count+" begins", func() error {
		pods, err := podsOf(t.Context(), job)
		for i := range pods {
			status := pods[i].Status.ContainerStatuses
			if pods[i].Annotations[v1alpha1.AdmissionCountAnnotation] == count && len(status) == 1 && status[0].State.Waiting == nil {
				return nil
			}
		}
		if err == nil {
			err = fmt.Errorf("none of %d pods has", len(pods))
		}
		return err
	})
}

// checkMessage waits until the check of a job says something.
func checkMessage(t *testing.T, job *trainer.TrainJob, words string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the check says %q", words), func() error {
		wl, err := workloadOf(t.Context(), job)
		if err != nil {
			return err
		}
		checks := wl.Status.AdmissionChecks
		if len(checks) == 1 && checks[0].State == kueue.CheckStatePending && strings.Contains(checks[0].Message, words) {
			return nil
		}
		return fmt.Errorf("its checks are %s", harness.Show(checks))
	})
}

func workloadOf(ctx context.Context, job *trainer.TrainJob) (*kueue.Workload, error) {
	var list kueue.WorkloadList
	if err := shared.admin.List(ctx, &list, client.InNamespace(job.Namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if owner := metav1.GetControllerOf(&list.Items[i]); owner != nil && owner.UID == job.UID {
			return &list.Items[i], nil
		}
	}
	return nil, errors.New("the job has no Workload")
}

// record is what a container says of itself when it ends.
type record struct {
	pod   string
	Count string    `json:"count"`
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
}

// recorder follows the pods of a namespace and keeps what is known of each last,
// because those of an earlier start are deleted.
type recorder struct {
	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
}

func follow(t *testing.T, namespace string) *recorder {
	t.Helper()
	r := &recorder{pods: map[types.UID]*corev1.Pod{}}
	harness.Follow(t, shared.admin, &corev1.PodList{}, namespace, func(_ watch.EventType, pod *corev1.Pod) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pods[pod.UID] = pod
	})
	return r
}

// records waits until all pods that a job ever had have ended, and returns what
// they said. Each pod must have said something.
func (r *recorder) records(t *testing.T, job *trainer.TrainJob) []record {
	t.Helper()
	var all []record
	eventually(t, "all pods of "+job.Name+" have ended", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		all = nil
		for _, pod := range r.pods {
			if pod.Labels[jobSetLabel] != job.Name {
				continue
			}
			status := pod.Status.ContainerStatuses
			if len(status) != 1 || status[0].State.Terminated == nil {
				return fmt.Errorf("pod %s is %s", pod.Name, harness.Show(status))
			}
			said := record{pod: pod.Name}
			if err := json.Unmarshal([]byte(status[0].State.Terminated.Message), &said); err != nil {
				return fmt.Errorf("pod %s ended with %s", pod.Name, harness.Show(status))
			}
			all = append(all, said)
		}
		return nil
	})
	return all
}

// starts are the records of a job by admission count.
func starts(records []record) map[string][]record {
	m := map[string][]record{}
	for _, r := range records {
		m[r.Count] = append(m[r.Count], r)
	}
	return m
}

// eventually tries something until it works, but no longer than patience.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	if err := within(t.Context(), what, try); err != nil {
		t.Fatal(err)
	}
}

// within does the same where there is no test to fail.
func within(ctx context.Context, what string, try func() error) error {
	return harness.Within(ctx, patience, what, try)
}
