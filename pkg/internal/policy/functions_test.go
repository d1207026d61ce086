package policy

import (
	"math"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// TestFunctions evaluates what is ours, and one of each library.
func TestFunctions(t *testing.T) {
	req := &admission.Request{TenantID: "research", Image: "registry.example.com/a@sha256:01", DagID: "Europe/London"}
	for text, want := range map[string]any{
		`units("8")`: int64(8), `units("500m")`: int64(1), `units("2Gi")`: int64(2 << 30), `units("")`: int64(0), `units("1e3")`: int64(1000),
		`units("99999999999999999999")`: int64(math.MaxInt64), `units("007")`: int64(7),
		`milliUnits("8")`: int64(8000), `milliUnits("500m")`: int64(500), `milliUnits("")`: int64(0), `milliUnits("0.1")`: int64(100),
		`milliUnits("999999999999999")`: int64(999999999999999000), `milliUnits("9999999999999999")`: int64(math.MaxInt64),

		`quantity("") == quantity("0")`: true, `quantity("1Gi").isGreaterThan(quantity("1G"))`: true,
		`isQuantity("")`: false, `isQuantity("8")`: true,
		`quantity("2") == quantity("1").add(quantity("1"))`: true, `quantity("1").add(quantity("1")) == quantity("2")`: true,
		`quantity("5") == quantity("2").add(3)`: true, `quantity("5").sub(quantity("2")) == quantity("4").sub(1)`: true,
		`[quantity("99999999999999999999")].all(q, q.add(q).compareTo(q) == 1 && q.add(q).compareTo(q) == 1)`: true,

		`now.getHours()`: int64(12), `now.getHours("UTC")`: int64(12), `now.getHours("Asia/Kathmandu")`: int64(17), `now.getMinutes("Asia/Kathmandu")`: int64(45),
		`now.getHours("+01:30")`: int64(13), `now.getHours("-01:00")`: int64(11), `now.getDayOfWeek("America/New_York")`: int64(3),
		`now.getFullYear("UTC")`: int64(2026), `now.getMonth("UTC")`: int64(2), `now.getDate("Pacific/Auckland")`: int64(5), `now.getDayOfMonth("UTC")`: int64(3),
		`now.getDayOfYear("UTC")`: int64(62), `now.getSeconds("UTC")`: int64(0), `now.getMilliseconds("UTC")`: int64(0),
		`now.getHours(request.tenantID == "research" ? "Europe/Berlin" : "UTC")`:                      int64(13),
		`now.getHours({"research": "America/New_York", "vision": "Europe/Berlin"}[request.tenantID])`: int64(7),
		`timestamp("2026-07-01T00:00:00Z").getHours("Europe/London")`:                                 int64(1),

		`request.image.split("@")[1]`: "sha256:01", `"%s!".format([request.tenantID])`: "research!", `request.tenantID.upperAscii()`: "RESEARCH",
		`request.image.find("[a-z]+[.]example[.]com")`: "registry.example.com", `[1, 2, 3].sum()`: int64(6), `["a", "b"].join("-")`: "a-b",
		`[[1], [2]].flatten() == [1, 2]`: true, `sets.intersects([1], [1, 2])`: true, `url("https://example.com/a").getHost()`: "example.com",
		`isIP("10.0.0.1")`: true, `cidr("10.0.0.0/8").containsIP("10.0.0.1")`: true, `semver("1.2.3").major()`: int64(1),
		`format.dns1123Label().validate(request.tenantID).hasValue()`: false, `{"a": 1}.all(k, v, v == 1)`: true,
		`optional.of(1).hasValue() ? "a" : "b"`: "a", `1 < 2.5`: true, `now + duration("1h") > now`: true,
	} {
		if got, err := evaluate(t, req, text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestFunctionErrors(t *testing.T) {
	req := &admission.Request{TenantID: "-1", Image: "Europe/London", RunID: "+25:00"}
	for text, want := range map[string]string{
		`units(request.tenantID)`: "not a quantity", `milliUnits("1 2")`: "not a quantity", `quantity("1 2")`: `"1 2" is not a quantity`,
		`units(dyn(1))`: "no such overload", `quantity("1").add(dyn("1"))`: "no such overload", `dyn("1").add(quantity("1"))`: "no such overload",
		`string(dyn(request.job))`:       "no such overload",
		`now.getHours(request.image)`:    "only zones that stand in the expression",
		`now.getHours(request.runID)`:    "only zones that stand in the expression",
		`now.getHours(request.tenantID)`: "only zones that stand in the expression",
		`now.getHours("")`:               "only zones", `now.getHours(dyn(1))`: "no such overload",
	} {
		if _, err := evaluate(t, req, text); err == nil || !contains(err, want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
