package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// evaluate returns the value of any expression.
func evaluate(tb testing.TB, req *admission.Request, text string) (any, error) {
	tb.Helper()
	c, err := newCompiler()
	if err != nil {
		tb.Fatal(err)
	}
	checked, issues := c.env.Compile(text)
	if issues.Err() != nil {
		tb.Fatalf("%s: %v", text, issues.Err())
	}
	c.addZones(checked.NativeRep())
	e, err := c.plan(checked)
	if err != nil {
		return nil, err
	}
	s := newScope(req, noon)
	v, err := s.eval(e)
	e.proven = true
	plain, plainErr := s.eval(e)
	if fmt.Sprint(v, err) != fmt.Sprint(plain, plainErr) {
		tb.Errorf("%s: %v, %v, and %v, %v when its cost is counted", text, plain, plainErr, v, err)
	}
	if err != nil {
		return nil, err
	}
	return v.Value(), nil
}

// filled returns a value of the type with something in every field.
func filled(t reflect.Type, n *int) reflect.Value {
	v := reflect.New(t).Elem()
	*n++
	switch {
	case t == timeType:
		v.Set(reflect.ValueOf(noon.Add(time.Duration(*n) * time.Second)))
	case t.Kind() == reflect.String:
		v.SetString(fmt.Sprintf("text %d", *n))
	case t.Kind() == reflect.Bool:
		v.SetBool(true)
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			v.Field(i).Set(filled(t.Field(i).Type, n))
		}
	case t.Kind() == reflect.Slice:
		v = reflect.Append(v, filled(t.Elem(), n), filled(t.Elem(), n))
	case t.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(filled(t.Key(), n), filled(t.Elem(), n))
	case t.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(filled(t.Elem(), n))
	default:
		v.SetInt(int64(*n))
	}
	return v
}

func fullRequest() *admission.Request {
	n := 0
	req := filled(reflect.TypeFor[admission.Request](), &n).Interface().(admission.Request)
	return &req
}

// TestFieldsAreThoseOfTheWire reads every leaf of the JSON of a request with
// something in every field, by an expression that is its path.
func TestFieldsAreThoseOfTheWire(t *testing.T) {
	data, err := json.Marshal(fullRequest())
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	leaves := 0
	var look func(path string, node any)
	look = func(path string, node any) {
		switch node := node.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(node)) {
				if strings.HasPrefix(key, "text ") {
					look(fmt.Sprintf("%s[%q]", path, key), node[key])
				} else {
					look(path+"."+key, node[key])
				}
			}
		case []any:
			for i, item := range node {
				look(fmt.Sprintf("%s[%d]", path, i), item)
			}
		default:
			leaves++
			got, err := evaluate(t, fullRequest(), path)
			if at, ok := got.(time.Time); ok {
				got = at.Format(time.RFC3339)
			}
			if err != nil || fmt.Sprint(got) != fmt.Sprint(node) {
				t.Errorf("%s: got %v, %v, want %v", path, got, err, node)
			}
		}
	}
	look("request", tree)
	if leaves < 60 {
		t.Errorf("only %d fields", leaves)
	}
}

