package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files instead of reading them")

func goldenDecisions() map[string]Decision {
	return map[string]Decision{
		"admit":           Admit(),
		"admit-with-none": AdmitWith(Changes{}),
		"admit-with": AdmitWith(Changes{
			NodeSelector:      map[string]string{"pool": "team-a"},
			Labels:            map[string]string{"team": "a"},
			Annotations:       map[string]string{"example.com/note": "<b> & \"c\""},
			Tolerations:       []Toleration{{Key: "gpu", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(0))}, {Key: "team", Value: "a"}},
			PriorityClassName: "batch",
			ServiceAccount:    "trainer",
		}),
		"hold":       Hold("freeze until Monday"),
		"hold-until": HoldUntil(noon, "freeze until Monday"),
		"refuse":     Refuse("more than 8 CPUs"),
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "v1", name+".json")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the wire changed\ngot  %s\nwant %s", got, want)
	}
}

func TestDecisionGolden(t *testing.T) {
	for name, d := range goldenDecisions() {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "decision-"+name, got)
			var back Decision
			if err := json.Unmarshal(got, &back); err != nil || !back.Equal(d) {
				t.Errorf("came back as %v, %v", back, err)
			}
		})
	}
}

func TestRequestGolden(t *testing.T) {
	for name, r := range map[string]*Request{"zero": {}, "full": fullRequest()} {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "request-"+name, got)
			var back Request
			if err := json.Unmarshal(got, &back); err != nil || !reflect.DeepEqual(&back, r) {
				t.Errorf("came back as %+v, %v", back, err)
			}
		})
	}
}

func TestReadDecision(t *testing.T) {
	tests := map[string]struct {
		reason string
		json   string
		want   Decision
	}{
		"Unknown":      {"fields of a later version are ignored", `{"later":{"a":[1]},"decision":"Admit"}`, Admit()},
		"UnknownDeep":  {"also inside changes", `{"decision":"AdmitWith","changes":{"later":1,"labels":{"a":"b"}}}`, AdmitWith(Changes{Labels: map[string]string{"a": "b"}})},
		"Nulls":        {"null means absent", `{"decision":"Admit","reason":null , "until": null, "changes" : null }`, Admit()},
		"Empties":      {"empty and null members change nothing", `{"decision":"AdmitWith","changes":{"labels":{},"nodeSelector":null,"tolerations":[],"serviceAccount":null}}`, AdmitWith(Changes{})},
		"OtherCase":    {"a name in another case is unknown", `{"decision":"AdmitWith","changes":{"nodeselector":{"a":"b"},"tolerations":[{"Key":"a","key":"b","tolerationSeconds":null}]}}`, AdmitWith(Changes{Tolerations: []Toleration{{Key: "b"}}})},
		"Toleration":   {"every field of a toleration is read", `{"decision":"AdmitWith","changes":{"tolerations":[{"key":"a","operator":"Equal","value":"b","effect":"NoExecute","tolerationSeconds":5,"later":{}}]}}`, AdmitWith(Changes{Tolerations: []Toleration{{"a", "Equal", "b", "NoExecute", new(int64(5))}}})},
		"AdmitReason":  {"a reason beside Admit has nowhere to go", `{"decision":"Admit","reason":"fits"}`, Admit()},
		"NoReason":     {"a hold without a reason is a hold", `{"decision":"Hold"}`, Hold("")},
		"RefuseReason": {"reasons are cleaned", `{"decision":"Refuse","reason":"  a\ud800 "}`, Refuse("a\uFFFD")},
		"Offset":       {"times may have an offset", `{"decision":"Hold","reason":"a","until":"2026-03-02T13:00:00.000000005+01:00"}`, HoldUntil(noon, "a")},
		"Space":        {"white space is free", " {\n\t\"decision\" : \"Refuse\" , \"reason\":\"a\"}\n", Refuse("a")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got Decision
			if err := json.Unmarshal([]byte(tc.json), &got); err != nil || !got.Equal(tc.want) {
				t.Errorf("%s\ngot  %v, %v\nwant %v", tc.reason, got, err, tc.want)
			}
		})
	}
}

