package policy

import (
	"strings"
	"testing"
)

func containsText(text, part string) bool { return strings.Contains(text, part) }

func TestDidYouMean(t *testing.T) {
	known := []string{"when", "unless", "during", "mode", "hold", "refuse", "admit", "nodeSelector"}
	for name, want := range map[string]string{
		"wen": "when", "hwen": "when", "Unless": "unless", "refsue": "refuse", "nodeselector": "nodeSelector", "node-selector": "nodeSelector",
		"holds": "hold", "old": "hold", "priority": "", "x": "", "": "", "image": "", strings.Repeat("when", 20): "",
	} {
		got := didYouMean(name, known)
		if want != "" {
			want = `; did you mean "` + want + `"?`
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "acb", 1}, {"abc", "cab", 2}, {"kitten", "sitting", 3},
	} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("%q to %q: got %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
