package gate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// waitsForPods keeps a check Pending while pods of an earlier start are left, and
// tells whether it does.
func (r *round) waitsForPods(entry *kueue.AdmissionCheckState, p *Policy) bool {
	if p == nil || !p.WaitForPods || r.s.gone() {
		return false
	}
	if end := r.reserved().Add(p.PodTimeout); r.now.Before(end) {
		set(entry, kueue.CheckStatePending, Message(r.s.left()), r.now)
		r.wake(end)
		return true
	}
	r.tell(ToldPodTimeout, entry, p, Message(fmt.Sprintf(
		"The gate opens although podTimeout of AdmissionGate %q has passed: %s The admission count tells the starts apart.", p.Name, r.s.left())))
	return false
}

// gone tells whether no pod of an earlier start is left and none can appear. Only
// pods of dispatch's TrainJobs that run in this cluster are waited for.
func (s Snapshot) gone() bool {
	if s.TrainJob == nil || elsewhere(s.TrainJob) {
		return true
	}
	return len(s.Remains.Pods) == 0 && (s.first || s.Remains.Known && s.Remains.Stopped)
}

// left says what is left of earlier starts.
func (s Snapshot) left() string {
	switch {
	case !s.Remains.Known:
		return MessagePodsUnknown
	case len(s.Remains.Pods) == 0:
		return MessageNotStopped
	}
	var parts []string
	for _, count := range slices.Sorted(maps.Keys(s.Remains.Pods)) {
		n := s.Remains.Pods[count]
		pods := "pods"
		if n == 1 {
			pods = "pod"
		}
		if count == 0 {
			parts = append(parts, fmt.Sprintf("%d %s without an admission count", n, pods))
			continue
		}
		parts = append(parts, fmt.Sprintf("%d %s of the start with admission count %d", n, pods, count))
	}
	return "Waiting for the pods of an earlier start to end: " + strings.Join(parts, ", ") + "."
}
