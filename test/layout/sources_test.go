package layout

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The ceilings are generous for a file with one subject. Code and what tests it
// are counted apart, because a table grows by the line.
const (
	maxLines     = 350
	maxTestLines = 600
)

// emptyNames say nothing about what a package holds, so that anything ends up in
// it.
var emptyNames = []string{"common", "constants", "factory", "manager", "service", "util", "utils"}

// source is one parsed Go file.
type source struct {
	name  string // from the root of the repository, with slashes
	lines int
	fset  *token.FileSet
	file  *ast.File
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

func (s source) at(node ast.Node) string {
	return fmt.Sprintf("%s:%d", s.name, s.fset.Position(node.Pos()).Line)
}

func checkLength(src source) []string {
	limit := maxLines
	if src.isTest() || strings.HasPrefix(src.name, "test/") {
		limit = maxTestLines
	}
	if src.lines <= limit {
		return nil
	}
	return []string{fmt.Sprintf("%s: has %d lines, the ceiling is %d; split it by subject", src.name, src.lines, limit)}
}

func checkPackageName(src source) []string {
	name := strings.TrimSuffix(src.file.Name.Name, "_test")
	dir := path.Base(path.Dir(src.name))
	for _, candidate := range []string{name, dir} {
		if slices.Contains(emptyNames, candidate) {
			return []string{fmt.Sprintf("%s: package %q; name it for what it holds", src.name, candidate)}
		}
	}
	return nil
}

// checkDocs wants a comment on every exported name of what is not a test. In a
// group of constants or variables, a comment on the group will do, or one that
// stands above several lines without a gap.
func checkDocs(src source) []string {
	if src.isTest() {
		return nil
	}
	var problems []string
	missing := func(node ast.Node, name string) {
		problems = append(problems, fmt.Sprintf("%s: exported %s has no doc comment", src.at(node), name))
	}
	for _, decl := range src.file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Doc == nil && decl.Name.IsExported() && receiverExported(decl) {
				missing(decl, decl.Name.Name)
			}
		case *ast.GenDecl:
			explained := 0 // the line down to which the last comment reaches
			for _, spec := range decl.Specs {
				line := src.fset.Position(spec.Pos()).Line
				if commented(decl, spec) || isValue(spec) && line == explained+1 {
					explained = src.fset.Position(spec.End()).Line
				} else if name := exportedName(spec); name != "" {
					missing(spec, name)
				}
			}
		}
	}
	return problems
}

func isValue(spec ast.Spec) bool {
	_, ok := spec.(*ast.ValueSpec)
	return ok
}

// commented tells whether a comment explains this very spec.
func commented(decl *ast.GenDecl, spec ast.Spec) bool {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		return spec.Doc != nil || decl.Doc != nil && !decl.Lparen.IsValid()
	case *ast.ValueSpec:
		return spec.Doc != nil || spec.Comment != nil || decl.Doc != nil
	}
	return true
}

func exportedName(spec ast.Spec) string {
	var names []*ast.Ident
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		names = []*ast.Ident{spec.Name}
	case *ast.ValueSpec:
		names = spec.Names
	}
	for _, name := range names {
		if name.IsExported() {
			return name.Name
		}
	}
	return ""
}

// receiverExported is true for a function, and for a method of an exported type.
func receiverExported(decl *ast.FuncDecl) bool {
	if decl.Recv == nil {
		return true
	}
	exported := false
	ast.Inspect(decl.Recv.List[0].Type, func(node ast.Node) bool {
		ident, ok := node.(*ast.Ident)
		exported = exported || ok && ident.IsExported()
		return !ok && !exported
	})
	return exported
}

// checkSkips wants to read why a test was left out.
func checkSkips(src source) []string {
	var problems []string
	methodCalls(src.file, func(call *ast.CallExpr, method *ast.SelectorExpr) bool {
		switch method.Sel.Name {
		case "Skip", "Skipf", "SkipNow":
			if isTestingVar(method.X) && !hasReason(call) {
				problems = append(problems, src.at(call)+": the test is skipped without a reason")
			}
		}
		return true
	})
	return problems
}

// checkCleanups refuses the context of a test where it has ended: Go cancels it just
// before cleanups run, so what is done with it is not done.
func checkCleanups(src source) []string {
	var problems []string
	methodCalls(src.file, func(cleanup *ast.CallExpr, method *ast.SelectorExpr) bool {
		if method.Sel.Name != "Cleanup" || !isTestingField(method.X) {
			return true
		}
		methodCalls(cleanup, func(call *ast.CallExpr, method *ast.SelectorExpr) bool {
			if method.Sel.Name == "Context" && isTestingField(method.X) {
				problems = append(problems, src.at(call)+": the context of a test has ended when its cleanups run; use context.WithoutCancel of it")
			}
			return method.Sel.Name != "WithoutCancel"
		})
		return false
	})
	return problems
}

// methodCalls visits every call in node of the form x.f(…), and what is in the call
// if visit says so.
func methodCalls(node ast.Node, visit func(*ast.CallExpr, *ast.SelectorExpr) bool) {
	ast.Inspect(node, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		return !ok || visit(call, method)
	})
}

