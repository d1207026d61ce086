package policy

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
)

// policyOf loads rules given as the items of the list.
func policyOf(tb testing.TB, rules ...string) *Policy {
	tb.Helper()
	return mustLoad(tb, "test.yaml", []byte("rules:\n- "+strings.Join(rules, "\n- ")+"\n"))
}

func TestDecide(t *testing.T) {
	label := func(key, value string) admission.Decision {
		return admission.AdmitWith(admission.Changes{Labels: map[string]string{key: value}})
	}
	six := time.Date(2026, 3, 4, 18, 0, 0, 0, time.UTC)
	cases := map[string]struct {
		reason string
		rules  []string
		want   admission.Decision
	}{
		"Nothing":     {"no rule applies", []string{"{name: a, when: 'false', refuse: no}"}, admission.Admit()},
		"Unless":      {"an exception holds", []string{"{name: a, unless: request.tenantID == 'research', refuse: no}"}, admission.Admit()},
		"Refuse":      {"one refusal", []string{"{name: a, refuse: ' no '}"}, admission.Refuse("no")},
		"Refusals":    {"all reasons, sorted, each once", []string{"{name: a, refuse: b}", "{name: b, refuse: a}", "{name: c, refuse: b}"}, admission.Refuse("a; b")},
		"RefuseFirst": {"a refusal is stronger than a hold and a change", []string{"{name: a, hold: wait}", "{name: b, admit: {labels: {x: \"'y'\"}}}", "{name: c, refuse: no}"}, admission.Refuse("no")},
		"Hold":        {"a hold is stronger than a change", []string{"{name: b, admit: {labels: {x: \"'y'\"}}}", "{name: a, hold: wait}"}, admission.Hold("wait")},
		"Latest": {"the latest time counts, and all reasons", []string{
			"{name: a, during: {schedule: '0 12 * * *', duration: 3h}, hold: z}", "{name: b, during: {schedule: '0 12 * * *', duration: 6h}, hold: y}",
			"{name: c, during: {schedule: '0 12 * * *', duration: 1h}, hold: y}", "{name: d, hold: x}"},
			admission.HoldUntil(six, "x; y; z")},
		"Until":        {"a time that is worked out", []string{"{name: a, hold: {reason: wait, until: now + duration('6h')}}"}, admission.HoldUntil(six, "wait")},
		"Expression":   {"a reason that is worked out", []string{"{name: a, refuse: {reasonExpression: \"'not ' + request.tenantID\"}}"}, admission.Refuse("not research")},
		"Change":       {"a change", []string{"{name: a, admit: {labels: {x: request.tenantID}}}"}, label("x", "research")},
		"Merged":       {"changes of all", []string{"{name: a, admit: {labels: {x: \"'1'\"}}}", "{name: b, admit: {labels: {y: \"'2'\"}, serviceAccount: \"'s'\"}}", "{name: c, admit: {nodeSelector: {x: \"'3'\"}, priorityClassName: \"'p'\"}}"}, admission.AdmitWith(admission.Changes{Labels: map[string]string{"x": "1", "y": "2"}, NodeSelector: map[string]string{"x": "3"}, ServiceAccount: "s", PriorityClassName: "p"})},
		"Agree":        {"two that want the same agree", []string{"{name: a, admit: {labels: {x: \"'1'\"}, serviceAccount: \"'s'\"}}", "{name: b, admit: {labels: {x: \"'1'\"}, serviceAccount: \"'s'\"}}"}, admission.AdmitWith(admission.Changes{Labels: map[string]string{"x": "1"}, ServiceAccount: "s"})},
		"Tolerations":  {"tolerations are appended in order, equal ones once", []string{"{name: a, admit: {tolerations: [{key: \"'b'\", operator: Exists}, {key: \"'a'\", operator: Exists, effect: NoExecute, tolerationSeconds: 5}]}}", "{name: b, admit: {tolerations: [{key: \"'a'\", operator: Exists, effect: NoExecute, tolerationSeconds: 5}, {key: \"'b'\", operator: Equal, value: request.tenantID}]}}"}, admission.AdmitWith(admission.Changes{Tolerations: []admission.Toleration{{Key: "b", Operator: "Exists"}, {Key: "a", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(5))}, {Key: "b", Operator: "Equal", Value: "research"}}})},
		"EmptyName":    {"an empty service account changes nothing", []string{"{name: a, admit: {serviceAccount: request.operator}}", "{name: b, admit: {serviceAccount: \"'s'\"}}"}, admission.AdmitWith(admission.Changes{ServiceAccount: "s"})},
		"Audit":        {"audit rules decide nothing, whatever they say", []string{"{name: a, mode: audit, refuse: no}", "{name: b, mode: audit, hold: wait}", "{name: c, mode: audit, admit: {labels: {x: \"'1'\"}}}", "{name: d, admit: {labels: {x: \"'2'\"}}}"}, label("x", "2")},
		"AuditFails":   {"not even when they fail", []string{"{name: a, mode: audit, when: 'request.podSets[9].count > 0', refuse: no}"}, admission.Admit()},
		"Closed":       {"a window that is closed", []string{"{name: a, during: {schedule: '0 13 * * *', duration: 1h}, refuse: no}"}, admission.Admit()},
		"WindowRefuse": {"a refusal in a window has no time", []string{"{name: a, during: {schedule: '0 12 * * *', duration: 1h}, refuse: no}"}, admission.Refuse("no")},
		"Guarded":      {"when guards unless, and both guard the rest", []string{"{name: a, when: \"'team' in request.execution.labels\", unless: \"request.execution.labels['team'] == 'x'\", refuse: {reasonExpression: \"request.execution.labels['team']\"}}"}, admission.Admit()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := policyOf(t, tc.rules...).Decide(&admission.Request{TenantID: "research"}, noon)
			if err != nil || !got.Decision.Equal(tc.want) {
				t.Errorf("%s: got %v, %v, want %v", tc.reason, got.Decision, err, tc.want)
			}
		})
	}
}

