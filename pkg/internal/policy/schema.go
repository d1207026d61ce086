package policy

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// requestType is what CEL knows of a request. It follows the JSON names of
// [admission.Request], so a field added there is here too.
var requestType = describe(reflect.TypeFor[admission.Request](), map[reflect.Type]*objectType{})

// objectType is one struct type of a request, as CEL sees it.
type objectType struct {
	name   string
	cel    *types.Type
	fields []*field // in the order of the struct
	byName map[string]*field
}

// field is one field of an objectType.
type field struct {
	name  string // in JSON
	pos   int    // in the fields of its type
	index int    // in the struct
	cel   *types.Type

	// object is the type of the value or of its items, nil for what is plain.
	object *objectType

	// strict fields have no value that means "not set": reading one that is
	// not set is an error.
	strict bool

	convert func(reflect.Value) ref.Val
	access  *types.FieldType
}

var timeType = reflect.TypeFor[time.Time]()

// describe panics on a type that it cannot show to CEL. It runs when the
// program starts, on types of this repository only.
func describe(t reflect.Type, known map[reflect.Type]*objectType) *objectType {
	if o := known[t]; o != nil {
		return o
	}
	o := &objectType{
		name:   t.String(),
		cel:    types.NewObjectType(t.String(), traits.FieldTesterType|traits.IndexerType),
		byName: map[string]*field{},
	}
	known[t] = o
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		f := &field{name: name, pos: len(o.fields), index: i}
		f.describe(t.Field(i).Type, known)
		f.access = &types.FieldType{Type: f.cel, IsSet: f.isSet, GetFrom: f.getFrom}
		o.fields = append(o.fields, f)
		o.byName[name] = f
	}
	return o
}

func (f *field) describe(t reflect.Type, known map[reflect.Type]*objectType) {
	switch {
	case t == timeType:
		f.cel, f.convert, f.strict = types.TimestampType, timestampOf, true
	case t.Kind() == reflect.Struct:
		f.object = describe(t, known)
		f.cel, f.convert = f.object.cel, f.object.valueOf
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		f.object = describe(t.Elem(), known)
		f.cel, f.convert = types.NewListType(f.object.cel), f.object.listOf
	case t == reflect.TypeFor[[]string]():
		f.cel, f.convert = types.NewListType(types.StringType), stringsOf
	case t == reflect.TypeFor[map[string]string]():
		f.cel, f.convert = types.NewMapType(types.StringType, types.StringType), mapOf
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Int64:
		f.cel, f.strict = types.IntType, true
		f.convert = func(v reflect.Value) ref.Val { return intOf(v.Elem()) }
	default:
		f.describePlain(t)
	}
}

func (f *field) describePlain(t reflect.Type) {
	switch t.Kind() {
	case reflect.String:
		f.cel, f.convert = types.StringType, stringOf
	case reflect.Bool:
		f.cel, f.convert = types.BoolType, func(v reflect.Value) ref.Val { return types.Bool(v.Bool()) }
	case reflect.Int, reflect.Int32, reflect.Int64:
		f.cel, f.convert = types.IntType, intOf
	default:
		panic(fmt.Sprintf("field %s: CEL cannot see a %s", f.name, t))
	}
}

func stringOf(v reflect.Value) ref.Val { return types.String(v.String()) }

func intOf(v reflect.Value) ref.Val { return types.Int(v.Int()) }

// timestampOf keeps to UTC, for string(timestamp) shows the zone.
func timestampOf(v reflect.Value) ref.Val {
	t, _ := reflect.TypeAssert[time.Time](v)
	return types.Timestamp{Time: t.UTC()}
}

func mapOf(v reflect.Value) ref.Val {
	m, _ := reflect.TypeAssert[map[string]string](v)
	return types.NewStringStringMap(adapter, m)
}

func stringsOf(v reflect.Value) ref.Val {
	list := make([]ref.Val, v.Len())
	for i := range list {
		list[i] = stringOf(v.Index(i))
	}
	return types.NewRefValList(adapter, list)
}

func (o *objectType) listOf(v reflect.Value) ref.Val {
	list := make([]ref.Val, v.Len())
	for i := range list {
		list[i] = o.valueOf(v.Index(i))
	}
	return types.NewRefValList(adapter, list)
}

func (o *objectType) valueOf(v reflect.Value) ref.Val {
	return &object{typ: o, v: v, memo: make([]ref.Val, len(o.fields))}
}

// adapter turns Go values into CEL values. What the objects hand out is one
// already.
var adapter types.Adapter = schema{types.NewEmptyRegistry()}

// schema adds the types of a request to those of a registry.
type schema struct{ *types.Registry }

var objectTypes = reachable(requestType, map[string]*objectType{})

func reachable(o *objectType, all map[string]*objectType) map[string]*objectType {
	all[o.name] = o
	for _, f := range o.fields {
		if f.object != nil && all[f.object.name] == nil {
			reachable(f.object, all)
		}
	}
	return all
}

// NativeToValue has a short way for what is a value already, and for what
// tests, maps of text and lists in an expression bring.
func (s schema) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case ref.Val:
		return v
	case bool:
		return types.Bool(v)
	case string:
		return types.String(v)
	case []ref.Val:
		return types.NewRefValList(s, v)
	}
	return s.Registry.NativeToValue(value)
}

// FindStructType knows the types of a request by their Go names.
func (s schema) FindStructType(name string) (*types.Type, bool) {
	if o := objectTypes[name]; o != nil {
		return types.NewTypeTypeWithParam(o.cel), true
	}
	return s.Registry.FindStructType(name)
}

// FindStructFieldNames gives the JSON names.
func (s schema) FindStructFieldNames(name string) ([]string, bool) {
	o := objectTypes[name]
	if o == nil {
		return s.Registry.FindStructFieldNames(name)
	}
	names := make([]string, len(o.fields))
	for i, f := range o.fields {
		names[i] = f.name
	}
	return names, true
}

// FindStructFieldType is how the checker and the planner look up a field.
func (s schema) FindStructFieldType(name, fieldName string) (*types.FieldType, bool) {
	o := objectTypes[name]
	if o == nil {
		return s.Registry.FindStructFieldType(name, fieldName)
	}
	f := o.byName[fieldName]
	if f == nil {
		return nil, false
	}
	return f.access, true
}
