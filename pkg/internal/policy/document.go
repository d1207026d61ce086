package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	maxFile     = 1 << 20
	maxProblems = 100
)

// document reads a YAML file and gathers what is wrong with it. It walks the
// nodes instead of decoding them, for only they have line numbers.
type document struct {
	file     string
	problems []error
	left     int // problems that are not told any more
}

// place is where something stands. What a place is made for inherits the line
// until it has a node of its own.
type place struct {
	line  int
	rule  string
	field string
}

func (p place) at(n *yaml.Node) place {
	if n != nil && n.Line > 0 {
		p.line = n.Line
	}
	return p
}

// sub is the place of a field.
func (p place) sub(name string, n *yaml.Node) place {
	if p.field != "" {
		name = p.field + "." + name
	}
	p.field = name
	return p.at(n)
}

// key is the place of an entry of a map.
func (p place) key(key string, n *yaml.Node) place {
	p.field += fmt.Sprintf("[%q]", key)
	return p.at(n)
}

// item is the place of an item of a list.
func (p place) item(i int, n *yaml.Node) place {
	p.field += fmt.Sprintf("[%d]", i)
	return p.at(n)
}

func (d *document) problem(p place, format string, args ...any) {
	if len(d.problems) == maxProblems {
		d.left++
		return
	}
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	d.problems = append(d.problems, &Problem{File: d.file, Line: p.line, Rule: p.rule, Field: p.field, Text: text})
}

// count is the number of problems, of those too that are not told.
func (d *document) count() int { return len(d.problems) + d.left }

// err joins the problems, in the order of the file.
func (d *document) err() error {
	slices.SortStableFunc(d.problems, func(a, b error) int { return lineOf(a) - lineOf(b) })
	errs := d.problems
	if d.left > 0 {
		errs = append(errs, &Problem{File: d.file, Text: fmt.Sprintf("and %d problems more", d.left)})
	}
	return errors.Join(errs...)
}

func lineOf(err error) int {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Line
	}
	return 0
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// parse returns the only document of the data, nil if there is none.
func (d *document) parse(data []byte) *yaml.Node {
	if len(data) > maxFile {
		d.problem(place{}, "has %d bytes, and %d are allowed", len(data), maxFile)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		d.syntax(err)
		return nil
	}
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) {
		d.problem(place{}.at(&next), "a second document; a file has one")
		return nil
	}
	if len(doc.Content) != 1 {
		d.problem(place{}, "is empty")
		return nil
	}
	return doc.Content[0]
}

func (d *document) syntax(err error) {
	if errors.Is(err, io.EOF) {
		d.problem(place{}, "is empty")
		return
	}
	text, line := err.Error(), 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // none is 0
		text = m[2]
	}
	if strings.Contains(text, "did not find expected") || strings.Contains(text, "mapping values are not allowed") {
		text += "; text with one of {}[]:#,& in it may need quotes"
	}
	d.problem(place{line: line}, "not valid YAML: %s", text)
}

// resolve follows an alias. The depth of what is read is that of the language,
// so no alias can make it endless.
func resolve(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// member is an entry of a mapping.
type member struct {
	name  string
	key   *yaml.Node
	value *yaml.Node
}

// members returns the entries of a mapping, each name once, or false if it is
// none.
func (d *document) members(n *yaml.Node, p place) ([]member, bool) {
	n = resolve(n)
	if n == nil || n.Kind != yaml.MappingNode {
		d.problem(p, "must be a mapping, that is names with values")
		return nil, false
	}
	seen := map[string]bool{}
	var list []member
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		switch {
		case key.Kind != yaml.ScalarNode:
			d.problem(p.at(key), "a name must be text")
		case seen[key.Value]:
			d.problem(p.at(key), "%q stands there twice", key.Value)
		default:
			list = append(list, member{key.Value, key, resolve(n.Content[i+1])})
		}
		seen[key.Value] = true
	}
	return list, true
}

// fields returns the values of a mapping that has the known fields only, or
// false if it is none. What is null is not there.
func (d *document) fields(n *yaml.Node, p place, known ...string) (map[string]*yaml.Node, bool) {
	fields := map[string]*yaml.Node{}
	members, ok := d.members(n, p)
	for _, m := range members {
		if !slices.Contains(known, m.name) {
			d.problem(p.at(m.key), "unknown field %q%s", m.name, didYouMean(m.name, known))
			continue
		}
		if m.value.Tag == "!!null" {
			d.problem(p.sub(m.name, m.key), "is empty")
			continue
		}
		fields[m.name] = m.value
	}
	return fields, ok
}

// items returns the items of a list.
func (d *document) items(n *yaml.Node, p place) []*yaml.Node {
	n = resolve(n)
	if n == nil || n.Kind != yaml.SequenceNode {
		d.problem(p, "must be a list")
		return nil
	}
	items := make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		items[i] = resolve(item)
	}
	return items
}

// text returns a text that is not empty. YAML may take it for a number or a
// bool, which is all the same here.
func (d *document) text(n *yaml.Node, p place) string {
	switch {
	case n == nil:
		return ""
	case n.Kind != yaml.ScalarNode:
		d.problem(p, "must be text")
		return ""
	case strings.TrimSpace(n.Value) == "":
		d.problem(p, "is empty")
		return ""
	}
	return n.Value
}
