package integration

import (
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestGate has the stories of one running gate, side by side.
func TestGate(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	t.Run("stories", func(t *testing.T) {
		for name, story := range map[string]func(*testing.T){
			"EvictionByPriority":     evictionByPriority,
			"ActiveOffAndOn":         activeOffAndOn,
			"HoldAndDrain":           holdAndDrain,
			"WorkloadRecreated":      workloadRecreated,
			"PodsReadyTimeout":       podsReadyTimeoutStory,
			"HoldAndRelease":         holdAndRelease,
			"QuotaLostWithinASecond": quotaLostWithinASecond,
			"TwoChecks":              twoChecks,
			"CheckServedAtOnce":      checkServedAtOnce,
			"CheckAppearsLate":       checkAppearsLate,
			"NotGated":               notGated,
			"Names":                  names,
			"QuickBounces":           quickBounces,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				story(t)
			})
		}
	})
	gate.noNoise()
}

// TestHoldRace is a story of its own, because the gate may tell an ungated start.
func TestHoldRace(t *testing.T) {
	startLeading(t, run{name: "gate"})
	holdRace(t)
}

// TestStartedPastKueue is a story of its own, because the gate warns in it.
func TestStartedPastKueue(t *testing.T) {
	gate := startLeading(t, run{name: "gate"})
	startedPastKueue(t, gate)
}

// threeStarts runs a job of dispatch, has it evicted and started again twice and
// sees A = 1, 2, 3 on the pods.
func threeStarts(t *testing.T, changes func(*trainer.TrainJob), evict, bringBack func(q *queue, job *trainer.TrainJob)) {
	t.Helper()
	q := newQueue(t, unique("check"))
	job := q.submit(dispatchName(), changes)
	q.awaitStart(job, "1")
	for _, count := range []string{"2", "3"} {
		evict(q, job)
		bringBack(q, job)
		q.awaitStart(job, count)
	}
	q.noSharedCount(job)
}

func unchanged(*trainer.TrainJob) {}

func evictionByPriority(t *testing.T) {
	var other *trainer.TrainJob
	threeStarts(t, unchanged, func(q *queue, job *trainer.TrainJob) {
		other = q.submit(unique("urgent"), highPriority)
		q.awaitStart(other, "")
		q.awaitStopped(job)
	}, func(q *queue, _ *trainer.TrainJob) {
		if err := shared.admin.Delete(q.t.Context(), other); err != nil {
			q.t.Fatal(err)
		}
	})
}

func activeOffAndOn(t *testing.T) {
	threeStarts(t, unchanged, func(q *queue, job *trainer.TrainJob) {
		setActive(q.t, job, false)
		awaitEvicted(q.t, job)
	}, func(q *queue, job *trainer.TrainJob) {
		setActive(q.t, job, true)
	})
}

func holdAndDrain(t *testing.T) {
	threeStarts(t, unchanged, func(q *queue, job *trainer.TrainJob) {
		q.setStopPolicy(kueue.HoldAndDrain)
		awaitWorkload(q.t, job, "loses its quota", func(wl *kueue.Workload) bool { return !has(wl, kueue.WorkloadQuotaReserved) })
	}, func(q *queue, _ *trainer.TrainJob) {
		q.setStopPolicy(kueue.None)
	})
}

func workloadRecreated(t *testing.T) {
	var before types.UID
	threeStarts(t, unchanged, func(q *queue, job *trainer.TrainJob) {
		wl, err := workloadOf(q.t.Context(), q.name, job.UID)
		if err != nil {
			q.t.Fatal(err)
		}
		before = wl.UID
		if err := shared.admin.Delete(q.t.Context(), wl); err != nil {
			q.t.Fatal(err)
		}
	}, func(q *queue, job *trainer.TrainJob) {
		awaitWorkload(q.t, job, "is another one", func(wl *kueue.Workload) bool { return wl.UID != before })
	})
}

// podsReadyTimeoutStory: the pods never become ready, and Kueue evicts the job
// and queues it again by itself.
func podsReadyTimeoutStory(t *testing.T) {
	q := newQueue(t, unique("check"))
	job := q.submit(dispatchName(), neverReady)
	for _, count := range []string{"1", "2", "3"} {
		q.awaitStart(job, count)
	}
	q.noSharedCount(job)
}
