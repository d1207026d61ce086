package policy

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apiserver/pkg/cel/library"
)

// The unit of cost is that of CEL in Kubernetes: about a step of the
// evaluation, or ten characters of text gone through.
const (
	// maxCost is what one expression may cost, and all of a decision together:
	// what Kubernetes gives all expressions of one custom resource, roughly a
	// second.
	maxCost = 10_000_000

	// maxConstantCost is what may be spent on a constant while loading.
	maxConstantCost = 10_000
)

// Costs are estimated for requests of usual size. A larger one is decided all
// the same, but every step of the evaluation is counted then.
const (
	usualItems      = 32   // of a list
	usualEntries    = 128  // of a map
	usualKey        = 320  // bytes of a key: a domain, a slash and a name
	usualText       = 1024 // bytes of any other text
	usualAnnotation = 16 << 10
)

// costs says what functions cost and how large the parts of a request are.
type costs struct{}

// CallCost counts what a call has cost.
func (costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	if isScale(function) {
		function = "quantity"
	}
	return (&library.CostEstimator{}).CallCost(function, overload, args, result)
}

// EstimateCallCost says what a call may cost.
func (c costs) EstimateCallCost(function, overload string, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	if isScale(function) {
		function = "quantity"
	}
	return (&library.CostEstimator{SizeEstimator: c}).EstimateCallCost(function, overload, target, args)
}

// isScale is true for the functions that read a quantity, as quantity() does.
func isScale(function string) bool { return function == "units" || function == "milliUnits" }

// EstimateSize bounds a part of the request by its place, and what was made of
// such parts by the largest.
func (costs) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	size := uint64(1)
	switch node.Type().Kind() {
	case types.ListKind:
		if size = usualItems; len(node.Path()) == 0 {
			size *= usualItems // of lists within a list, made one
		}
	case types.MapKind:
		size = usualEntries
	case types.StringKind, types.BytesKind, types.DynKind, types.AnyKind, types.TypeParamKind:
		size = usualSize(node.Path())
	case types.OpaqueKind:
		size = usualAnnotation // what an optional holds
	default: // no size
	}
	return &checker.SizeEstimate{Max: size}
}

func usualSize(path []string) uint64 {
	if len(path) == 0 {
		return usualAnnotation
	}
	if path[len(path)-1] == "@keys" {
		return usualKey
	}
	if slices.Contains(path, "annotations") {
		return usualAnnotation
	}
	return usualText
}

// estimate says what an expression costs at most, or why that is too much.
func estimate(env *cel.Env, checked *cel.Ast) (uint64, error) {
	cost, err := env.EstimateCost(checked, costs{})
	if err != nil {
		return 0, err
	}
	if cost.Max > maxCost {
		return 0, fmt.Errorf("may cost more than %d units, the limit of a decision: it goes through too much, often by a loop within a loop or by matching long text", maxCost)
	}
	return cost.Max, nil
}

// prove marks the cheapest expressions as long as all of them together stay
// within the limit. They need no counting.
func prove(all []*expression) {
	slices.SortFunc(all, func(a, b *expression) int {
		switch {
		case a.most < b.most:
			return -1
		case a.most > b.most:
			return 1
		}
		return 0
	})
	sum := uint64(0)
	for _, e := range all {
		if sum += e.most; sum > maxCost {
			return
		}
		e.proven = true
	}
}

// usual tells whether the estimates hold for a struct of a request.
func (o *objectType) usual(v reflect.Value) bool {
	for _, f := range o.fields {
		if !f.usual(v.Field(f.index)) {
			return false
		}
	}
	return true
}

func (f *field) usual(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return v.Len() <= usualText
	case reflect.Struct:
		return f.object == nil || f.object.usual(v)
	case reflect.Map:
		return f.usualMap(v)
	case reflect.Slice:
		return f.usualList(v)
	default:
		return true
	}
}

func (f *field) usualMap(v reflect.Value) bool {
	m, _ := reflect.TypeAssert[map[string]string](v)
	longest := usualText
	if f.name == "annotations" {
		longest = usualAnnotation
	}
	for key, value := range m {
		if len(key) > usualKey || len(value) > longest {
			return false
		}
	}
	return len(m) <= usualEntries
}

func (f *field) usualList(v reflect.Value) bool {
	if v.Len() > usualItems {
		return false
	}
	for i := range v.Len() {
		item := v.Index(i)
		if f.object != nil && !f.object.usual(item) || f.object == nil && item.Len() > usualText {
			return false
		}
	}
	return true
}
