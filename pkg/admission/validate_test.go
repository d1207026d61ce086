package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	labels := func(key, value string) Changes { return Changes{Labels: map[string]string{key: value}} }
	annotations := func(key, value string) Changes { return Changes{Annotations: map[string]string{key: value}} }
	selector := func(key, value string) Changes { return Changes{NodeSelector: map[string]string{key: value}} }
	toleration := func(t Toleration) Changes { return Changes{Tolerations: []Toleration{t}} }
	a63, a64 := strings.Repeat("a", 63), strings.Repeat("a", 64)
	domain253 := strings.Repeat("a.", 126) + "a"

	tests := map[string]struct {
		changes Changes
		field   string // of the error; empty means valid
	}{
		"Zero":             {Changes{}, ""},
		"Label":            {labels("example.com/Team_1.x", "A-b_c.D9"), ""},
		"LabelEmptyValue":  {labels("team", ""), ""},
		"LabelLongest":     {labels(domain253+"/"+a63, a63), ""},
		"LabelSubdomain":   {labels("cluster-autoscaler.kubernetes.io/safe-to-evict", "true"), ""},
		"LabelReserved":    {labels("kueue.x-k8s.io/queue-name", "a"), `changes.labels["kueue.x-k8s.io/queue-name"]`},
		"LabelReservedUp":  {labels("LeoFlow.io/x", "a"), `changes.labels["LeoFlow.io/x"]`},
		"LabelNoName":      {labels("example.com/", "a"), `changes.labels["example.com/"]`},
		"LabelNoDomain":    {labels("/team", "a"), `changes.labels["/team"]`},
		"LabelEmptyKey":    {labels("", "a"), `changes.labels[""]`},
		"LabelTwoSlashes":  {labels("a/b/c", "a"), `changes.labels["a/b/c"]`},
		"LabelUpperDomain": {labels("Example.com/team", "a"), `changes.labels["Example.com/team"]`},
		"LabelDash":        {labels("-team", "a"), `changes.labels["-team"]`},
		"LabelLongName":    {labels(a64, "a"), `changes.labels["` + a64 + `"]`},
		"LabelLongDomain":  {labels(domain253+"a/b", "a"), `changes.labels["` + domain253[:128] + `"]`},
		"LabelLongValue":   {labels("team", a64), `changes.labels["team"]`},
		"LabelBadValue":    {labels("team", "a b"), `changes.labels["team"]`},
		"LabelNewline":     {labels("team", "a\n"), `changes.labels["team"]`},
		"LabelFirst":       {Changes{Labels: map[string]string{"z": "!", "b": "!", "a": "1"}}, `changes.labels["b"]`},

		"Annotation":          {annotations("Example.com/Note", "any text, € and\nlines"), ""},
		"AnnotationReserved":  {annotations("dispatch.phpboyscout.uk/admission-count", "1"), `changes.annotations["dispatch.phpboyscout.uk/admission-count"]`},
		"AnnotationKey":       {annotations("a b", ""), `changes.annotations["a b"]`},
		"AnnotationText":      {annotations("a", "\xff"), `changes.annotations["a"]`},
		"AnnotationFull":      {annotations("a", strings.Repeat("x", 256<<10-1)), ""},
		"AnnotationTooLarge":  {annotations("a", strings.Repeat("x", 256<<10)), "changes.annotations"},
		"SelectorReservedKey": {selector("kubernetes.io/hostname", "node-1"), ""},
		"SelectorKey":         {selector("a b", "x"), `changes.nodeSelector["a b"]`},
		"SelectorValue":       {selector("pool", "x/y"), `changes.nodeSelector["pool"]`},

		"Tolerate":               {toleration(Toleration{Key: "example.com/gpu", Value: "a"}), ""},
		"TolerateEqual":          {toleration(Toleration{Key: "gpu", Operator: "Equal", Effect: "NoSchedule"}), ""},
		"TolerateAll":            {toleration(Toleration{Operator: "Exists"}), ""},
		"TolerateFor":            {toleration(Toleration{Key: "gpu", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(-1))}), ""},
		"TolerateEight":          {Changes{Tolerations: slices.Repeat([]Toleration{{Key: "gpu"}}, 8)}, ""},
		"TolerateNine":           {Changes{Tolerations: slices.Repeat([]Toleration{{Key: "gpu"}}, 9)}, "changes.tolerations"},
		"TolerateOperator":       {toleration(Toleration{Key: "gpu", Operator: "Gt", Value: "1"}), "changes.tolerations[0].operator"},
		"TolerateOperatorCase":   {toleration(Toleration{Key: "gpu", Operator: "exists"}), "changes.tolerations[0].operator"},
		"TolerateNoKey":          {toleration(Toleration{Value: "a"}), "changes.tolerations[0].operator"},
		"TolerateExistsValue":    {toleration(Toleration{Key: "gpu", Operator: "Exists", Value: "a"}), "changes.tolerations[0].value"},
		"TolerateEffect":         {toleration(Toleration{Key: "gpu", Effect: "Never"}), "changes.tolerations[0].effect"},
		"TolerateSecondsEffect":  {toleration(Toleration{Key: "gpu", Effect: "NoSchedule", TolerationSeconds: new(int64(1))}), "changes.tolerations[0].tolerationSeconds"},
		"TolerateSecondsForever": {toleration(Toleration{Key: "gpu", TolerationSeconds: new(int64(1))}), "changes.tolerations[0].tolerationSeconds"},
		"TolerateKey":            {toleration(Toleration{Key: "a b"}), "changes.tolerations[0].key"},
		"TolerateValue":          {toleration(Toleration{Key: "gpu", Value: "a b"}), "changes.tolerations[0].value"},
		"TolerateSecond":         {Changes{Tolerations: []Toleration{{Key: "a"}, {Key: "!"}}}, "changes.tolerations[1].key"},

		"Names":        {Changes{PriorityClassName: "system.high-1", ServiceAccount: "trainer"}, ""},
		"Priority":     {Changes{PriorityClassName: "High"}, "changes.priorityClassName"},
		"Account":      {Changes{ServiceAccount: "ns/sa"}, "changes.serviceAccount"},
		"AccountSpace": {Changes{ServiceAccount: " "}, "changes.serviceAccount"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := AdmitWith(tc.changes).Validate()
			var problem *FieldError
			if errors.As(err, &problem) != (tc.field != "") {
				t.Fatalf("got error %v, want one about %q", err, tc.field)
			}
			if problem != nil && problem.Field != tc.field {
				t.Errorf("error names %s, want %s: %v", problem.Field, tc.field, err)
			}
		})
	}
}