// isTestingField is isTestingVar for a field too.
func isTestingField(expr ast.Expr) bool {
	if field, ok := expr.(*ast.SelectorExpr); ok {
		return isTestingVar(field.Sel)
	}
	return isTestingVar(expr)
}

// isTestingVar goes by the names that Go gives to what a test gets.
func isTestingVar(expr ast.Expr) bool {
	ident, ok := expr.(*ast.Ident)
	return ok && slices.Contains([]string{"t", "b", "f", "tb"}, ident.Name)
}

func hasReason(call *ast.CallExpr) bool {
	if len(call.Args) == 0 {
		return false
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return true
	}
	text, err := strconv.Unquote(lit.Value)
	return err != nil || strings.TrimSpace(text) != ""
}

// clocks are the functions by which the time or a delay enters code, by package.
var clocks = map[string][]string{
	"time":                                 {"Now", "Since", "Until", "After", "AfterFunc", "NewTicker", "NewTimer", "Sleep", "Tick"},
	"k8s.io/apimachinery/pkg/apis/meta/v1": {"Now", "NowMicro"},
}

// checkPurity refuses every mention of a clock in a pure package, a call or not:
// a default of time.Now hidden in a field is the same.
func checkPurity(src source) []string {
	if src.isTest() || !slices.Contains(purePackages, path.Dir(src.name)) {
		return nil
	}
	var problems []string
	local := map[string]string{} // local name of the package -> its import path
	for _, spec := range src.file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil || clocks[imported] == nil {
			continue
		}
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			problems = append(problems, src.at(spec)+": a pure package must not hide where the time comes from")
		}
		local[name] = imported
	}
	ast.Inspect(src.file, func(node ast.Node) bool {
		sel, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if ok && slices.Contains(clocks[local[pkg.Name]], sel.Sel.Name) {
			problems = append(problems, fmt.Sprintf("%s: a pure package must not use %s.%s; take the time as an argument",
				src.at(sel), pkg.Name, sel.Sel.Name))
		}
		return true
	})
	return problems
}

func TestCheckLength(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		name   string
		lines  int
		want   string
	}{
		"Code":         {reason: "at the ceiling", name: "pkg/app/config.go", lines: maxLines},
		"LongCode":     {reason: "one over", name: "pkg/app/config.go", lines: maxLines + 1, want: "351 lines"},
		"Test":         {reason: "at the ceiling of tests", name: "pkg/app/config_test.go", lines: maxTestLines},
		"LongTest":     {reason: "one over", name: "pkg/app/config_test.go", lines: maxTestLines + 1, want: "601 lines"},
		"TestCode":     {reason: "what tests use counts as tests", name: "test/cluster/start.go", lines: maxTestLines},
		"LongTestCode": {reason: "one over", name: "test/cluster/start.go", lines: maxTestLines + 1, want: "601 lines"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := mustParse(t, tc.name, "package app\n"+strings.Repeat("\n", tc.lines-1))
			expectProblem(t, tc.reason, checkLength(src), tc.want)
		})
	}
}

