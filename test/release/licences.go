package release

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// licences reads what a part's licence asks to be passed on with it. A part
// without any is an error: then nobody may pass it on.
func licences(dir string) (map[string][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string][]byte{}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		if found[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: has no licence that could be passed on with the image", dir)
	}
	return found, nil
}

// wordings are licences by their whole wording as words makes it, an expression
// per line behind the SPDX identifier.
//
//go:embed licences.txt
var wordings string

var notWord = regexp.MustCompile(`[^a-z0-9]+`)

// words leaves of a text what has a meaning.
func words(text []byte) string {
	return strings.TrimSpace(notWord.ReplaceAllString(strings.ToLower(string(text)), " "))
}

// knownLicences returns what recognises a licence, by its SPDX identifier.
// Apache-2.0 is known by the licence of the project, own.
func knownLicences(own []byte) map[string]*regexp.Regexp {
	_, terms, _ := strings.Cut(words(own), "1 definitions")
	terms, _, _ = strings.Cut(terms, "end of terms and conditions")
	known := map[string]*regexp.Regexp{"Apache-2.0": regexp.MustCompile(regexp.QuoteMeta(terms))}
	for line := range strings.Lines(wordings) {
		id, wording, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[id] = regexp.MustCompile(wording)
	}
	return known
}

// recognise returns the SPDX identifiers of the licences that stand word for word
// in one of the files. What is only like a licence is none.
func recognise(files map[string][]byte, known map[string]*regexp.Regexp) []string {
	var ids []string
	for _, text := range files {
		text := words(text)
		for id, wording := range known {
			if wording.MatchString(text) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}
