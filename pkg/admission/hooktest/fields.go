package hooktest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// The names of an answer's fields.
var (
	answerFields     = []string{"decision", "reason", "until", "changes"}
	changesFields    = jsonNames(reflect.TypeFor[admission.Changes]())
	tolerationFields = jsonNames(reflect.TypeFor[admission.Toleration]())
)

func jsonNames(t reflect.Type) []string {
	var names []string
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// knownFields returns an error for a field that is not known. Unlike package
// encoding/json it compares names exactly. The answer can be read, so every
// part of it has its type.
func knownFields(answer []byte) error {
	var top, changes map[string]json.RawMessage
	var tolerations []map[string]json.RawMessage
	for _, read := range []func() error{
		func() error { return json.Unmarshal(answer, &top) },
		func() error { return unknown("", top, answerFields) },
		func() error { return part(top["changes"], &changes) },
		func() error { return unknown("changes.", changes, changesFields) },
		func() error { return part(changes["tolerations"], &tolerations) },
	} {
		if err := read(); err != nil {
			return err
		}
	}
	for i, t := range tolerations {
		if err := unknown(fmt.Sprintf("changes.tolerations[%d].", i), t, tolerationFields); err != nil {
			return err
		}
	}
	return nil
}

// part reads a part that may be absent.
func part(data json.RawMessage, into any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, into)
}

func unknown(where string, members map[string]json.RawMessage, known []string) error {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown field %.128q", where+name)
		}
	}
	return nil
}
