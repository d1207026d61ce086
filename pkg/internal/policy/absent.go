package policy

import (
	"fmt"
	"strconv"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// tests are the things that a rule has made sure of before it reads them, each
// by its path, such as request.execution.labels.team.
//
// Reading a label that a job does not have is an error, and an error is no
// verdict: the job would wait, and nobody would know why before looking into
// the log. So what may be absent must be tested, and that is checked before the
// policy is used. A test anywhere in the same expression counts, or in one that
// the rule evaluates before.
type tests map[string]bool

// check adds what the tree tests, and reports what it reads without.
func (t tests) check(tree *ast.AST) []fault {
	visit(tree, func(e ast.Expr) {
		if p := tested(e); p != "" {
			t[p] = true
		}
	})
	var faults []fault
	visit(tree, func(e ast.Expr) {
		p, text := reads(tree, e)
		if p != "" && !t[p] {
			faults = append(faults, faultAt(tree, e, text))
		}
	})
	return faults
}

// tested returns the path whose presence the node is about, or "".
func tested(e ast.Expr) string {
	switch e.Kind() {
	case ast.SelectKind:
		if s := e.AsSelect(); s.IsTestOnly() {
			return join(path(s.Operand()), s.FieldName())
		}
	case ast.CallKind:
		args := e.AsCall().Args()
		switch e.AsCall().FunctionName() {
		case operators.In, operators.OldIn:
			return pathOfKey(args[1], args[0])
		case operators.OptSelect, operators.OptIndex:
			return pathOfKey(args[0], args[1])
		}
	default: // holds no test itself
	}
	return ""
}

// reads returns the path that the node reads if it may be absent, and what to
// tell the author.
func reads(tree *ast.AST, e ast.Expr) (p, text string) {
	switch e.Kind() {
	case ast.SelectKind:
		s := e.AsSelect()
		if from := path(s.Operand()); from != "" && !s.IsTestOnly() {
			return readsField(tree.GetType(s.Operand().ID()), from, s.FieldName())
		}
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index || tree.GetType(call.Args()[0].ID()).Kind() != types.MapKind {
			return "", ""
		}
		key, literal := textOf(call.Args()[1])
		if from := path(call.Args()[0]); literal && from != "" {
			return join(from, key), missingKey(from, key)
		}
	default: // reads nothing itself
	}
	return "", ""
}

// readsField is reads for a field of the type of.
func readsField(of *types.Type, from, name string) (p, text string) {
	if of.Kind() == types.MapKind {
		return join(from, name), missingKey(from, name)
	}
	if o := objectTypes[of.TypeName()]; o != nil && o.byName[name] != nil && o.byName[name].strict {
		return join(from, name), notSet(from, name)
	}
	return "", ""
}

func missingKey(from, key string) string {
	return fmt.Sprintf("%q may be missing, which is an error when the rule runs: test it first with %q in %s, or read %s[?%q].orValue(\"\")",
		key, key, from, from, key)
}

func notSet(from, name string) string {
	other := "0"
	if name != "tolerationSeconds" {
		other = "now"
	}
	return fmt.Sprintf("%s may not be set, which is an error when the rule runs: test it first with has(%s.%s), or read %s.?%s.orValue(%s)",
		name, from, name, from, name, other)
}

// path names what an expression reads, or "" if it is more than a path.
func path(e ast.Expr) string {
	switch e.Kind() {
	case ast.IdentKind:
		return e.AsIdent()
	case ast.SelectKind:
		return join(path(e.AsSelect().Operand()), e.AsSelect().FieldName())
	case ast.CallKind:
		if call := e.AsCall(); call.FunctionName() == operators.Index {
			return pathOfKey(call.Args()[0], call.Args()[1])
		}
	default: // a value of its own
	}
	return ""
}

// pathOfKey names an entry by a literal key or number.
func pathOfKey(of, key ast.Expr) string {
	if key.Kind() != ast.LiteralKind {
		return ""
	}
	switch k := key.AsLiteral().(type) {
	case types.String:
		return join(path(of), string(k))
	case types.Int:
		return join(path(of), strconv.FormatInt(int64(k), 10))
	}
	return ""
}

func join(path, key string) string {
	if path == "" {
		return ""
	}
	return path + "." + key
}
