package policy

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// object is a struct of a request as a CEL value. A field is converted when it
// is first read and kept for all rules after that: an object belongs to one
// decision, which is made by one goroutine.
type object struct {
	typ  *objectType
	v    reflect.Value
	memo []ref.Val
}

var (
	_ traits.Indexer     = (*object)(nil)
	_ traits.FieldTester = (*object)(nil)
)

// isSet is how has(), and what has a question mark, see a field: what is empty,
// zero or false is not set, for on the wire it is absent.
func (f *field) isSet(target any) bool {
	o, ok := target.(*object)
	if !ok {
		return false
	}
	switch v := o.v.Field(f.index); v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() > 0
	default:
		return !v.IsZero()
	}
}

func (f *field) getFrom(target any) (any, error) {
	o, ok := target.(*object)
	if !ok {
		return nil, fmt.Errorf("no such field: %s", f.name)
	}
	if v := o.memo[f.pos]; v != nil {
		return v, nil
	}
	if f.strict && !f.isSet(o) {
		return nil, fmt.Errorf("%s is not set", f.name)
	}
	v := f.convert(o.v.Field(f.index))
	o.memo[f.pos] = v
	return v, nil
}

// Get reads a field whose name is known at run time only, as behind dyn().
func (o *object) Get(index ref.Val) ref.Val {
	f, err := o.field(index)
	if err != nil {
		return types.WrapErr(err)
	}
	v, err := f.getFrom(o)
	if err != nil {
		return types.WrapErr(err)
	}
	return adapter.NativeToValue(v)
}

// IsSet is has() behind dyn().
func (o *object) IsSet(index ref.Val) ref.Val {
	f, err := o.field(index)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Bool(f.isSet(o))
}

func (o *object) field(index ref.Val) (*field, error) {
	name, ok := index.(types.String)
	if !ok {
		return nil, errors.New("no such field")
	}
	f := o.typ.byName[string(name)]
	if f == nil {
		return nil, fmt.Errorf("no such field: %s", name)
	}
	return f, nil
}

// ConvertToNative refuses: nothing outside CEL needs an object.
func (o *object) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s cannot be converted to %s", o.typ.name, to)
}

// ConvertToType is type().
func (o *object) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return o.typ.cel
	}
	return types.NewErr("%s cannot be converted to %s", o.typ.name, to)
}

// Equal compares the structs.
func (o *object) Equal(other ref.Val) ref.Val {
	p, ok := other.(*object)
	return types.Bool(ok && o.typ == p.typ && reflect.DeepEqual(o.v.Interface(), p.v.Interface()))
}

// Type is the type that the expressions were checked against.
func (o *object) Type() ref.Type { return o.typ.cel }

// Value is what field access gets hold of.
func (o *object) Value() any { return o }
