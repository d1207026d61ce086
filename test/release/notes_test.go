package release_test

import (
	"os"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/test/release"
)

const changelog = `# Changelog

What this file is.

## [Unreleased]

## [0.2.0] - 2026-03-01

### Added
- A gate ([docs](docs/gate.md)).

` + "```yaml\n## not a heading\n```" + `

### Fixed
- [0.1.0] could not be removed.

## v0.1.1 - 2026-02-02
### Added

### Fixed
## 0.1.0

- The first.

[Unreleased]: https://example.org/compare/v0.2.0...HEAD
[0.1.0]: https://example.org/v0.1.0
`

func TestNotes(t *testing.T) {
	t.Parallel()
	const middle = "### Added\n- A gate ([docs](docs/gate.md)).\n\n```yaml\n## not a heading\n```\n\n### Fixed\n- [0.1.0] could not be removed.\n"
	cases := map[string]struct {
		reason    string
		changelog string
		version   string
		want      string
		wantErr   string
	}{
		"Tag":        {reason: "tags begin with a v", changelog: changelog, version: "v0.2.0", want: middle},
		"Version":    {reason: "the chart's version does not", changelog: changelog, version: "0.2.0", want: middle},
		"Last":       {reason: "the links at the end are not of the section", changelog: changelog, version: "v0.1.0", want: "- The first.\n"},
		"Unreleased": {reason: "what is to come can be read too", changelog: "## Unreleased\n- New.\n", version: "unreleased", want: "- New.\n"},
		"Empty":      {reason: "nothing under the heading", changelog: changelog, version: "Unreleased", wantErr: "the section of Unreleased is empty"},
		"Headings":   {reason: "headings alone say nothing", changelog: changelog, version: "v0.1.1", wantErr: "the section of v0.1.1 is empty"},
		"LastEmpty":  {reason: "an empty section at the very end", changelog: "## 0.1.0", version: "v0.1.0", wantErr: "the section of v0.1.0 is empty"},
		"Missing":    {reason: "says what there is", changelog: changelog, version: "v0.3.0", wantErr: `no section for version "v0.3.0", only for Unreleased, 0.2.0, 0.1.1, 0.1.0`},
		"Part":       {reason: "a version is not the start of another", changelog: changelog, version: "v0.1", wantErr: "no section"},
		"Nothing":    {reason: "no changelog", changelog: "", version: "v0.1.0", wantErr: "no section"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := release.Notes(tc.changelog, tc.version)
			if got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("%s: got error %v, want %q", tc.reason, err, tc.wantErr)
			}
		})
	}
}

// The changelog of the repository has to be readable before the day of a release.
func TestOwnChangelog(t *testing.T) {
	t.Parallel()
	own, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := release.Notes(string(own), "Unreleased"); err != nil && !strings.Contains(err.Error(), "is empty") {
		t.Error(err)
	}
}
