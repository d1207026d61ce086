package fence

import (
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

func TestIsDispatch(t *testing.T) {
	const ulid = "01j9zzzzzzzzzzzzzzzzzzzzzz"
	cases := map[string]struct {
		name     string
		managers []string
		want     bool
		reason   string
	}{
		"first start":          {name: "dj-" + ulid + "-s0", want: true, reason: "N may be 0"},
		"tenth start":          {name: "dj-" + ulid + "-s10", want: true, reason: "N is decimal"},
		"huge start":           {name: "dj-" + ulid + "-s99999999999999999999999", want: true, reason: "N has no upper bound"},
		"smallest ULID":        {name: "dj-00000000000000000000000000-s1", want: true, reason: "zero is a ULID"},
		"largest ULID":         {name: "dj-7zzzzzzzzzzzzzzzzzzzzzzzzz-s1", want: true, reason: "128 bits of ones"},
		"overflow":             {name: "dj-8zzzzzzzzzzzzzzzzzzzzzzzzz-s1", reason: "the first character would need 129 bits"},
		"25 characters":        {name: "dj-" + ulid[1:] + "-s1", reason: "a ULID has 26"},
		"27 characters":        {name: "dj-0" + ulid + "-s1", reason: "a ULID has 26"},
		"i":                    {name: "dj-01j9zzzzzzzzzzzzzzzzzzzzzi-s1", reason: "not in the alphabet"},
		"l":                    {name: "dj-01j9zzzzzzzzzzzzzzzzzzzzzl-s1", reason: "not in the alphabet"},
		"o":                    {name: "dj-01j9zzzzzzzzzzzzzzzzzzzzzo-s1", reason: "not in the alphabet"},
		"u":                    {name: "dj-01j9zzzzzzzzzzzzzzzzzzzzzu-s1", reason: "not in the alphabet"},
		"upper case":           {name: "dj-01J9ZZZZZZZZZZZZZZZZZZZZZZ-s1", reason: "names are lower case"},
		"leading zero":         {name: "dj-" + ulid + "-s01", reason: "N has no leading zero"},
		"no number":            {name: "dj-" + ulid + "-s", reason: "N is required"},
		"no start":             {name: "dj-" + ulid, reason: "the start is required"},
		"trailing dash":        {name: "dj-" + ulid + "-s1-", reason: "nothing may follow"},
		"trailing newline":     {name: "dj-" + ulid + "-s1\n", reason: "nothing may follow"},
		"prefix":               {name: "x-dj-" + ulid + "-s1", reason: "nothing may precede"},
		"negative":             {name: "dj-" + ulid + "-s-1", reason: "N is a natural number"},
		"dispatch's patch":     {name: "any", managers: []string{"kueue.x-k8s.io/manager", v1alpha1.DispatchManager}, want: true, reason: "the adapter marked it"},
		"our own patch":        {name: "any", managers: []string{v1alpha1.AdmissionManager}, reason: "what the gate wrote proves nothing"},
		"manager with a slash": {name: "any", managers: []string{v1alpha1.DispatchManager + "/x"}, reason: "managers are compared whole"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			job := &trainer.TrainJob{}
			job.Name = tc.name
			for _, m := range tc.managers {
				job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, trainer.RuntimePatch{Manager: m})
			}
			if got := IsDispatch(job); got != tc.want {
				t.Errorf("IsDispatch(%q, %q) = %v, want %v: %s", tc.name, tc.managers, got, tc.want, tc.reason)
			}
		})
	}
}
