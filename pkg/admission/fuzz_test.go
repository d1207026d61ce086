package admission

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzDecision reads answers. What is accepted must come back unchanged and
// must keep the promises about reasons.
func FuzzDecision(f *testing.F) {
	for _, d := range goldenDecisions() {
		b, _ := json.Marshal(d)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var d, back Decision
		if d.UnmarshalJSON(data) != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatal("read although it is no JSON")
		}
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		if err := json.Unmarshal(b, &back); err != nil || !d.Equal(back) {
			t.Fatalf("%s came back as %v, %v", b, back, err)
		}
		if len(d.reason) > MaxReasonBytes || !utf8.ValidString(d.reason) {
			t.Fatalf("reason %q", d.reason)
		}
	})
}

// FuzzRequest reads requests: what is read is written and read again equally.
func FuzzRequest(f *testing.F) {
	b, _ := json.Marshal(fullRequest())
	f.Add(b)
	f.Add([]byte(`{"podSets":[null,{}],"execution":{"labels":{"a":null}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, back Request
		if json.Unmarshal(data, &r) != nil {
			return
		}
		b, err := json.Marshal(&r)
		if err != nil {
			return // a time beyond the year 9999
		}
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("written but not read: %v", err)
		}
		again, err := json.Marshal(back.Clone())
		if err != nil || string(again) != string(b) {
			t.Fatalf("got  %s, %v\nwant %s", again, err, b)
		}
	})
}

// The expressions of Kubernetes, as an independent second opinion.
var (
	nameRE   = regexp.MustCompile(`\A([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\z`)
	domainRE = regexp.MustCompile(`\A[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\z`)
)

func keyOracle(key string) bool {
	parts := strings.Split(key, "/")
	name := parts[len(parts)-1]
	if len(parts) == 2 && (len(parts[0]) > 253 || !domainRE.MatchString(parts[0])) {
		return false
	}
	return len(parts) <= 2 && len(name) <= 63 && nameRE.MatchString(name)
}

func valueOracle(value string) bool {
	return value == "" || len(value) <= 63 && nameRE.MatchString(value)
}

// FuzzKeys compares the checks of keys and values with the oracle.
func FuzzKeys(f *testing.F) {
	f.Add("example.com/team", "a")
	f.Add("kueue.x-k8s.io/queue-name", "")
	f.Add("K8s.io/a", "-")
	f.Add("a..b/c", "x\n")
	f.Fuzz(func(t *testing.T, key, value string) {
		one := map[string]string{key: value}
		want := keyOracle(key) && valueOracle(value)
		if got := (Changes{NodeSelector: one}).Validate() == nil; got != want {
			t.Fatalf("node selector %q=%q valid: %t", key, value, got)
		}
		want = want && !IsReservedKey(key)
		if got := (Changes{Labels: one}).Validate() == nil; got != want {
			t.Fatalf("label %q=%q valid: %t", key, value, got)
		}
		want = keyOracle(strings.ToLower(key)) && !IsReservedKey(key) && utf8.ValidString(value) && len(key)+len(value) <= 256<<10
		if got := (Changes{Annotations: one}).Validate() == nil; got != want {
			t.Fatalf("annotation %q=%q valid: %t", key, value, got)
		}
	})
}

// FuzzToleration compares the check of tolerations with the rules as
// Kubernetes words them.
func FuzzToleration(f *testing.F) {
	f.Add("gpu", "Equal", "a", "NoExecute", true)
	f.Add("", "Exists", "", "", false)
	f.Add("gpu", "Exists", "a", "NoSchedule", true)
	f.Fuzz(func(t *testing.T, key, operator, value, effect string, limited bool) {
		toleration := Toleration{Key: key, Operator: operator, Value: value, Effect: effect}
		if limited {
			toleration.TolerationSeconds = new(int64(1))
		}
		want := (key == "" && operator == "Exists" || keyOracle(key)) &&
			(operator == "Exists" && value == "" || (operator == "" || operator == "Equal") && valueOracle(value)) &&
			(effect == "NoExecute" || !limited && (effect == "" || effect == "NoSchedule" || effect == "PreferNoSchedule"))
		c := Changes{Tolerations: []Toleration{toleration}}
		if got := c.Validate() == nil; got != want {
			t.Fatalf("%+v valid: %t", toleration, got)
		}
	})
}

// FuzzQuantity checks that reading never fails badly and that thousandths and
// units agree.
func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"", "8", "500m", "1.5Gi", "1e-3", "9e999", ".", "-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		units, err := Units(s)
		milli, err2 := MilliUnits(s)
		if reflect.TypeOf(err) != reflect.TypeOf(err2) || units < 0 || milli < units {
			t.Fatalf("%q: %d units, %d milli, %v, %v", s, units, milli, err, err2)
		}
	})
}
