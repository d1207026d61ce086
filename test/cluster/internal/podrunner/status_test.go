package podrunner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// life says what has happened to a container.
type life int

const (
	never   life = iota // it has not run
	runs                // and is ready, if it can be
	starts              // it runs and has not passed its startup probe
	good                // it has ended with 0
	bad                 // it has ended with 3
	backoff             // it has, and waits for its next start
)

func lived(k kind, l life) *container {
	c := &container{spec: &corev1.Container{Name: "c"}, kind: k, state: waiting("ContainerCreating", "")}
	if k == sidecar {
		always := corev1.ContainerRestartPolicyAlways
		c.spec.RestartPolicy = &always
	}
	if l == never {
		return c
	}
	c.begin(&process{}, "process://1", start)
	switch l {
	case starts:
		c.started, c.ready = false, false
	case good:
		c.end(0, "", start.Add(time.Second))
	case bad:
		c.end(3, "", start.Add(time.Second))
	case backoff:
		c.end(3, "", start.Add(time.Second))
		c.backOff()
	}
	return c
}

func TestPhase(t *testing.T) {
	const always, onFailure, no = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	for name, tc := range map[string]struct {
		policy             corev1.RestartPolicy
		initialized, final bool
		containers         []*container
		want               corev1.PodPhase
	}{
		"not started":            {always, false, false, []*container{lived(regular, never)}, corev1.PodPending},
		"runs":                   {always, true, false, []*container{lived(regular, runs)}, corev1.PodRunning},
		"one of two has not run": {always, true, false, []*container{lived(regular, runs), lived(regular, never)}, corev1.PodPending},
		"backs off":              {always, true, false, []*container{lived(regular, backoff)}, corev1.PodRunning},
		"initializes":            {always, false, false, []*container{lived(initializer, runs), lived(regular, never)}, corev1.PodPending},
		"sidecar starts":         {always, false, false, []*container{lived(sidecar, starts), lived(regular, never)}, corev1.PodPending},
		"one done, one runs":     {no, true, false, []*container{lived(regular, good), lived(regular, runs)}, corev1.PodRunning},
		"done, sidecar runs":     {no, true, false, []*container{lived(sidecar, runs), lived(regular, good)}, corev1.PodRunning},
		"done":                   {no, true, true, []*container{lived(regular, good)}, corev1.PodSucceeded},
		"failed":                 {no, true, true, []*container{lived(regular, good), lived(regular, bad)}, corev1.PodFailed},
		"a sidecar's end":        {onFailure, true, true, []*container{lived(sidecar, bad), lived(regular, good)}, corev1.PodSucceeded},
		"initializer failed":     {no, false, true, []*container{lived(initializer, bad), lived(regular, never)}, corev1.PodFailed},
		"deleted before it ran":  {always, false, true, []*container{lived(regular, never)}, corev1.PodFailed},
		"deleted, ended with 0":  {always, true, true, []*container{lived(regular, good)}, corev1.PodSucceeded},
	} {
		if got := phase(&corev1.PodSpec{RestartPolicy: tc.policy}, tc.containers, tc.initialized, tc.final); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestConditions(t *testing.T) {
	spec := func(cs ...*container) corev1.PodSpec {
		var s corev1.PodSpec
		for _, c := range cs {
			if c.kind == regular {
				s.Containers = append(s.Containers, *c.spec)
			} else {
				c.spec.Name = "i"
				s.InitContainers = append(s.InitContainers, *c.spec)
			}
		}
		return s
	}
	unready := lived(regular, runs)
	unready.ready = false
	for name, tc := range map[string]struct {
		containers         []*container
		initialized, final bool
		wantInit, want     corev1.ConditionStatus
	}{
		"runs":           {[]*container{lived(regular, runs)}, true, false, "True", "True"},
		"not ready":      {[]*container{unready}, true, false, "True", "False"},
		"initializes":    {[]*container{lived(initializer, runs), lived(regular, never)}, false, false, "False", "False"},
		"sidecar starts": {[]*container{lived(sidecar, starts), lived(regular, never)}, false, false, "False", "False"},
		"both run":       {[]*container{lived(sidecar, runs), lived(regular, runs)}, true, false, "True", "True"},
		"over":           {[]*container{lived(regular, good)}, true, true, "True", "False"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: spec(tc.containers...)}
			scheduled := corev1.PodCondition{Type: corev1.PodScheduled, Status: "True", LastTransitionTime: metav1.NewTime(start)}
			old := corev1.PodStatus{PodIP: "127.64.0.1", Conditions: []corev1.PodCondition{scheduled}}
			status := newStatus(pod, old, tc.containers, tc.initialized, tc.final)
			got := map[corev1.PodConditionType]corev1.ConditionStatus{}
			for _, c := range status.Conditions {
				got[c.Type] = c.Status
			}
			if got[corev1.PodScheduled] != "True" {
				t.Error("the scheduler's condition is lost")
			}
			if got[corev1.PodInitialized] != tc.wantInit || got[corev1.PodReady] != tc.want || got[corev1.ContainersReady] != tc.want {
				t.Errorf("conditions %v, want Initialized %s, both Ready %s", got, tc.wantInit, tc.want)
			}
			again := newStatus(pod, status, tc.containers, tc.initialized, tc.final)
			for i, c := range again.Conditions {
				if !c.LastTransitionTime.Equal(&status.Conditions[i].LastTransitionTime) {
					t.Errorf("%s moved without a change", c.Type)
				}
			}
		})
	}
}

