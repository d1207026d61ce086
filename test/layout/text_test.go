package layout

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"testing"
)

// foreign is what a file of the repository must not speak of: the project is
// read, built and run on other machines than the one it was written on. No
// pattern matches its own source: a class or a group breaks each word up.
var foreign = []struct {
	what    string
	pattern *regexp.Regexp
}{
	{"a path of one machine", regexp.MustCompile("(^|[\\s\"'`=:,;(\\[<|&@])/(work|root|home)/")},
	{"the host of a package registry", regexp.MustCompile(
		`\b(proxy|sum)[.]golang[.]org\b|\bdeb[.]debian[.]org\b|\bregistry[.]npmjs[.]org\b|\bpypi[.]org\b|\b(static[.])?crates[.]io\b`)},
	{"where it was written", regexp.MustCompile(`(?i)\bwork[p]lace\b|\b(?-i:C[E]O)\b|\bshared/(spec|reference|prototype)\b|[.]library/`)},
}

// checkText looks at every line of a text file. Sums of modules are random
// letters, in which anything may come up.
func checkText(name string, content []byte) []string {
	if path.Base(name) == "go.sum" || bytes.IndexByte(content, 0) >= 0 {
		return nil
	}
	var problems []string
	for i, line := range bytes.Split(content, []byte("\n")) {
		for _, f := range foreign {
			if found := f.pattern.Find(line); found != nil {
				problems = append(problems, fmt.Sprintf("%s:%d: names %s: %q", name, i+1, f.what, found))
			}
		}
	}
	return problems
}

func TestCheckText(t *testing.T) {
	t.Parallel()
	const slash = "/" // keeps the inputs below from tripping the rule they feed
	cases := map[string]struct {
		reason string
		name   string
		text   string
		want   string
	}{
		"Plain":    {reason: "speaks of the project", name: "README.md", text: "the gate raises A\nbefore every start\n"},
		"Work":     {reason: "a build folder", name: "Makefile", text: "BIN := " + slash + "work/main/bin", want: "Makefile:1: names a path"},
		"Root":     {reason: "an administrator's home", name: "a.md", text: "first\n`" + slash + "root/go/bin`", want: "a.md:2: names a path"},
		"Home":     {reason: "a person's home, at the start of the line", name: "a.md", text: slash + "home/someone/x", want: "names a path"},
		"Relative": {reason: "a folder of the repository", name: "a.md", text: "see test" + slash + "work/a and ../" + "root/b"},
		"URL":      {reason: "a page", name: "a.md", text: "https://example.org" + slash + "home/index"},
		"Option":   {reason: "the value of a flag", name: "a.sh", text: "x -o=" + slash + "work/x", want: "names a path"},
		"Variable": {reason: "below a folder that a variable names", name: "a.sh", text: "${DIR}" + slash + "work/x"},
		"Proxy":    {reason: "where modules come from", name: "a.sh", text: "GOPROXY=https://proxy" + ".golang.org", want: "package registry"},
		"Debian":   {reason: "where packages come from", name: "a.sh", text: "http://deb" + ".debian.org/debian", want: "package registry"},
		"Place":    {reason: "not the project", name: "a.md", text: "at this Work" + "place", want: "where it was written"},
		"Title":    {reason: "not the project", name: "a.md", text: "ask the C" + "EO", want: "where it was written"},
		"Word":     {reason: "part of another word", name: "a.md", text: "VIDEOCEO" + "N", want: ""},
		"Library":  {reason: "not the project", name: "a.md", text: "." + "library/env", want: "where it was written"},
		"Sums":     {reason: "random letters", name: "test/x/go.sum", text: "h1:x=" + slash + "root/y"},
		"Binary":   {reason: "no text", name: "a.png", text: "\x00 " + slash + "root/y"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expectProblem(t, tc.reason, checkText(tc.name, []byte(tc.text)), tc.want)
		})
	}
}