func TestReservedKeys(t *testing.T) {
	tests := map[string]bool{
		"dispatch.phpboyscout.uk/x": true,
		"kueue.x-k8s.io/queue-name": true,
		"trainer.kubeflow.org/x":    true,
		"jobset.sigs.k8s.io/x":      true,
		"batch.kubernetes.io/x":     true,
		"kubernetes.io/hostname":    true,
		"k8s.io/x":                  true,
		"leoflow.io/x":              true,
		"dexaflow.io/x":             true,
		"LEOFLOW.IO/x":              true,
		"K8S.io/":                   true,
		"cluster-autoscaler.kubernetes.io/safe-to-evict": false,
		"app.kubernetes.io/name":                         false,
		"x.leoflow.io/x":                                 false,
		"kubernetes.io":                                  false,
		"leoflow.iox/x":                                  false,
		"example.com/kubernetes.io/x":                    false,
		"":                                               false,
	}
	for key, want := range tests {
		if got := IsReservedKey(key); got != want {
			t.Errorf("IsReservedKey(%q) = %t", key, got)
		}
	}
}

func TestReservedPrefixesIsACopy(t *testing.T) {
	ReservedPrefixes()[0] = "free/"
	if !IsReservedKey(ReservedPrefixes()[0]+"x") || IsReservedKey("free/x") {
		t.Error("the list can be changed from outside")
	}
	for _, p := range ReservedPrefixes() {
		if !strings.HasSuffix(p, "/") || p != strings.ToLower(p) {
			t.Errorf("prefix %q is not a lower-case domain with a slash", p)
		}
	}
}

func ExampleChanges_Validate() {
	err := Changes{Labels: map[string]string{"kueue.x-k8s.io/queue-name": "mine"}}.Validate()
	fmt.Println(err)
	// Output: changes.labels["kueue.x-k8s.io/queue-name"]: the key is reserved
}
