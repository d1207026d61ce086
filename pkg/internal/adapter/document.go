package adapter

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/policy"
)

// document walks a YAML file and gathers everything that is wrong with it.
// Decoding into structs would stop at the first problem and forget the lines.
type document struct {
	file     string
	problems []error
}

func (d *document) problem(line int, field, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.problems = append(d.problems, &policy.Problem{File: d.file, Line: line, Field: field, Text: text})
}

// missing reports a field that is not there, at the line of what it belongs to.
func (d *document) missing(n *yaml.Node, field, wayOut string) {
	d.problem(n.Line, field, "is missing; %s", wayOut)
}

// add takes over the problems that somebody else found.
func (d *document) add(err error) {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range list.Unwrap() {
			d.add(e)
		}
		return
	}
	if err != nil {
		d.problems = append(d.problems, err)
	}
}

// err joins the problems in the order of the file.
func (d *document) err() error {
	slices.SortStableFunc(d.problems, func(a, b error) int { return cmp.Compare(d.lineOf(a), d.lineOf(b)) })
	return errors.Join(d.problems...)
}

// lineOf puts what is about other files last.
func (d *document) lineOf(err error) int {
	if p, ok := errors.AsType[*policy.Problem](err); ok && p.File == d.file {
		return p.Line
	}
	return 1 << 30
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// parse returns the one document of the data, nil after a problem.
func (d *document) parse(data []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF), err == nil && len(doc.Content) != 1:
		d.problem(0, "", "is empty")
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	switch err := decoder.Decode(&next); {
	case err == nil:
		d.problem(next.Line, "", "a second document begins here; the file has one")
		return nil
	case !errors.Is(err, io.EOF):
		d.syntax(err)
		return nil
	}
	return resolve(doc.Content[0])
}

func (d *document) syntax(err error) {
	line, text := 0, err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // none is 0, about the whole file
		text = m[2]
	}
	d.problem(line, "", "not valid YAML: %s", text)
}

// resolve follows an alias. What is read has a fixed depth, so none can make it
// endless.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields returns the values of a mapping that has the known fields only. A name
// that is close to one of them stands for it beside the problem, so that nothing
// is said to be missing because of a typing error.
func (d *document) fields(n *yaml.Node, of string, known ...string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		d.problem(n.Line, of, "must be a mapping with the fields %s", strings.Join(known, ", "))
		return nil
	}
	found, meant := map[string]*yaml.Node{}, map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		switch {
		case found[key.Value] != nil:
			d.problem(key.Line, below(of, key.Value), "is there twice")
		case slices.Contains(known, key.Value):
			found[key.Value] = value
		default:
			near, hint := didYouMean(key.Value, known)
			d.problem(key.Line, below(of, key.Value), "is no field; %s", hint)
			meant[near] = value
		}
	}
	delete(meant, "")
	maps.Copy(meant, found)
	return meant
}

// text returns the text of a field, "" after a problem or if the field is not
// there.
func (d *document) text(n *yaml.Node, field string) string {
	switch {
	case n == nil:
		return ""
	case n.Kind != yaml.ScalarNode:
		d.problem(n.Line, field, "must be text")
		return ""
	case n.Tag == "!!null" || strings.TrimSpace(n.Value) == "":
		d.problem(n.Line, field, "is empty; give it a value, or leave the field out")
		return ""
	}
	return n.Value
}

func below(of, field string) string {
	if of == "" {
		return field
	}
	return of + "." + field
}

// didYouMean returns the known name that is closest, "" if none is close, and
// what to tell.
func didYouMean(name string, known []string) (near, hint string) {
	near = slices.MinFunc(known, func(a, b string) int { return cmp.Compare(distance(name, a), distance(name, b)) })
	if distance(name, near) <= max(2, len(near)/3) {
		return near, fmt.Sprintf("did you mean %s?", near)
	}
	return "", "those here are " + strings.Join(known, ", ")
}

// distance counts the letters to insert, drop or replace to make b of a.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