func TestNoVerdict(t *testing.T) {
	cases := map[string]struct {
		reason string
		rules  []string
		want   string
	}{
		"When":      {"a condition fails", []string{"{name: a, when: 'request.podSets[0].count > 1', refuse: no}"}, `rule "a": when: index out of bounds: 0`},
		"Unless":    {"an exception fails", []string{"{name: a, unless: 'request.podSets[0].count > 1', refuse: no}"}, `rule "a": unless: index`},
		"Reason":    {"a reason fails", []string{"{name: a, hold: {reasonExpression: 'request.podSets[0].name'}}"}, `rule "a": hold.reasonExpression: index`},
		"NoReason":  {"a reason is empty", []string{"{name: a, refuse: {reasonExpression: request.operator + ' '}}"}, `rule "a": refuse.reasonExpression: the reason is empty`},
		"Until":     {"a time fails", []string{"{name: a, hold: {reason: b, until: timestamp(request.image)}}"}, `rule "a": hold.until: `},
		"Label":     {"a value fails", []string{"{name: a, admit: {labels: {x: 'request.podSets[0].name'}}}"}, `rule "a": admit.labels["x"]: index`},
		"BadLabel":  {"a value is no label", []string{"{name: a, admit: {labels: {x: request.image}}}"}, `rule "a": admit.labels["x"]: the value "a b" is not a label value`},
		"Selector":  {"nor a value of a selector", []string{"{name: a, admit: {nodeSelector: {x: request.image}}}"}, `rule "a": admit.nodeSelector["x"]: the value`},
		"Account":   {"a name is none", []string{"{name: a, admit: {serviceAccount: request.image}}"}, `rule "a": admit.serviceAccount: "a b"`},
		"Class":     {"a name fails", []string{"{name: a, admit: {priorityClassName: 'request.podSets[0].name'}}"}, `rule "a": admit.priorityClassName: index`},
		"Key":       {"a key fails", []string{"{name: a, admit: {tolerations: [{key: 'request.podSets[0].name', operator: Exists}]}}"}, `rule "a": admit.tolerations[0].key: index`},
		"EmptyKey":  {"a key is empty", []string{"{name: a, admit: {tolerations: [{key: request.operator, operator: Equal}]}}"}, `rule "a": admit.tolerations[0].operator: must be Exists`},
		"Value":     {"a value fails", []string{"{name: a, admit: {tolerations: [{key: \"'k'\", value: 'request.podSets[0].name'}]}}"}, `rule "a": admit.tolerations[0].value: index`},
		"All":       {"all rules that fail are named", []string{"{name: a, when: 'request.podSets[0].count > 1', refuse: no}", "{name: b, refuse: no}", "{name: c, when: 'request.podSets[1].count > 1', refuse: no}"}, "rule \"a\": when: index out of bounds: 0\nrule \"c\": when: index out of bounds: 1"},
		"Conflict":  {"two labels", []string{"{name: a, admit: {labels: {x: \"'1'\"}}}", "{name: b, admit: {labels: {y: \"'1'\"}}}", "{name: c, admit: {labels: {x: \"'2'\"}}}"}, `rules "a" and "c" contradict each other: labels["x"] is "1" by the one and "2" by the other`},
		"Accounts":  {"two accounts", []string{"{name: a, admit: {serviceAccount: \"'s'\"}}", "{name: b, admit: {serviceAccount: \"'t'\"}}"}, `rules "a" and "b" contradict each other: serviceAccount is "s" by the one and "t" by the other`},
		"Conflicts": {"several conflicts are sorted", []string{"{name: a, admit: {labels: {x: \"'1'\", w: \"'1'\"}}}", "{name: b, admit: {labels: {x: \"'2'\", w: \"'2'\"}}}"}, `labels["w"] is "1" by the one and "2" by the other; rules "a" and "b" contradict each other: labels["x"]`},
		"TooMany":   {"too many tolerations in all", []string{tolerations("a", 5), tolerations("b", 4)}, "the changes of all rules together: changes.tolerations: 9 given, at most 8 allowed"},
		"Zone":      {"a time zone that the request brings", []string{"{name: a, when: 'now.getHours(request.image) > 1', refuse: no}"}, `rule "a": when: time zone "a b": only zones that stand in the expression`},
		"Quantity":  {"no quantity", []string{"{name: a, when: 'units(request.image) > 1', refuse: no}"}, `rule "a": when: "a b" is not a quantity`},
		"Overflow":  {"arithmetic", []string{"{name: a, when: 'units(\"9E\") * request.tryNumber > 1', refuse: no}"}, `overflow`},
		"Dyn":       {"what the types do not know", []string{"{name: a, when: 'dyn(request).tenant == \"x\"', refuse: no}"}, `rule "a": when: no such field: tenant`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := policyOf(t, tc.rules...).Decide(&admission.Request{Image: "a b", TryNumber: 9}, noon)
			if err == nil || !contains(err, tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
			if !got.Decision.Equal(admission.Admit()) || len(got.Rules) != len(tc.rules) {
				t.Errorf("%s: got %v and %d rules", tc.reason, got.Decision, len(got.Rules))
			}
		})
	}
}