func TestReadDecisionErrors(t *testing.T) {
	tests := map[string]struct {
		json    string
		names   string // what the error must name
		unknown bool
	}{
		"Empty":           {json: ``, names: "EOF"},
		"Null":            {json: `null`, names: "not a JSON object"},
		"Array":           {json: `["Admit"]`, names: "not a JSON object"},
		"Text":            {json: `"Admit"`, names: "not a JSON object"},
		"Unclosed":        {json: `{"decision":"Admit"`, names: "EOF"},
		"Trailing":        {json: `{"decision":"Admit"}{}`, names: "after"},
		"TrailingBrace":   {json: `{"decision":"Admit"}}`, names: "after"},
		"TrailingText":    {json: `{"decision":"Admit"}x`, names: "after"},
		"NoComma":         {json: `{"decision":"Admit" "reason":"a"}`, names: "invalid"},
		"Missing":         {json: `{}`, names: "unknown decision", unknown: true},
		"NullDecision":    {json: `{"decision":null}`, names: "unknown decision", unknown: true},
		"Unknown":         {json: `{"decision":"Maybe"}`, names: `"Maybe"`, unknown: true},
		"CaseOfValue":     {json: `{"decision":"admit"}`, names: `"admit"`, unknown: true},
		"CaseOfName":      {json: `{"Decision":"Admit"}`, names: "unknown decision", unknown: true},
		"Twice":           {json: `{"decision":"Refuse","decision":"Admit"}`, names: `"decision"`},
		"Number":          {json: `{"decision":1}`, names: "decision"},
		"ReasonType":      {json: `{"decision":"Hold","reason":{}}`, names: "reason"},
		"UntilType":       {json: `{"decision":"Hold","until":"tomorrow"}`, names: "until"},
		"UntilBeside":     {json: `{"decision":"Refuse","until":"2026-03-02T13:00:00Z"}`, names: "until"},
		"WithoutChanges":  {json: `{"decision":"AdmitWith"}`, names: "changes"},
		"NullChanges":     {json: `{"decision":"AdmitWith","changes":null}`, names: "changes"},
		"ChangesType":     {json: `{"decision":"AdmitWith","changes":[]}`, names: "changes"},
		"ChangesBeside":   {json: `{"decision":"Admit","changes":{"serviceAccount":"a"}}`, names: "changes"},
		"LabelType":       {json: `{"decision":"AdmitWith","changes":{"labels":{"a":1}}}`, names: "labels"},
		"ChangesEmpty":    {json: `{"decision":"Hold","changes":{}}`, names: "changes"},
		"ChangesEmpties":  {json: `{"decision":"Admit","changes":{"labels":{},"tolerations":[]}}`, names: "changes"},
		"ChangesUnknown":  {json: `{"decision":"Refuse","changes":{"later":1}}`, names: "changes"},
		"LabelNull":       {json: `{"decision":"AdmitWith","changes":{"labels":{"a":null}}}`, names: `labels: a: null`},
		"LabelTwice":      {json: `{"decision":"AdmitWith","changes":{"labels":{"a":"b","a":"c"}}}`, names: `labels: "a": repeated`},
		"LabelTwiceCoded": {json: `{"decision":"AdmitWith","changes":{"labels":{"a":"b","\u0061":"b"}}}`, names: `labels: "a": repeated`},
		"SelectorTwice":   {json: `{"decision":"AdmitWith","changes":{"nodeSelector":{"a":"b","a":"b"}}}`, names: `nodeSelector: "a": repeated`},
		"AnnotationTwice": {json: `{"decision":"AdmitWith","changes":{"annotations":{"a":"b","c":"","a":"b"}}}`, names: `annotations: "a": repeated`},
		"TolerationTwice": {json: `{"decision":"AdmitWith","changes":{"tolerations":[{},{"key":"a","key":"b"}]}}`, names: `tolerations: [1]: "key": repeated`},
		"TolerationNull":  {json: `{"decision":"AdmitWith","changes":{"tolerations":[null]}}`, names: "tolerations: [0]: not a JSON object"},
		"TolerationType":  {json: `{"decision":"AdmitWith","changes":{"tolerations":{}}}`, names: "tolerations"},
		"EffectType":      {json: `{"decision":"AdmitWith","changes":{"tolerations":[{"effect":1}]}}`, names: "tolerations: [0]: effect"},
		"LabelsTwice":     {json: `{"decision":"AdmitWith","changes":{"labels":{},"labels":{"a":"b"}}}`, names: "labels"},
		"SecondsFraction": {json: `{"decision":"AdmitWith","changes":{"tolerations":[{"tolerationSeconds":1.5}]}}`, names: "tolerations"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Refuse("before")
			err := got.UnmarshalJSON([]byte(tc.json))
			if err == nil || !strings.Contains(err.Error(), tc.names) {
				t.Errorf("error %v does not name %s", err, tc.names)
			}
			if errors.Is(err, ErrUnknownDecision) != tc.unknown {
				t.Errorf("unknown decision: %t, error %v", !tc.unknown, err)
			}
			if !got.Equal(Refuse("before")) {
				t.Errorf("changed to %v in spite of the error", got)
			}
		})
	}
}

// Text that JSON cannot carry is an error and not changed under way.
func TestWriteDecisionErrors(t *testing.T) {
	bad := AdmitWith(Changes{Annotations: map[string]string{"ok": "€", "bad": "a\xff"}})
	_, err := json.Marshal(bad)
	var field *FieldError
	if !errors.As(err, &field) || field.Field != `changes.annotations["bad"]` {
		t.Errorf("got %v", err)
	}
	if s := bad.String(); !strings.Contains(s, "UTF-8") {
		t.Errorf("described as %s", s)
	}
}

// Every < would be six bytes, and a decision within the limits of Kubernetes
// above the limit of the wire.
func TestWriteDecisionWithoutEscapes(t *testing.T) {
	d := AdmitWith(Changes{Annotations: map[string]string{"a": strings.Repeat("<&>", 80<<10)}})
	b, err := d.MarshalJSON()
	if err != nil || d.Validate() != nil || len(b) > 250<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	var back Decision
	if err := back.UnmarshalJSON(b); err != nil || !back.Equal(d) {
		t.Errorf("came back otherwise, %v", err)
	}
}

// encoding/json asks for null too, and must not leave a Decision that admits.
func TestReadDecisionInside(t *testing.T) {
	var list []Decision
	if err := json.Unmarshal([]byte(`[{"decision":"Hold"},null]`), &list); err == nil {
		t.Errorf("null became %v", list)
	}
}

func TestReadRequestIgnoresUnknownFields(t *testing.T) {
	var r Request
	err := json.Unmarshal([]byte(`{"taskID":"a","later":[],"podSets":[{"name":"b","later":{}}]}`), &r)
	if err != nil || r.TaskID != "a" || r.PodSets[0].Name != "b" {
		t.Errorf("got %+v, %v", r, err)
	}
}