func TestCheckSource(t *testing.T) {
	t.Parallel()
	const time = `import "time"; `
	const meta = `import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"; `
	cases := map[string]struct {
		reason string
		check  func(source) []string
		name   string
		code   string
		want   string
	}{
		"Name":         {reason: "a noun of one idea", check: checkPackageName, name: "pkg/x/a.go", code: "package x"},
		"EmptyName":    {reason: "a bag", check: checkPackageName, name: "pkg/x/a.go", code: "package util", want: `"util"`},
		"EmptyDir":     {reason: "a bag by its folder", check: checkPackageName, name: "pkg/common/a.go", code: "package x", want: `"common"`},
		"EmptyXTest":   {reason: "a bag's test", check: checkPackageName, name: "pkg/x/a_test.go", code: "package manager_test", want: `"manager"`},
		"ManagerInCmd": {reason: "a folder further up is no package name", check: checkPackageName, name: "manager/x/a.go", code: "package x"},

		"DocFunc":     {reason: "explained", check: checkDocs, name: "x/a.go", code: "package x\n// F does.\nfunc F() {}"},
		"BareFunc":    {reason: "a function", check: checkDocs, name: "x/a.go", code: "package x\nfunc F() {}", want: "x/a.go:2: exported F"},
		"BareMethod":  {reason: "a method", check: checkDocs, name: "x/a.go", code: "package x\nfunc (t *T[K]) F() {}", want: "exported F"},
		"HiddenOwner": {reason: "nobody can see it", check: checkDocs, name: "x/a.go", code: "package x\nfunc (t *t) F() {}"},
		"BareType":    {reason: "a type", check: checkDocs, name: "x/a.go", code: "package x\ntype T int", want: "exported T"},
		"GroupedType": {reason: "a group's comment does not tell its types apart", check: checkDocs, name: "x/a.go",
			code: "package x\n// Types.\ntype (\nT int\n)", want: "exported T"},
		"BareConst": {reason: "a constant", check: checkDocs, name: "x/a.go", code: "package x\nconst C = 1", want: "exported C"},
		"GroupedConst": {reason: "one comment on a group of constants will do", check: checkDocs, name: "x/a.go",
			code: "package x\n// Kinds.\nconst (\nA = 1\nB = 2\n)"},
		"SharedConst": {reason: "a comment may speak of the next line too", check: checkDocs, name: "x/a.go",
			code: "package x\nconst (\n// A and B are kinds.\nA = 1\nB = 2\n)"},
		"DistantConst": {reason: "but not across a gap", check: checkDocs, name: "x/a.go",
			code: "package x\nconst (\n// A is a kind.\nA = 1\n\nB = 2\n)", want: "x/a.go:6: exported B"},
		"BareVar": {reason: "a variable behind a hidden one", check: checkDocs, name: "x/a.go", code: "package x\nvar a, B int", want: "exported B"},
		"DocTest": {reason: "tests name themselves", check: checkDocs, name: "x/a_test.go", code: "package x\nfunc TestF() {}"},

		"SkipReason":  {reason: "says why", check: checkSkips, name: "x/a_test.go", code: `package x; func F() { t.Skip("no node") }`},
		"SkipVar":     {reason: "says why at run time", check: checkSkips, name: "x/a_test.go", code: `package x; func F() { t.Skip(why) }`},
		"SkipBare":    {reason: "no word", check: checkSkips, name: "x/a_test.go", code: `package x; func F() { t.Skip() }`, want: "without a reason"},
		"SkipNow":     {reason: "cannot say why", check: checkSkips, name: "x/a_test.go", code: `package x; func F() { b.SkipNow() }`, want: "without a reason"},
		"SkipEmpty":   {reason: "an empty word", check: checkSkips, name: "x/a_test.go", code: `package x; func F() { tb.Skipf(" ", 1) }`, want: "without a reason"},
		"SkipScanner": {reason: "not a test", check: checkSkips, name: "x/a.go", code: `package x; func F() { scanner.Skip() }`},

		"CleanupEnded": {reason: "it is cancelled", check: checkCleanups, name: "x/a_test.go",
			code: `package x; func F() { t.Cleanup(func() { drop(t.Context()) }) }`, want: "has ended"},
		"CleanupField": {reason: "of a fixture too", check: checkCleanups, name: "x/a_test.go",
			code: `package x; func F() { s.t.Cleanup(func() { drop(s.t.Context()) }) }`, want: "has ended"},
		"CleanupFreed":  {reason: "goes on without it", check: checkCleanups, name: "x/a_test.go", code: `package x; func F() { t.Cleanup(func() { drop(context.WithoutCancel(t.Context())) }) }`},
		"CleanupBefore": {reason: "it has not ended yet", check: checkCleanups, name: "x/a_test.go", code: `package x; func F() { make(t.Context()); t.Cleanup(drop) }`},

		"PureDuration": {reason: "durations are values", check: checkPurity, name: "pkg/internal/gate/a.go",
			code: "package gate; " + time + "const d = time.Second"},
		"PureNow": {reason: "reads a clock", check: checkPurity, name: "pkg/internal/gate/a.go",
			code: "package gate; " + time + "var a = time.Now()", want: "must not use time.Now"},
		"PureSince": {reason: "reads it in a disguise", check: checkPurity, name: "pkg/internal/fence/a.go",
			code: "package fence; " + time + "var a = time.Since(b)", want: "must not use time.Since"},
		"PureValue": {reason: "hands it on", check: checkPurity, name: "pkg/internal/gate/a.go",
			code: "package gate; " + time + "var clock = time.Now", want: "must not use time.Now"},
		"PureAlias": {reason: "under another name", check: checkPurity, name: "pkg/internal/gate/a.go",
			code: `package gate; import chrono "time"; var a = chrono.Until(b)`, want: "must not use chrono.Until"},
		"PureDot": {reason: "under no name", check: checkPurity, name: "pkg/internal/gate/a.go",
			code: `package gate; import . "time"; var a = Now()`, want: "must not hide"},
		"PureMetaNow": {reason: "by way of Kubernetes", check: checkPurity, name: "pkg/internal/gate/a.go",
			code: "package gate; " + meta + "var a = metav1.Now()", want: "must not use metav1.Now"},
		"PureOther": {reason: "a method of that name is no clock", check: checkPurity, name: "pkg/internal/gate/a.go",
			code: "package gate; " + time + "var a = input.Now"},
		"ImpureNow": {reason: "other packages may look at the clock", check: checkPurity, name: "pkg/internal/lease/a.go",
			code: "package lease; " + time + "var a = time.Now()"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expectProblem(t, tc.reason, tc.check(mustParse(t, tc.name, tc.code)), tc.want)
		})
	}
}

func mustParse(t *testing.T, name, code string) source {
	t.Helper()
	src, err := parseSource(name, []byte(code))
	if err != nil {
		t.Fatal(err)
	}
	return src
}