// TestAbsent reads a request without anything in it.
func TestAbsent(t *testing.T) {
	for text, want := range map[string]any{
		`request.tenantID`: "", `request.tryNumber`: int64(0), `request.sourceMode`: false,
		`request.podSets.size()`: int64(0), `request.execution.labels.size()`: int64(0),
		`request.resources.requests.cpu`: "", `request.execution.tolerations.size()`: int64(0),
		`has(request.tenantID)`: false, `has(request.tryNumber)`: false, `has(request.sourceMode)`: false,
		`has(request.podSets)`: false, `has(request.resources)`: false, `has(request.execution.labels)`: false,
		`has(request.creationTime)`: false, `has(request.heldSince)`: false,
		`request.?tenantID.orValue("none")`:                 "none",
		`request.?heldSince.orValue(now) == now`:            true,
		`request.execution.labels[?"a"].orValue("b")`:       "b",
		`request.?execution.?labels[?"a"].orValue("b")`:     "b",
		`request.podSets[?0].?name.orValue("no pod set")`:   "no pod set",
		`request.podSets.map(p, p.count).sum()`:             int64(0),
		`request.podSets.all(p, false)`:                     true,
		`"a" in request.execution.labels`:                   false,
		`has(request.execution.labels.a)`:                   false,
		`sign(quantity(request.resources.requests.cpu))`:    int64(0),
		`units(request.resources.requests.cpu)`:             int64(0),
		`milliUnits(request.resources.requests.cpu)`:        int64(0),
		`request.maxRunTimeSeconds`:                         int64(0),
		`dyn(request).tenantID`:                             "",
		`has(dyn(request).tenantID)`:                        false,
		`request == request`:                                true,
		`request.workload == request.job`:                   true,
		`type(request.workload) == type(request.job)`:       true,
		`request.execution.labels == {}`:                    true,
		`request.podSets == []`:                             true,
		`string(now)`:                                       "2026-03-04T12:00:00Z",
		`request.execution.nodeSelector.all(k, k == "cpu")`: true,
	} {
		if got, err := evaluate(t, &admission.Request{}, text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		`request.heldSince`: "heldSince is not set", `request.creationTime`: "creationTime is not set",
		`dyn(request).creationTime`: "creationTime is not set", `dyn(request).nothing`: "no such field: nothing",
		`has(dyn(request).nothing)`: "no such field: nothing", `dyn(request)[1]`: "no such field",
		`int(dyn(request))`: "", `dyn(request.job) == dyn(1) ? 1 : 1/0`: "division by zero",
	} {
		if _, err := evaluate(t, &admission.Request{}, text); err == nil || !contains(err, want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	one := &admission.Request{Execution: admission.Execution{Tolerations: []admission.Toleration{{}}}}
	if _, err := evaluate(t, one, `request.execution.tolerations[0].tolerationSeconds`); err == nil {
		t.Error("a toleration for ever has seconds")
	}
}

// TestEmptyIsAbsent: an empty map or list is the same as none.
func TestEmptyIsAbsent(t *testing.T) {
	req := &admission.Request{PodSets: []admission.PodSet{}, Execution: admission.Execution{Labels: map[string]string{}}}
	for _, text := range []string{`has(request.podSets)`, `has(request.execution.labels)`} {
		if got, err := evaluate(t, req, text); err != nil || got == any(true) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// TestRequestIsNotChanged evaluates about a request and compares it with a copy.
func TestRequestIsNotChanged(t *testing.T) {
	req := fullRequest()
	for _, text := range []string{
		`request.podSets.map(p, p.images)`, `request.podSets.map(p, p.flavors)`, `request.execution.labels.map(k, k + "x")`,
		`request.podSets[0].images + ["x"]`, `request.podSets.filter(p, p.count > 0)`, `sets.contains(request.podSets[0].images, ["x"])`,
	} {
		if _, err := evaluate(t, req, text); err != nil {
			t.Error(err)
		}
	}
	if !reflect.DeepEqual(req, fullRequest()) {
		t.Error("the request was changed")
	}
}

// TestTypesAreClosed: a policy cannot make values of the types of a request.
func TestTypesAreClosed(t *testing.T) {
	if _, err := evaluate(t, &admission.Request{}, `admission.Object{name: "a"}.name`); err == nil {
		t.Error("made an object")
	}
	for _, o := range objectTypes {
		if names, ok := (schema{}).FindStructFieldNames(o.name); !ok || len(names) != len(o.fields) {
			t.Errorf("%s: %v", o.name, names)
		}
	}
	var want = []string{"admission.Execution", "admission.Object", "admission.PodSet", "admission.Quantity", "admission.Request", "admission.Resources", "admission.Toleration"}
	if got := slices.Sorted(maps.Keys(objectTypes)); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
