package admission

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func fullRequest() *Request {
	return &Request{
		TenantID:   "team-a",
		DagID:      "nightly",
		RunID:      "2026-03-02",
		TaskID:     "node",
		TryNumber:  2,
		Operator:   "train",
		Image:      "registry.example/train@sha256:0f",
		SourceMode: true,
		Resources: Resources{
			Requests: Quantity{CPU: "8", Memory: "64Gi", EphemeralStorage: "10Gi"},
			Limits:   Quantity{Memory: "64Gi"},
			Extended: map[string]string{"nvidia.com/gpu": "8"},
		},
		Execution: Execution{
			ServiceAccount:    "trainer",
			PriorityClassName: "batch",
			NodeSelector:      map[string]string{"pool": "gpu"},
			Labels:            map[string]string{"team": "a"},
			Annotations:       map[string]string{"note": "<b>"},
			Tolerations: []Toleration{
				{Key: "gpu", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(60))},
			},
		},
		ServiceAccountChosen:  true,
		Namespace:             "team-a",
		LocalQueue:            "training",
		ClusterQueue:          "gpus",
		Workload:              Object{APIVersion: "kueue.x-k8s.io/v1beta2", Kind: "Workload", Name: "trainjob-x-1", UID: "w-1"},
		Job:                   Object{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "x", UID: "j-1"},
		WorkloadPriority:      1000,
		WorkloadPriorityClass: "high",
		PodSets: []PodSet{{
			Name:  "node",
			Count: 4,
			Resources: Resources{
				Requests: Quantity{CPU: "8", Memory: "64Gi"},
				Extended: map[string]string{"nvidia.com/gpu": "8"},
			},
			Images:  []string{"registry.example/init:1", "registry.example/train@sha256:0f"},
			Flavors: map[string]string{"cpu": "on-demand", "nvidia.com/gpu": "a100"},
		}, {
			Name:  "dataset-initializer",
			Count: 1,
		}},
		MaxRunTimeSeconds: 86400,
		CreationTime:      time.Date(2026, time.March, 2, 8, 0, 0, 0, time.UTC),
		HeldSince:         time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC),
		OfferCount:        3,
	}
}

// fill gives every field below v a value that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v"))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(noon))
			return
		}
		for _, field := range v.Fields() {
			fill(field)
		}
	default:
		panic("fill: " + v.Kind().String())
	}
}

// shared lists the maps, slices and pointers that a and b both hold.
func shared(path string, a, b reflect.Value) []string {
	switch a.Kind() {
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[time.Time]() {
			return nil
		}
		var all []string
		for i := range a.NumField() {
			all = append(all, shared(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))...)
		}
		return all
	case reflect.Map, reflect.Pointer:
		if a.UnsafePointer() == b.UnsafePointer() {
			return []string{path}
		}
	case reflect.Slice:
		if a.UnsafePointer() == b.UnsafePointer() {
			return []string{path}
		}
		return shared(path+"[0]", a.Index(0), b.Index(0))
	}
	return nil
}

func TestRequestClone(t *testing.T) {
	var r Request
	fill(reflect.ValueOf(&r).Elem())
	c := r.Clone()
	if !reflect.DeepEqual(&r, c) {
		t.Errorf("got %+v, want %+v", c, r)
	}
	if all := shared("Request", reflect.ValueOf(r), reflect.ValueOf(*c)); all != nil {
		t.Errorf("shared with the copy: %v", all)
	}
	if got := new(Request).Clone(); !reflect.DeepEqual(got, new(Request)) {
		t.Errorf("copy of the zero request: %+v", got)
	}
}

// The images of all pod sets lie in one array.
func TestCloneSeparatesImages(t *testing.T) {
	r := &Request{PodSets: []PodSet{{Images: []string{"a", "b"}}, {Images: []string{}}, {Images: []string{"c"}}}}
	c := r.Clone()
	c.PodSets[0].Images = append(c.PodSets[0].Images, "grown")
	want := []PodSet{{Images: []string{"a", "b", "grown"}}, {}, {Images: []string{"c"}}}
	if !reflect.DeepEqual(c.PodSets, want) {
		t.Errorf("got %+v", c.PodSets)
	}
	r = &Request{PodSets: make([]PodSet, 8)}
	for i := range r.PodSets {
		r.PodSets[i].Images = []string{"a"}
	}
	if n := testing.AllocsPerRun(100, func() { r.Clone() }); n > 3 {
		t.Errorf("%v allocations for 8 pod sets with one image each", n)
	}
}

// fields lists the JSON names below t.
func fields(t reflect.Type) []string {
	switch t.Kind() {
	case reflect.Slice, reflect.Pointer:
		return fields(t.Elem())
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return nil
		}
		var all []string
		for field := range t.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			all = append(all, name)
			all = append(all, fields(field.Type)...)
		}
		return all
	}
	return nil
}

func TestFieldNames(t *testing.T) {
	for _, typ := range []reflect.Type{reflect.TypeFor[Request](), reflect.TypeFor[Changes]()} {
		for _, name := range fields(typ) {
			lower := strings.ToLower(name)
			if name == "" || name[:1] != lower[:1] || strings.ContainsAny(name, "_-") {
				t.Errorf("%s: %q is not lowerCamel", typ, name)
			}
			for _, word := range []string{"env", "secret", "token", "password"} {
				if strings.Contains(lower, word) {
					t.Errorf("%s: %q is something that a request never carries", typ, name)
				}
			}
		}
	}
}

func ExampleRequest_Clone() {
	req := &Request{Execution: Execution{Labels: map[string]string{"team": "a"}}}
	copied := req.Clone()
	copied.Execution.Labels["team"] = "b"
	fmt.Println(req.Execution.Labels["team"])
	// Output: a
}
