package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/operators"
)

var (
	undeclared = regexp.MustCompile(`^undeclared reference to '([^']*)' \(in container ''\)$`)
	undefined  = regexp.MustCompile(`^undefined field '([^']*)'$`)
	argument   = regexp.MustCompile(`^invalid (duration|timestamp|matches) argument$`)
	expecting  = regexp.MustCompile(` expecting (<EOF>|\{.*\})$`)
	operator   = regexp.MustCompile(`'([^' ]*_[^' ]*|@in)'`)
)

// explain makes faults of what CEL says, with what the author probably meant.
func explain(errs []*common.Error, want *cel.Type) []fault {
	faults := make([]fault, len(errs))
	for i, err := range errs {
		f := fault{line: err.Location.Line(), column: err.Location.Column() + 1, text: err.Message}
		switch {
		case f.line < 1: // about the whole
			f.line, f.column = 0, 0
		case undeclared.MatchString(f.text):
			name := undeclared.FindStringSubmatch(f.text)[1]
			f.text = fmt.Sprintf("%q is neither a variable nor a function", name) + meant(name, want)
		case undefined.MatchString(f.text):
			name := undefined.FindStringSubmatch(f.text)[1]
			f.text = fmt.Sprintf("there is no field %q", name) + didYouMean(name, fieldNames())
		default:
			f.text = reword(f.text)
		}
		faults[i] = f
	}
	return faults
}

// arguments say what a literal must look like.
var arguments = map[string]string{
	"duration":  `not a duration such as "1h30m"`,
	"timestamp": `not a time such as "2026-03-02T12:00:00Z"`,
	"matches":   "not a regular expression of RE2",
}

// reword replaces what one has to know CEL from the inside for.
func reword(text string) string {
	if m := argument.FindStringSubmatch(text); m != nil {
		return arguments[m[1]]
	}
	text = operator.ReplaceAllStringFunc(text, readable)
	switch {
	case strings.HasPrefix(text, "Syntax error: token recognition error at: '="):
		return "Syntax error: = stands alone; == compares"
	case strings.HasPrefix(text, "Syntax error: mismatched input '<EOF>'"):
		return "Syntax error: something is missing at the end"
	case strings.HasPrefix(text, "found no matching overload for '") && strings.Contains(text, "kubernetes.Quantity"):
		return text + "; quantities have isGreaterThan, isLessThan, compareTo, add and sub, and units() makes numbers of them"
	}
	return expecting.ReplaceAllString(text, "")
}

// meant guesses why a name is unknown.
func meant(name string, want *cel.Type) string {
	switch {
	case name == "optMap" || name == "optFlatMap":
		return "; use hasValue() and value()"
	case requestType.byName[name] != nil:
		return fmt.Sprintf("; did you mean request.%s?", name)
	case want == cel.StringType:
		return fmt.Sprintf("; the value is an expression, so text needs quotes within those of YAML: \"'%s'\"", name)
	}
	return didYouMean(name, []string{"request", "now", "units", "milliUnits", "quantity"})
}

func fieldNames() []string {
	var names []string
	for _, o := range objectTypes {
		for _, f := range o.fields {
			names = append(names, f.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readable turns the name that CEL has for an operator into its sign.
func readable(quoted string) string {
	name := strings.Trim(quoted, "'")
	switch sign, ok := operators.FindReverse(name); {
	case name == operators.Conditional:
		return "'? :'"
	case name == operators.Index:
		return "'[]'"
	case ok && sign != "":
		return "'" + sign + "'"
	}
	return quoted
}

// didYouMean ends a sentence with the closest of the names that are known, if
// one is close.
func didYouMean(name string, known []string) string {
	best, least := "", 3
	if len(name) < 4 {
		least = 2
	}
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best == "" || best == name {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance counts the letters to insert, drop, replace or swap with their
// neighbour to make b of a.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			rows[i][j] = step(rows, a, b, i, j)
		}
	}
	return rows[len(a)][len(b)]
}

// step is the distance of the first i letters of a from the first j of b.
func step(rows [][]int, a, b string, i, j int) int {
	if i == 0 || j == 0 {
		return i + j
	}
	d := min(rows[i-1][j], rows[i][j-1]) + 1
	if a[i-1] == b[j-1] {
		return min(d, rows[i-1][j-1])
	}
	if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
		d = min(d, rows[i-2][j-2]+1)
	}
	return min(d, rows[i-1][j-1]+1)
}
