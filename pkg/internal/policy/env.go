package policy

import (
	"errors"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
	"k8s.io/apiserver/pkg/cel/library"
)

// The size of an expression is bounded because checking its types takes a time
// that grows much faster than its depth.
const (
	maxExpression = 8 << 10 // characters
	maxDepth      = 50      // of what stands within or behind one another
)

// baseEnv is the language without the functions that need the policy. It has
// what the admission policies of Kubernetes 1.34 have, less the authorizer,
// whose questions need an API server, and optMap, which copies its target: a
// short chain of them would fill the memory.
var baseEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.HomogeneousAggregateLiterals(),
		cel.EagerlyValidateDeclarations(true),
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(),
		cel.ClearMacros(),
		cel.Macros(cel.StandardMacros...),
		cel.CostEstimatorOptions(checker.PresenceTestHasCost(false)),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(
			cel.ValidateDurationLiterals(),
			cel.ValidateTimestampLiterals(),
			cel.ValidateRegexLiterals(),
			cel.ValidateHomogeneousAggregateLiterals(),
		),
		ext.Strings(ext.StringsVersion(2)),
		ext.Sets(),
		ext.Lists(ext.ListsVersion(1)),
		ext.TwoVarComprehensions(),
		library.URLs(),
		library.Regex(),
		library.Lists(),
		library.Quantity(),
		library.IP(),
		library.CIDR(),
		library.Format(),
		library.SemverLib(library.SemverVersion(1)),
		requestTypes,
		cel.Variable("request", requestType.cel),
		cel.Variable("now", cel.TimestampType),
		quantityFunctions(),
	)
})

// requestTypes goes last among the options with types of their own: it wraps
// the registry that they were put in.
func requestTypes(env *cel.Env) (*cel.Env, error) {
	registry, ok := env.CELTypeProvider().(*types.Registry)
	if !ok {
		return nil, errors.New("the types of CEL are not in a registry")
	}
	s := schema{registry}
	env, err := cel.CustomTypeAdapter(s)(env)
	if err != nil {
		return nil, err
	}
	return cel.CustomTypeProvider(s)(env)
}
