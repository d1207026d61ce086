package policy

import (
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apimachinery/pkg/api/resource"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// expression is one CEL expression of a rule.
type expression struct {
	// constant is the value of what asks neither for the request nor for the
	// time.
	constant ref.Val

	// plain is the faster program. Only tracked knows what it costs, and stops.
	plain, tracked cel.Program

	// most is what it costs at most, about a request of usual size.
	most uint64

	// proven expressions are so cheap that all of a policy together stay
	// within the limit, about such a request.
	proven bool
}

// fault is something wrong with an expression, and where in its text.
type fault struct {
	line, column int // from 1; 0 when it is about the whole
	text         string
}

// compiler compiles the expressions of one policy.
type compiler struct {
	env   *cel.Env
	zones zones
}

func newCompiler() (*compiler, error) {
	base, err := baseEnv()
	if err != nil {
		return nil, err
	}
	c := &compiler{zones: zones{}}
	c.env, err = base.Extend(c.zones.functions()...)
	return c, err
}

// compile compiles text, whose value must be of the type want. What the rule
// has tested by then is in seen; what text tests is added to it.
func (c *compiler) compile(text string, want *cel.Type, seen tests) (*expression, []fault) {
	checked, issues := c.env.Compile(text)
	if issues.Err() != nil {
		return nil, explain(issues.Errors(), want)
	}
	tree := checked.NativeRep()
	faults := slices.Concat(checkType(checked.OutputType(), want), c.addZones(tree), seen.check(tree))
	if len(faults) > 0 {
		return nil, faults
	}
	e, err := c.plan(checked)
	if err != nil {
		return nil, []fault{{text: err.Error()}}
	}
	return e, nil
}

func (c *compiler) plan(checked *cel.Ast) (*expression, error) {
	most, err := estimate(c.env, checked)
	if err != nil {
		return nil, err
	}
	e := &expression{most: most}
	optimize := cel.EvalOptions(cel.OptOptimize)
	if e.plain, err = c.env.Program(checked, optimize, cel.CustomDecorator(foldQuantities)); err != nil {
		return nil, err
	}
	e.tracked, err = c.env.Program(checked,
		cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost),
		cel.CostTracking(costs{}),
		cel.CostTrackerOptions(interpreter.PresenceTestHasCost(false)),
		cel.CostLimit(maxCost))
	if err != nil || most > maxConstantCost || !isConstant(checked.NativeRep()) {
		return e, err
	}
	e.constant, err = (&scope{}).eval(e)
	return e, err
}

// visit calls f with every node of a tree.
func visit(tree *ast.AST, f func(ast.Expr)) {
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(f))
}

// isConstant tells whether nothing of the request and not the time goes in.
func isConstant(tree *ast.AST) bool {
	constant := true
	visit(tree, func(e ast.Expr) {
		if e.Kind() == ast.IdentKind && (e.AsIdent() == "request" || e.AsIdent() == "now") {
			constant = false
		}
	})
	return constant
}

// addZones loads the time zones that the expression may ask for. A zone that is
// chosen at run time, say by team, must be among the texts of the expression.
func (c *compiler) addZones(tree *ast.AST) []fault {
	var faults []fault
	asks := false
	visit(tree, func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		args := e.AsCall().Args()
		if _, clock := clockFunctions[e.AsCall().FunctionName()]; !clock || len(args) != 1 {
			return
		}
		asks = true
		name, literal := textOf(args[0])
		if _, fixed := fixedOffset(name); !literal || fixed {
			return
		}
		if _, err := loadZone(name); err != nil {
			faults = append(faults, faultAt(tree, args[0], err.Error()))
		}
	})
	if !asks {
		return faults
	}
	visit(tree, func(e ast.Expr) {
		if name, literal := textOf(e); literal {
			if zone, err := loadZone(name); err == nil {
				c.zones[name] = zone
			}
		}
	})
	return faults
}

// textOf returns the text of a literal.
func textOf(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

func faultAt(tree *ast.AST, e ast.Expr, text string) fault {
	at := tree.SourceInfo().GetStartLocation(e.ID())
	return fault{line: at.Line(), column: at.Column() + 1, text: text}
}

func checkType(got, want *cel.Type) []fault {
	if got.IsExactType(want) {
		return nil
	}
	text := fmt.Sprintf("the type of the value must be %s and is %s", typeName(want), typeName(got))
	if want == cel.StringType && got.Kind() != types.StructKind {
		text += "; string(…) makes text of most values"
	}
	return []fault{{text: text}}
}

func typeName(t *cel.Type) string {
	switch t.Kind() {
	case types.TimestampKind:
		return "timestamp"
	case types.DurationKind:
		return "duration"
	default:
		return t.String()
	}
}

// quantityConstant is a quantity that stands in the expression. Every
// evaluation gets a copy of its own, for comparing writes to the operands.
type quantityConstant struct {
	id       int64
	quantity resource.Quantity
}

// ID is the node's.
func (q *quantityConstant) ID() int64 { return q.id }

// Eval returns a copy.
func (q *quantityConstant) Eval(interpreter.Activation) ref.Val {
	c := q.quantity
	return apiservercel.Quantity{Quantity: &c}
}

// foldQuantities reads quantities that stand in the expression once instead of
// at every evaluation.
func foldQuantities(i interpreter.Interpretable) (interpreter.Interpretable, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || call.Function() != "quantity" || len(call.Args()) != 1 {
		return i, nil
	}
	arg, ok := call.Args()[0].(interpreter.InterpretableConst)
	if !ok {
		return i, nil
	}
	// What fits a few digits holds no pointer, so a copy shares nothing.
	text, ok := arg.Value().(types.String)
	if !ok || len(text) > 8 {
		return i, nil
	}
	q, err := resource.ParseQuantity(string(text))
	if err != nil {
		return i, nil //nolint:nilerr // it fails when it is evaluated, if it ever is
	}
	return &quantityConstant{call.ID(), q}, nil
}
