package release

import (
	"os"
	"slices"
	"testing"
)

func TestRecognise(t *testing.T) {
	t.Parallel()
	own, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	const isc = `Copyright (c) 2012-2016 Somebody

Permission to use, copy, modify, and distribute this software for any
purpose with or without fee is hereby granted, provided that the above
copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES
WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF
MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR
ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES
WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN
ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF
OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`
	cases := map[string]struct {
		reason string
		files  map[string][]byte
		want   []string
	}{
		"Apache":  {"the project's own", map[string][]byte{"LICENSE": own}, []string{"Apache-2.0"}},
		"ISC":     {"by its words, not by its lines", map[string][]byte{"LICENSE": []byte(isc)}, []string{"ISC"}},
		"Several": {"all of them", map[string][]byte{"LICENSE": append([]byte(isc), own...)}, []string{"Apache-2.0", "ISC"}},
		"Files":   {"once each, in whatever file", map[string][]byte{"LICENSE": own, "COPYING": own, "NOTICE": []byte(isc)}, []string{"Apache-2.0", "ISC"}},
		"Part":    {"a licence without its end is another one", map[string][]byte{"LICENSE": []byte(isc[:len(isc)-30])}, nil},
		"Name":    {"its name alone is no licence", map[string][]byte{"LICENSE": []byte("MIT, ISC and Apache-2.0")}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := recognise(tc.files, knownLicences(own)); !slices.Equal(got, tc.want) {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