func TestRestarts(t *testing.T) {
	pod := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways}
	c := lived(regular, bad)
	if c.over(&pod) || c.restarts != 0 || c.state.Terminated.ExitCode != 3 {
		t.Fatalf("after the first end: over %t, %d restarts, %+v", c.over(&pod), c.restarts, c.state)
	}
	var waits []time.Duration
	now := start.Add(time.Second)
	for range 6 {
		waits = append(waits, c.notBefore.Sub(now))
		c.backOff()
		if c.state.Waiting == nil || c.state.Waiting.Reason != "CrashLoopBackOff" || c.last.Terminated == nil {
			t.Fatalf("while it waits: %+v, last %+v", c.state, c.last)
		}
		c.begin(&process{}, "process://2", now)
		c.end(3, "", now)
	}
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		if waits[i] != want {
			t.Errorf("wait %d is %s, want %s", i, waits[i], want)
		}
	}
	if c.restarts != 6 {
		t.Errorf("%d restarts, want 6", c.restarts)
	}
	c.begin(&process{}, "process://3", now)
	c.end(0, "", now.Add(settled))
	if wait := c.notBefore.Sub(now.Add(settled)); wait != firstBackoff {
		t.Errorf("after a long run it waits %s, want %s", wait, firstBackoff)
	}
}

func TestOver(t *testing.T) {
	for name, tc := range map[string]struct {
		k      kind
		l      life
		policy corev1.RestartPolicy
		want   bool
	}{
		"never ran":             {regular, never, corev1.RestartPolicyNever, false},
		"runs":                  {regular, runs, corev1.RestartPolicyNever, false},
		"failed, Never":         {regular, bad, corev1.RestartPolicyNever, true},
		"failed, OnFailure":     {regular, bad, corev1.RestartPolicyOnFailure, false},
		"backs off, OnFailure":  {regular, backoff, corev1.RestartPolicyOnFailure, false},
		"done, OnFailure":       {regular, good, corev1.RestartPolicyOnFailure, true},
		"done, Always":          {regular, good, corev1.RestartPolicyAlways, false},
		"initialized, Always":   {initializer, good, corev1.RestartPolicyAlways, true},
		"initializer failed":    {initializer, bad, corev1.RestartPolicyAlways, false},
		"initializer, Never":    {initializer, bad, corev1.RestartPolicyNever, true},
		"sidecar ended, Never":  {sidecar, good, corev1.RestartPolicyNever, false},
		"sidecar failed, Never": {sidecar, bad, corev1.RestartPolicyNever, false},
	} {
		if got := lived(tc.k, tc.l).over(&corev1.PodSpec{RestartPolicy: tc.policy}); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

func TestResume(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "a"}, {Name: "b"}, {Name: "new"}},
	}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "a", RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		{Name: "b", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}},
	}
	all := newContainers(pod)
	if exit := all[0].exit(); exit == nil || exit.ExitCode != 137 || all[0].restarts != 2 {
		t.Errorf("one that ran: %+v, %d restarts; want 137 and 2", exit, all[0].restarts)
	}
	if exit := all[1].exit(); exit == nil || exit.ExitCode != 0 {
		t.Errorf("one that had ended: %+v, want 0", exit)
	}
	if all[2].exit() != nil {
		t.Error("one that never ran has ended")
	}
}

func TestStopOrder(t *testing.T) {
	first, second := lived(sidecar, runs), lived(sidecar, runs)
	a, b := lived(regular, runs), lived(regular, runs)
	groups := stopOrder([]*container{first, lived(initializer, good), second, a, b})
	if len(groups) != 3 || len(groups[0]) != 3 || groups[1][0] != second || groups[2][0] != first {
		t.Errorf("groups %v: want regular ones, then the last sidecar, then the first", groups)
	}
}
