package release

import (
	"fmt"
	"regexp"
	"strings"
)

// linkDefinition is how Keep a Changelog ends a file: a link per version.
var linkDefinition = regexp.MustCompile(`^\[[^\]]+\]: `)

// Notes returns the section of a version from a changelog in the form of Keep a
// Changelog, without its heading. The version may begin with a v; Unreleased is
// one too. A section that says nothing is an error, as is a missing one.
func Notes(changelog, version string) (string, error) {
	var titles, section []string
	found, inside, fenced, said := false, false, false, false
	for line := range strings.Lines(changelog) {
		line = strings.TrimRight(line, " \t\r\n")
		fenced = fenced != strings.HasPrefix(line, "```")
		if heading, ok := strings.CutPrefix(line, "## "); ok && !fenced {
			title := sectionTitle(heading)
			titles = append(titles, title)
			inside = strings.EqualFold(title, strings.TrimPrefix(version, "v"))
			found = found || inside
			continue
		}
		if !inside || linkDefinition.MatchString(line) {
			continue
		}
		section = append(section, line)
		said = said || line != "" && !strings.HasPrefix(line, "#")
	}
	switch {
	case said:
		return strings.TrimSpace(strings.Join(section, "\n")) + "\n", nil
	case found:
		return "", fmt.Errorf("CHANGELOG.md: the section of %s is empty", version)
	}
	return "", fmt.Errorf("CHANGELOG.md: has no section for version %q, only for %s", version, strings.Join(titles, ", "))
}

// sectionTitle takes the version out of "[0.1.0] - 2026-01-31".
func sectionTitle(heading string) string {
	title, _, _ := strings.Cut(strings.TrimSpace(heading), " ")
	return strings.TrimPrefix(strings.Trim(title, "[]"), "v")
}
