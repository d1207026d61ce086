package admission

import (
	"math"
	"strings"
	"testing"
)

func TestQuantities(t *testing.T) {
	tests := map[string]struct {
		units, milli int64
	}{
		"":        {0, 0},
		"0":       {0, 0},
		"8":       {8, 8000},
		"+8":      {8, 8000},
		"8.":      {8, 8000},
		".5":      {1, 500},
		"500m":    {1, 500},
		"8001m":   {9, 8001},
		"1u":      {1, 1},
		"1n":      {1, 1},
		"1.5Gi":   {3 << 29, 3 << 29 * 1000},
		"16Ki":    {16 << 10, 16 << 10 * 1000},
		"2k":      {2000, 2000000},
		"1e3":     {1000, 1000000},
		"1E-1":    {1, 100},
		"1E":      {1e18, math.MaxInt64},
		"8Ei":     {math.MaxInt64, math.MaxInt64},
		"9e999":   {math.MaxInt64, math.MaxInt64},
		"00012.0": {12, 12000},
	}
	for s, want := range tests {
		units, err := Units(s)
		milli, err2 := MilliUnits(s)
		if units != want.units || milli != want.milli || err != nil || err2 != nil {
			t.Errorf("%q: got %d units, %d milli, %v, %v; want %+v", s, units, milli, err, err2, want)
		}
	}
}

func TestQuantityErrors(t *testing.T) {
	for _, s := range []string{
		" ", "-1", "1.2.3", "8 ", "8cpu", "1Mi0", "1mi", "1e", "0x10", "1_000", ".", "m", "1e1000", "∞", strings.Repeat("1", 65),
	} {
		if got, err := Units(s); err == nil {
			t.Errorf("Units(%q) = %d, want an error", s, got)
		}
	}
}
