package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// largest is a request of usual size that could not be larger.
func largest() *admission.Request {
	n := 0
	req := filled(reflect.TypeFor[admission.Request](), &n).Interface().(admission.Request)
	grow(reflect.ValueOf(&req).Elem(), usualText)
	return &req
}

func grow(v reflect.Value, text int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("x", text))
	case reflect.Struct:
		if v.Type() == timeType {
			return
		}
		for i := range v.NumField() {
			length := usualText
			if v.Type().Field(i).Name == "Annotations" {
				length = usualAnnotation
			}
			grow(v.Field(i), length)
		}
	case reflect.Slice:
		one := v.Index(0)
		grow(one, text)
		list := reflect.MakeSlice(v.Type(), usualItems, usualItems)
		for i := range usualItems {
			list.Index(i).Set(one)
		}
		v.Set(list)
	case reflect.Map:
		for i := range usualEntries {
			key := strings.Repeat("k", usualKey-4) + fmt.Sprintf("%04d", i)
			v.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(strings.Repeat("x", text)))
		}
		v.SetMapIndex(v.MapKeys()[0], reflect.Value{}) // one too many with the one that was there
	default:
	}
}

// TestEstimatesHold counts the cost of the expressions of the documentation,
// and of others, about the largest request that the estimates are made for.
func TestEstimatesHold(t *testing.T) {
	req := largest()
	if !requestType.usual(reflect.ValueOf(req).Elem()) {
		t.Fatal("the request is not of usual size")
	}
	p := manyRules(t, 30)
	all := map[string]*expression{}
	for _, r := range p.rules {
		all[r.name+" when"], all[r.name+" unless"] = r.when, r.unless
		all[r.name+" reason"], all[r.name+" until"] = r.say.reason, r.say.until
	}
	c, err := newCompiler()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`request.execution.annotations.all(k, !request.execution.annotations[k].contains("yy"))`,
		`request.podSets.all(p, p.images.all(i, !i.matches("^y{3}[0-9]+z$")))`,
		`request.podSets.map(p, p.images).flatten().join(",").startsWith("y")`,
		`request.podSets.all(p, p.flavors.all(k, p.flavors[k] != k))`,
		`request.podSets.all(p, units(p.name.substring(0, 0)) == 0 && p.count > 0)`,
		`request.tenantID + request.dagID + request.runID == request.taskID`,
		`request.execution.labels.all(k, request.execution.labels[?k].orValue("") != request.tenantID)`,
		`request.tenantID.lowerAscii().split("x").size() == 1`,
		`request.execution.tolerations.exists(t, t.key in ["a", "b"])`,
		`sets.contains(request.podSets[0].images, request.podSets[1].images)`,
		`request.podSets[0].images.isSorted()`,
		`request.image.replace("x", "yy").size() > 1`,
		`request.image.find("x+y").size() > 0`,
		`string(request.tryNumber) + request.image == "x"`,
		`"%s %s".format([request.image, request.tenantID]) == "x"`,
	} {
		e, faults := c.compile(text, cel.BoolType, tests{})
		if faults != nil {
			t.Fatal(text, faults)
		}
		all[text] = e
	}
	s := newScope(req, noon)
	for text, e := range all {
		if e == nil || e.constant != nil {
			continue
		}
		s.spent, e.proven = 0, false
		_, err := s.eval(e)
		if s.spent > e.most || s.spent == 0 && err == nil {
			t.Errorf("%s: costs %d, at most %d were expected", text, s.spent, e.most)
		}
	}
}

// TestUsual finds what makes a request larger than the estimates allow, in
// every field.
func TestUsual(t *testing.T) {
	for name, change := range map[string]func(*admission.Request){
		"Text":       func(r *admission.Request) { r.TenantID += "x" },
		"Nested":     func(r *admission.Request) { r.Resources.Requests.CPU += "x" },
		"Label":      func(r *admission.Request) { r.Execution.Labels["a"] = strings.Repeat("x", usualText+1) },
		"Key":        func(r *admission.Request) { r.Execution.Labels[strings.Repeat("x", usualKey+1)] = "" },
		"Entries":    func(r *admission.Request) { r.PodSets[31].Flavors["a"] = "" },
		"Annotation": func(r *admission.Request) { r.Execution.Annotations["a"] = strings.Repeat("x", usualAnnotation+1) },
		"PodSets":    func(r *admission.Request) { r.PodSets = append(r.PodSets, r.PodSets[0]) },
		"Images":     func(r *admission.Request) { r.PodSets[31].Images = append(r.PodSets[31].Images, "") },
		"Image":      func(r *admission.Request) { r.PodSets[31].Images[31] += "x" },
		"Toleration": func(r *admission.Request) { r.Execution.Tolerations[31].Value += "x" },
	} {
		t.Run(name, func(t *testing.T) {
			req := largest()
			if name == "Label" || name == "Annotation" || name == "Key" {
				clear(req.Execution.Labels)
				clear(req.Execution.Annotations)
			}
			change(req)
			if newScope(req, noon).usual {
				t.Error("still of usual size")
			}
		})
	}
}

// TestLimit asks about a request that is too large for the expression.
func TestLimit(t *testing.T) {
	costly := "request.podSets.all(p, p.images.all(i, !i.matches('^y+[0-9]+z$')))"
	req := &admission.Request{PodSets: []admission.PodSet{{Images: []string{strings.Repeat("x", 60<<20)}}}}
	const want = "the decision costs more than 10000000 units"
	_, err := policyOf(t, "{name: a, when: \""+costly+"\", refuse: no}").Decide(req, noon)
	if err == nil || !contains(err, `rule "a": when: `+want) {
		t.Errorf("got %v", err)
	}

	// Each is within the limit and all together are not.
	req.PodSets[0].Images[0] = strings.Repeat("x", 10<<20)
	rules := make([]string, 5)
	for i := range rules {
		rules[i] = fmt.Sprintf("{name: a%d, when: %q, refuse: no}", i, costly)
	}
	if _, err := policyOf(t, rules[0]).Decide(req, noon); err != nil {
		t.Errorf("one: %v", err)
	}
	result, err := policyOf(t, rules...).Decide(req, noon)
	if err == nil || !contains(err, want) || result.Rules[0].Outcome == Failed {
		t.Errorf("all: %v, first %v", err, result.Rules[0].Outcome)
	}

	// What audit rules spend is missing nowhere else.
	for i := range rules {
		rules[i] = strings.Replace(rules[i], "when:", "mode: audit, when:", 1)
	}
	more := slices.Concat(rules, []string{fmt.Sprintf("{name: b, when: %q, refuse: no}", costly)})
	if result, err := policyOf(t, more...).Decide(req, noon); err != nil || result.Rules[4].Outcome != Failed {
		t.Errorf("audit: %v", err)
	}
}

// TestProve leaves what is too much for all together to be counted.
func TestProve(t *testing.T) {
	all := []*expression{{most: maxCost}, {most: 1}, {most: maxCost / 2}, {most: maxCost/2 - 1}, {most: 2}}
	prove(all)
	for _, e := range all {
		if want := e.most <= maxCost/2-1; e.proven != want {
			t.Errorf("%d: proven %t", e.most, e.proven)
		}
	}
}
