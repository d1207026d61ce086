package policy

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/resource"
	apiservercel "k8s.io/apiserver/pkg/cel"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// quantityFunctions read quantities as the contract does: what is empty is not
// set, and counts as nothing.
func quantityFunctions() cel.EnvOption {
	unary := func(name, overload string, result *cel.Type, f func(string) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.Overload(overload, []*cel.Type{cel.StringType}, result,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				s, ok := v.(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(v)
				}
				return f(string(s))
			})))
	}
	options := []cel.EnvOption{
		unary("units", "units_string", cel.IntType, func(s string) ref.Val { return scaled(s, 1, admission.Units) }),
		unary("milliUnits", "milli_units_string", cel.IntType, func(s string) ref.Val { return scaled(s, 1000, admission.MilliUnits) }),
		// The same name, type and overload as in the library of Kubernetes,
		// where the empty text is an error.
		unary("quantity", "string_to_quantity", apiservercel.QuantityType, parseQuantity),
		arithmetic("add", (*resource.Quantity).Add),
		arithmetic("sub", (*resource.Quantity).Sub),
	}
	return func(env *cel.Env) (*cel.Env, error) {
		var err error
		for _, option := range options {
			if env, err = option(env); err != nil {
				return nil, err
			}
		}
		return env, nil
	}
}

// arithmetic replaces a function of the library of Kubernetes. What that one
// returns cannot stand at the right of ==, and it writes to large operands.
func arithmetic(name string, f func(*resource.Quantity, resource.Quantity)) cel.EnvOption {
	binding := cel.BinaryBinding(func(a, b ref.Val) ref.Val {
		x, ok := a.Value().(*resource.Quantity)
		if !ok {
			return types.MaybeNoSuchOverloadErr(a)
		}
		result := x.DeepCopy()
		switch y := b.Value().(type) {
		case *resource.Quantity:
			f(&result, *y)
		case int64:
			f(&result, *resource.NewQuantity(y, resource.DecimalExponent))
		default:
			return types.MaybeNoSuchOverloadErr(b)
		}
		return apiservercel.Quantity{Quantity: &result}
	})
	q := apiservercel.QuantityType
	return cel.Function(name,
		cel.MemberOverload("quantity_"+name, []*cel.Type{q, q}, q, binding),
		cel.MemberOverload("quantity_"+name+"_int", []*cel.Type{q, cel.IntType}, q, binding))
}

// scaled takes a short way for the digits that most quantities are.
func scaled(s string, by int64, read func(string) (int64, error)) ref.Val {
	if s == "" {
		return types.IntZero
	}
	if last := s[len(s)-1]; len(s) < 16 && '0' <= last && last <= '9' {
		if n, err := strconv.ParseUint(s, 10, 63); err == nil {
			return types.Int(int64(n) * by)
		}
	}
	n, err := read(s)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Int(n)
}

func parseQuantity(s string) ref.Val {
	if s == "" {
		return apiservercel.Quantity{Quantity: &resource.Quantity{}}
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return types.NewErr("%q is not a quantity", s)
	}
	return apiservercel.Quantity{Quantity: &q}
}

// clockFunctions are the parts of a timestamp that take a time zone, by the
// name of the function, with the overload that takes the zone and the one that
// does not.
var clockFunctions = map[string][2]string{
	overloads.TimeGetFullYear:     {overloads.TimestampToYearWithTz, overloads.TimestampToYear},
	overloads.TimeGetMonth:        {overloads.TimestampToMonthWithTz, overloads.TimestampToMonth},
	overloads.TimeGetDayOfYear:    {overloads.TimestampToDayOfYearWithTz, overloads.TimestampToDayOfYear},
	overloads.TimeGetDate:         {overloads.TimestampToDayOfMonthOneBasedWithTz, overloads.TimestampToDayOfMonthOneBased},
	overloads.TimeGetDayOfMonth:   {overloads.TimestampToDayOfMonthZeroBasedWithTz, overloads.TimestampToDayOfMonthZeroBased},
	overloads.TimeGetDayOfWeek:    {overloads.TimestampToDayOfWeekWithTz, overloads.TimestampToDayOfWeek},
	overloads.TimeGetHours:        {overloads.TimestampToHoursWithTz, overloads.TimestampToHours},
	overloads.TimeGetMinutes:      {overloads.TimestampToMinutesWithTz, overloads.TimestampToMinutes},
	overloads.TimeGetSeconds:      {overloads.TimestampToSecondsWithTz, overloads.TimestampToSeconds},
	overloads.TimeGetMilliseconds: {overloads.TimestampToMillisecondsWithTz, overloads.TimestampToMilliseconds},
}

// zones are the time zones that a policy speaks of, by their names. CEL itself
// would read the zone from the disk at every call, under a name that a request
// may have brought along.
type zones map[string]*time.Location

// functions replaces what CEL does with a zone.
func (z zones) functions() []cel.EnvOption {
	var options []cel.EnvOption
	for name, overload := range clockFunctions {
		options = append(options, cel.Function(name, cel.MemberOverload(overload[0],
			[]*cel.Type{cel.TimestampType, cel.StringType}, cel.IntType,
			cel.BinaryBinding(func(ts, zone ref.Val) ref.Val { return z.read(name, overload[1], ts, zone) }))))
	}
	return options
}

// read asks for a part of the time in UTC that looks like the local one.
func (z zones) read(function, overload string, ts, name ref.Val) ref.Val {
	t, isTime := ts.(types.Timestamp)
	text, isText := name.(types.String)
	if !isTime || !isText {
		return types.NoSuchOverloadErr()
	}
	offset, ok := fixedOffset(string(text))
	if !ok {
		zone := z[string(text)]
		if zone == nil {
			return types.NewErr("time zone %q: only zones that stand in the expression as text are known", text)
		}
		_, offset = t.In(zone).Zone()
	}
	local := types.Timestamp{Time: t.UTC().Add(time.Duration(offset) * time.Second)}
	return local.Receive(function, overload, nil)
}

// fixedOffset reads an offset from UTC such as "+01:00", in seconds.
func fixedOffset(text string) (int, bool) {
	if !strings.HasPrefix(text, "+") && !strings.HasPrefix(text, "-") {
		return 0, false
	}
	t, err := time.Parse("-07:00", text)
	if err != nil {
		return 0, false
	}
	_, offset := t.Zone()
	return offset, true
}
