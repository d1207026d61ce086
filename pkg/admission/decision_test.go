package admission

import (
	"context"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var noon = time.Date(2026, time.March, 2, 12, 0, 0, 5, time.UTC)

// facts is everything a Decision tells.
type facts struct {
	Kind    Kind
	Held    string
	IsHeld  bool
	Refused string
	IsRef   bool
	Changes Changes
	IsWith  bool
	Until   time.Time
	IsUntil bool
}

func factsOf(d Decision) facts {
	f := facts{Kind: d.Kind()}
	f.Held, f.IsHeld = d.Held()
	f.Refused, f.IsRef = d.Refused()
	f.Changes, f.IsWith = d.Changes()
	f.Until, f.IsUntil = d.Until()
	return f
}

func TestDecision(t *testing.T) {
	changes := Changes{Labels: map[string]string{"team": "a"}}
	tests := map[string]struct {
		reason string
		d      Decision
		want   facts
	}{
		"Zero": {
			reason: "the zero decision admits unchanged",
			want:   facts{Kind: KindAdmit},
		},
		"Admit": {
			reason: "admit is the zero decision",
			d:      Admit(),
			want:   facts{Kind: KindAdmit},
		},
		"AdmitWith": {
			reason: "changes come back as given",
			d:      AdmitWith(changes),
			want:   facts{Kind: KindAdmitWith, Changes: changes, IsWith: true},
		},
		"AdmitWithNothing": {
			reason: "zero changes are still changes that the hook gave",
			d:      AdmitWith(Changes{}),
			want:   facts{Kind: KindAdmitWith, IsWith: true},
		},
		"AdmitWithEmptyMaps": {
			reason: "an empty map means the same as none",
			d:      AdmitWith(Changes{Labels: map[string]string{}, Tolerations: []Toleration{}}),
			want:   facts{Kind: KindAdmitWith, IsWith: true},
		},
		"Hold": {
			reason: "a hold has its reason and no time",
			d:      Hold("freeze"),
			want:   facts{Kind: KindHold, Held: "freeze", IsHeld: true},
		},
		"HoldUntil": {
			reason: "the time comes back in UTC without a monotonic part",
			d:      HoldUntil(noon.In(time.FixedZone("X", 3600)), "freeze"),
			want:   facts{Kind: KindHold, Held: "freeze", IsHeld: true, Until: noon, IsUntil: true},
		},
		"HoldUntilNever": {
			reason: "a zero time makes a plain hold",
			d:      HoldUntil(time.Time{}, "freeze"),
			want:   facts{Kind: KindHold, Held: "freeze", IsHeld: true},
		},
		"HoldUntilForEver": {
			reason: "a time that JSON cannot carry becomes the last one that it can",
			d:      HoldUntil(time.Unix(math.MaxInt32*1000, 0), "freeze"),
			want:   facts{Kind: KindHold, Held: "freeze", IsHeld: true, Until: maxUntil, IsUntil: true},
		},
		"HoldUntilBeforeTime": {
			reason: "a year that JSON cannot carry and that has passed says nothing",
			d:      HoldUntil(time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC), "freeze"),
			want:   facts{Kind: KindHold, Held: "freeze", IsHeld: true},
		},
		"Refuse": {
			reason: "a refusal has its reason",
			d:      Refuse("too large"),
			want:   facts{Kind: KindRefuse, Refused: "too large", IsRef: true},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := factsOf(tc.d); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%s\ngot  %+v\nwant %+v", tc.reason, got, tc.want)
			}
			if err := tc.d.Validate(); err != nil {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}

func TestReason(t *testing.T) {
	tests := map[string]struct {
		reason string
		given  string
		want   string
	}{
		"Kept":        {"nothing to do", "freeze until Monday", "freeze until Monday"},
		"Trimmed":     {"space around it goes", " \t\nfreeze\r\n ", "freeze"},
		"Empty":       {"a reason is never empty", "", noReason},
		"Blank":       {"blank is empty", " \n ", noReason},
		"InvalidUTF8": {"bytes that are no text become the replacement character", "a\xff\xfeb", "a\uFFFDb"},
		"Limit":       {"900 bytes fit", strings.Repeat("x", 900), strings.Repeat("x", 900)},
		"TooLong":     {"byte 901 does not", strings.Repeat("x", 901), strings.Repeat("x", 900)},
		"Rune":        {"a character is kept or dropped as a whole", "x" + strings.Repeat("€", 300), "x" + strings.Repeat("€", 299)},
		"CutAtSpace":  {"a cut leaves no space at the end", strings.Repeat("x", 899) + " y", strings.Repeat("x", 899)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			held, _ := Hold(tc.given).Held()
			refused, _ := Refuse(tc.given).Refused()
			if held != tc.want || refused != tc.want {
				t.Errorf("%s\nheld    %q\nrefused %q\nwant    %q", tc.reason, held, refused, tc.want)
			}
			if len(held) > MaxReasonBytes || !utf8.ValidString(held) {
				t.Errorf("%d bytes, valid UTF-8 %t", len(held), utf8.ValidString(held))
			}
		})
	}
}

func TestDecisionDoesNotAlias(t *testing.T) {
	given := Changes{
		NodeSelector: map[string]string{"pool": "a"},
		Labels:       map[string]string{"team": "a"},
		Annotations:  map[string]string{"note": "a"},
		Tolerations:  []Toleration{{Key: "a", TolerationSeconds: new(int64(1))}},
	}
	want := given.clone()
	d := AdmitWith(given)

	scribble := func(c Changes) {
		c.NodeSelector["pool"], c.Labels["team"], c.Annotations["note"] = "b", "b", "b"
		*c.Tolerations[0].TolerationSeconds = 2
		c.Tolerations[0].Key = "b"
	}
	scribble(given)
	first, _ := d.Changes()
	if !reflect.DeepEqual(first, want) {
		t.Errorf("changed through what it was made from: %+v", first)
	}
	scribble(first)
	if second, _ := d.Changes(); !reflect.DeepEqual(second, want) {
		t.Errorf("changed through what it returned: %+v", second)
	}
}

func TestDecisionEqual(t *testing.T) {
	decisions := map[string]Decision{
		"Admit":       Admit(),
		"With":        AdmitWith(Changes{}),
		"WithLabel":   AdmitWith(Changes{Labels: map[string]string{"a": "b"}}),
		"WithSeconds": AdmitWith(Changes{Tolerations: []Toleration{{Key: "a", TolerationSeconds: new(int64(1))}}}),
		"WithForEver": AdmitWith(Changes{Tolerations: []Toleration{{Key: "a"}}}),
		"Hold":        Hold("a"),
		"HoldOther":   Hold("b"),
		"HoldUntil":   HoldUntil(noon, "a"),
		"Refuse":      Refuse("a"),
	}
	for name, d := range decisions {
		for other, o := range decisions {
			if got, want := d.Equal(o), name == other; got != want {
				t.Errorf("%s equal to %s: %t", name, other, got)
			}
		}
	}
	a := AdmitWith(Changes{Tolerations: []Toleration{{TolerationSeconds: new(int64(1))}}})
	b := AdmitWith(Changes{Tolerations: []Toleration{{TolerationSeconds: new(int64(1))}}})
	if !a.Equal(b) {
		t.Error("equal seconds behind different pointers differ")
	}
}

func TestDecisionString(t *testing.T) {
	tests := map[string]struct {
		d    fmtStringer
		want string
	}{
		"Admit": {Admit(), "Admit"},
		"Hold":  {Hold("freeze"), `Hold {"decision":"Hold","reason":"freeze"}`},
		"Kind":  {KindAdmitWith, "AdmitWith"},
		"None":  {Kind(9), "Kind(9)"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.d.String(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

type fmtStringer interface{ String() string }

func TestHookFunc(t *testing.T) {
	var hook Hook = HookFunc(func(_ context.Context, req *Request) (Decision, error) {
		return Refuse(req.TaskID), nil
	})
	d, err := hook.Admit(t.Context(), &Request{TaskID: "train"})
	if reason, refused := d.Refused(); !refused || reason != "train" || err != nil {
		t.Errorf("got %v, %v", d, err)
	}
}
