package podrunner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestThreshold(t *testing.T) {
	const period = 10 * time.Second
	type result struct {
		after time.Duration // since the container began
		ok    bool
	}
	for name, tc := range map[string]struct {
		success, failure int32
		results          []result
		verdict, certain bool // after the last result
	}{
		"first success":               {1, 3, []result{{0, true}}, true, true},
		"one success of two":          {2, 3, []result{{0, true}}, true, false},
		"two of two":                  {2, 3, []result{{0, true}, {period, true}}, true, true},
		"early failures do not count": {1, 3, []result{{0, false}, {1 * time.Second, false}, {2 * time.Second, false}, {3 * time.Second, false}}, false, false},
		"no start in time":            {1, 3, []result{{0, false}, {2 * period, false}}, false, true},
		"fails once at once":          {1, 1, []result{{0, false}}, false, true},
		"fails once after success":    {1, 3, []result{{0, true}, {period, false}}, false, false},
		"fails thrice after success":  {1, 3, []result{{0, true}, {period, false}, {2 * period, false}, {3 * period, false}}, false, true},
		"a success between":           {1, 2, []result{{0, true}, {period, false}, {2 * period, true}, {3 * period, false}}, false, false},
	} {
		th := threshold{
			probe: &corev1.Probe{SuccessThreshold: tc.success, FailureThreshold: tc.failure}, period: period, begun: start,
		}
		var verdict, certain bool
		for _, r := range tc.results {
			verdict, certain = th.count(r.ok, start.Add(r.after))
		}
		if verdict != tc.verdict || certain != tc.certain {
			t.Errorf("%s: verdict %t, certain %t; want %t, %t", name, verdict, certain, tc.verdict, tc.certain)
		}
	}
}
