package policy

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// scope is what the expressions of one decision see.
type scope struct {
	request ref.Val
	now     ref.Val

	// usual is false for a request that the estimates do not hold for.
	usual bool
	spent uint64
}

var _ interpreter.Activation = (*scope)(nil)

func newScope(req *admission.Request, now time.Time) *scope {
	v := reflect.ValueOf(req).Elem()
	return &scope{
		request: requestType.valueOf(v),
		now:     types.Timestamp{Time: now.UTC()},
		usual:   requestType.usual(v),
	}
}

// ResolveName knows the two variables.
func (s *scope) ResolveName(name string) (any, bool) {
	switch name {
	case "request":
		return s.request, true
	case "now":
		return s.now, true
	}
	return nil, false
}

// Parent is nil: there are no other variables.
func (s *scope) Parent() interpreter.Activation { return nil }

func (s *scope) eval(e *expression) (ref.Val, error) {
	if e.constant != nil {
		return e.constant, nil
	}
	if s.usual && e.proven {
		v, _, err := e.plain.Eval(s)
		return v, err
	}
	v, details, err := e.tracked.Eval(s)
	if cost := details.ActualCost(); cost != nil {
		s.spent += *cost
	}
	if _, canceled := errors.AsType[interpreter.EvalCancelledError](err); canceled || s.spent > maxCost {
		return nil, fmt.Errorf("the decision costs more than %d units", maxCost)
	}
	return v, err
}

func (s *scope) bool(e *expression) (bool, error) {
	v, err := s.eval(e)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the value is a %s and not a bool", v.Type().TypeName())
	}
	return bool(b), nil
}

func (s *scope) string(e *expression) (string, error) {
	v, err := s.eval(e)
	if err != nil {
		return "", err
	}
	t, ok := v.(types.String)
	if !ok {
		return "", fmt.Errorf("the value is a %s and not a string", v.Type().TypeName())
	}
	return string(t), nil
}

func (s *scope) time(e *expression) (time.Time, error) {
	v, err := s.eval(e)
	if err != nil {
		return time.Time{}, err
	}
	t, ok := v.(types.Timestamp)
	if !ok {
		return time.Time{}, fmt.Errorf("the value is a %s and not a timestamp", v.Type().TypeName())
	}
	return t.Time, nil
}