func TestLargeAnnotations(t *testing.T) {
	p := policyOf(t, "{name: a, admit: {annotations: {x: request.image}}}", "{name: b, admit: {annotations: {y: request.image}}}")
	req := &admission.Request{Image: strings.Repeat("x", 120<<10)}
	if _, err := p.Decide(req, noon); err != nil {
		t.Errorf("two of half the size: %v", err)
	}
	req.Image = strings.Repeat("x", 300<<10)
	_, err := p.Decide(req, noon)
	if err == nil || !contains(err, `rule "a": admit.annotations: more than 262144 bytes`) {
		t.Errorf("got %v", err)
	}
	req.Image = req.Image[:140<<10]
	_, err = p.Decide(req, noon)
	if err == nil || !contains(err, "the changes of all rules together: changes.annotations: more than") {
		t.Errorf("got %v", err)
	}
}

func tolerations(name string, n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = "{key: \"'" + name + strings.Repeat("x", i) + "'\", operator: Exists}"
	}
	return "{name: " + name + ", admit: {tolerations: [" + strings.Join(list, ", ") + "]}}"
}

// TestResult looks at what evaluating a policy for a reader is made of.
func TestResult(t *testing.T) {
	p := policyOf(t,
		"{name: closed, during: {schedule: '0 13 * * *', duration: 1h}, refuse: no}",
		"{name: when, when: request.tryNumber > 1, refuse: no}",
		"{name: unless, unless: request.tryNumber == 1, refuse: no}",
		"{name: audited, mode: audit, hold: wait}",
		"{name: failed, mode: audit, when: 'request.podSets[0].count > 1', refuse: no}",
		"{name: applied, admit: {labels: {x: \"'1'\"}}}",
	)
	result, err := p.Decide(&admission.Request{TryNumber: 1}, noon)
	if err != nil {
		t.Fatal(err)
	}
	type part struct {
		Name, Outcome, Decision string
		Audit                   bool
	}
	var got []part
	for _, r := range result.Rules {
		got = append(got, part{r.Name, r.Outcome.String(), r.Decision.Kind().String(), r.Audit})
	}
	want := []part{
		{"closed", "outside its window", "Admit", false}, {"when", "when is false", "Admit", false},
		{"unless", "unless is true", "Admit", false}, {"audited", "applied", "Hold", true},
		{"failed", "failed", "Admit", true}, {"applied", "applied", "AdmitWith", false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var rule *RuleError
	if !errors.As(result.Rules[4].Err, &rule) || rule.Rule != "failed" || rule.Field != "when" || rule.Unwrap() == nil {
		t.Errorf("got %v", result.Rules[4].Err)
	}
	if diff := cmp.Diff([]string{"audited", "applied"}, result.Applied()); diff != "" {
		t.Error(diff)
	}
	if s := Outcome(0).String() + Outcome(99).String(); s != "Outcome(0)Outcome(99)" {
		t.Error(s)
	}
}

func TestDecideAboutNothing(t *testing.T) {
	if _, err := policyOf(t, "{name: a, refuse: no}").Decide(nil, noon); err == nil {
		t.Error("no request got a verdict")
	}
}

// TestFixedChangesAreNotShared scribbles into what a decision returned.
func TestFixedChangesAreNotShared(t *testing.T) {
	p := policyOf(t, "{name: a, admit: {labels: {x: \"'1'\"}}}")
	if p.rules[0].say.changes.fixed == nil {
		t.Error("the changes are worked out at every decision")
	}
	for range 2 {
		result, err := p.Decide(&admission.Request{}, noon)
		c, _ := result.Decision.Changes()
		if err != nil || c.Labels["x"] != "1" {
			t.Fatalf("got %v, %v", result.Decision, err)
		}
		c.Labels["x"] = "2"
	}
}

// TestDecideConcurrently is for the race detector: one policy, many requests,
// with quantities so large that comparing them writes to them.
func TestDecideConcurrently(t *testing.T) {
	p := policyOf(t,
		"{name: a, when: 'quantity(request.resources.requests.cpu).isGreaterThan(quantity(\"8\"))', refuse: no}",
		"{name: b, when: 'quantity(\"2\") == quantity(\"1\").add(quantity(request.resources.requests.cpu))', hold: wait}",
	)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				for cpu, want := range map[string]admission.Kind{"1": admission.KindHold, "9": admission.KindRefuse, "99999999999999999999": admission.KindRefuse} {
					req := &admission.Request{Resources: admission.Resources{Requests: admission.Quantity{CPU: cpu}}}
					if got, err := p.Decide(req, noon); err != nil || got.Decision.Kind() != want {
						t.Errorf("%s: got %v, %v, want %v", cpu, got.Decision, err, want)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestHook runs the suite for authors of hooks against the policies of the
// documentation. They contradict each other, so each is one hook.
func TestHook(t *testing.T) {
	for _, file := range []string{"freeze-window", "cost-center", "spot-after-first-try", "gpu-ceiling", "image-allow-list"} {
		p := mustLoad(t, file, mustRead(t, examplesDir+"/"+file+".yaml"))
		t.Run(file, func(t *testing.T) { hooktest.Run(t, p.Hook(func() time.Time { return noon })) })
	}
}

func TestHookTellsTheTime(t *testing.T) {
	hook := policyOf(t, "{name: a, when: now.getHours() >= 12, refuse: no}").Hook(func() time.Time { return noon })
	got, err := hook.Admit(t.Context(), &admission.Request{})
	if err != nil || got.Kind() != admission.KindRefuse {
		t.Errorf("got %v, %v", got, err)
	}
}
