package policy

import (
	"testing"

	"github.com/google/cel-go/cel"
)

// TestAbsentChecks compiles expressions that read what may be absent, after
// those that the rule evaluates before.
func TestAbsentChecks(t *testing.T) {
	const labels = "request.execution.labels"
	cases := map[string]struct {
		reason string
		before string
		text   string
		want   string // part of the only fault, "" for none
	}{
		"Index":         {"a key may be missing", "", labels + `["a"] == "b"`, `"a" may be missing`},
		"Field":         {"the same, written as a field", "", labels + `.a == "b"`, `"a" may be missing`},
		"In":            {"in tests it", "", `"a" in ` + labels + ` && ` + labels + `["a"] == "b"`, ""},
		"InField":       {"for both ways to write it", "", `"a" in ` + labels + ` && ` + labels + `.a == "b"`, ""},
		"Has":           {"has() tests it", "", `has(` + labels + `.a) && ` + labels + `["a"] == "b"`, ""},
		"Not":           {"the test may be the other way round", "", `!("a" in ` + labels + `) || ` + labels + `["a"] == "b"`, ""},
		"OtherKey":      {"not that of another key", "", `"b" in ` + labels + ` && ` + labels + `["a"] == "b"`, `"a" may be missing`},
		"OtherMap":      {"nor that of another map", "", `"a" in request.execution.annotations && ` + labels + `["a"] == "b"`, `"a" may be missing`},
		"Before":        {"a condition before tests it", `"a" in ` + labels, labels + `["a"] == "b"`, ""},
		"Optional":      {"a question mark does not read", "", labels + `[?"a"].orValue("") == "b"`, ""},
		"OptionalField": {"nor behind a dot", "", labels + `.?a.orValue("") == "b"`, ""},
		"OptionalPath":  {"nor on the way", "", `request.?execution.labels["a"].orValue("") == "b"`, ""},
		"OptionalTest":  {"it is a test, too", labels + `.?a.hasValue()`, labels + `["a"] == "b"`, ""},
		"Variable":      {"a key that is worked out is not checked", "", labels + `.all(k, ` + labels + `[k] == "b")`, ""},
		"Literal":       {"nor is a map of the expression", "", `{"a": "b"}[request.tenantID] == "b" && {"a": "b"}["a"] == "b"`, ""},
		"Loop":          {"within a loop it is checked", "", `request.podSets.all(p, p.flavors["cpu"] == "b")`, `"cpu" in p.flavors`},
		"LoopTest":      {"and tested", "", `request.podSets.all(p, "cpu" in p.flavors && p.flavors["cpu"] == "b")`, ""},
		"PodSet":        {"in a pod set by its number", "", `request.podSets[0].flavors["cpu"] == "b"`, `"cpu" in request.podSets.0.flavors`},
		"PodSetTest":    {"tested in the same one", "", `"cpu" in request.podSets[0].flavors && request.podSets[0].flavors["cpu"] == "b"`, ""},
		"PodSetOther":   {"not in another one", "", `"cpu" in request.podSets[1].flavors && request.podSets[0].flavors["cpu"] == "b"`, `"cpu" may be missing`},
		"Time":          {"a time may not be set", "", `request.heldSince < now`, "heldSince may not be set"},
		"TimeTest":      {"has() tests it", "", `has(request.heldSince) && request.heldSince < now`, ""},
		"TimeOther":     {"not that of another", "", `has(request.creationTime) && request.heldSince < now`, "heldSince may not be set"},
		"TimeOptional":  {"a question mark does not read it", "", `request.?heldSince.orValue(now) == now`, ""},
		"Plain":         {"what is empty when it is not set needs no test", "", `request.tenantID == "" && request.maxRunTimeSeconds == 0 && request.execution.nodeSelector.size() == 0`, ""},
		"Dyn":           {"what the types do not know is not checked", "", `dyn(request).heldSince == now`, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, err := newCompiler()
			if err != nil {
				t.Fatal(err)
			}
			seen := tests{}
			if tc.before != "" {
				if _, faults := c.compile(tc.before, cel.BoolType, seen); faults != nil {
					t.Fatal(faults)
				}
			}
			_, faults := c.compile(tc.text, cel.BoolType, seen)
			switch {
			case tc.want == "" && len(faults) > 0:
				t.Errorf("%s: got %v", tc.reason, faults)
			case tc.want != "" && (len(faults) != 1 || !containsText(faults[0].text, tc.want)):
				t.Errorf("%s: got %v, want %q", tc.reason, faults, tc.want)
			}
		})
	}
}
