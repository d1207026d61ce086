package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrUnknownDecision is the error of [Decision.UnmarshalJSON] for an answer
// whose decision is missing or none of the four.
var ErrUnknownDecision = errors.New("unknown decision")

// wireDecision is what travels. Fields that do not belong to the decision are
// left out.
type wireDecision struct {
	Decision string    `json:"decision"`
	Reason   string    `json:"reason,omitempty"`
	Until    time.Time `json:"until,omitzero"`
	Changes  *Changes  `json:"changes,omitempty"`
}

// MarshalJSON writes d as the answer of a hook server:
//
//	{"decision":"Hold","reason":"freeze","until":"2026-01-02T15:04:05Z"}
//
// An annotation that is not valid UTF-8 is an error, a [*FieldError]: JSON
// would silently change it. The characters <, > and & stand for themselves,
// which keeps text short; json.Marshal, unlike a direct call, escapes them.
func (d Decision) MarshalJSON() ([]byte, error) {
	if err := d.badText(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(wireDecision{
		Decision: d.kind.String(),
		Reason:   d.reason,
		Until:    d.until,
		Changes:  d.changes,
	})
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// badText finds what JSON cannot carry. The type of its result matters: a nil
// *FieldError must not become a non-nil error.
func (d Decision) badText() error {
	if d.kind != KindAdmitWith {
		return nil
	}
	bad := eachEntry("changes.annotations", d.changes.Annotations, func(_, value string) string { return text(value) })
	if bad == nil {
		return nil
	}
	return bad
}

// UnmarshalJSON reads the answer of a hook server. Unknown fields are ignored,
// also those that differ from a known one in letter case only, and so is a
// reason beside Admit or AdmitWith. A field that is null is absent. Anything
// that could mean two things is an error: a name that is repeated, also within
// labels, another map or a toleration; AdmitWith without changes; changes, even
// empty ones, beside another decision; until beside another decision than Hold.
// The error wraps [ErrUnknownDecision] when the decision itself is missing or
// unknown. The changes are read but not validated. On error d is not changed.
func (d *Decision) UnmarshalJSON(data []byte) error {
	var a answer
	if err := a.read(data); err != nil {
		return err
	}
	read, err := a.decide()
	if err != nil {
		return err
	}
	*d = read
	return nil
}

// answer is a decision as read; nil means that a field was absent or null.
type answer struct {
	decision string
	reason   string
	until    *time.Time
	changes  *Changes
}

func (a *answer) read(data []byte) error {
	return eachMember(data, func(name string, value json.RawMessage) error {
		switch name {
		case "decision":
			return json.Unmarshal(value, &a.decision)
		case "reason":
			return json.Unmarshal(value, &a.reason)
		case "until":
			return json.Unmarshal(value, &a.until)
		case "changes":
			return a.readChanges(value)
		}
		return nil
	})
}

func (a *answer) readChanges(data json.RawMessage) error {
	if string(data) == "null" {
		return nil
	}
	a.changes = new(Changes)
	return eachMember(data, a.changes.readMember)
}

func (c *Changes) readMember(name string, value json.RawMessage) error {
	switch name {
	case "nodeSelector":
		return readStrings(value, &c.NodeSelector)
	case "labels":
		return readStrings(value, &c.Labels)
	case "annotations":
		return readStrings(value, &c.Annotations)
	case "tolerations":
		return readTolerations(value, &c.Tolerations)
	case "priorityClassName":
		return json.Unmarshal(value, &c.PriorityClassName)
	case "serviceAccount":
		return json.Unmarshal(value, &c.ServiceAccount)
	}
	return nil
}

func (a *answer) decide() (Decision, error) {
	kind, known := kindOf(a.decision)
	switch {
	case !known:
		return Decision{}, fmt.Errorf("%w %q", ErrUnknownDecision, cut(a.decision, 64))
	case kind == KindAdmitWith && a.changes == nil:
		return Decision{}, errors.New("changes: missing beside decision AdmitWith")
	case kind != KindAdmitWith && a.changes != nil:
		return Decision{}, fmt.Errorf("changes: not allowed beside decision %s", kind)
	case kind != KindHold && a.until != nil:
		return Decision{}, fmt.Errorf("until: not allowed beside decision %s", kind)
	}
	return a.build(kind), nil
}

func kindOf(name string) (Kind, bool) {
	for _, k := range []Kind{KindAdmit, KindAdmitWith, KindHold, KindRefuse} {
		if k.String() == name {
			return k, true
		}
	}
	return KindAdmit, false
}

func (a *answer) build(kind Kind) Decision {
	switch kind {
	case KindAdmitWith:
		return AdmitWith(*a.changes)
	case KindRefuse:
		return Refuse(a.reason)
	case KindHold:
		if a.until != nil {
			return HoldUntil(*a.until, a.reason)
		}
		return Hold(a.reason)
	case KindAdmit:
	}
	return Admit()
}

// eachMember calls f with the members of a JSON object in their order. Unlike
// json.Unmarshal it compares names exactly and refuses a repeated name. Errors
// of f are prefixed with the name.
func eachMember(data []byte, f func(name string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, err := dec.Token(); err != nil {
		return err
	} else if open != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		name, value, err := member(dec)
		if err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("%q: repeated", cut(name, 64))
		}
		seen[name] = true
		if err := f(name, value); err != nil {
			return fmt.Errorf("%s: %w", cut(name, 64), err)
		}
	}
	return closed(dec)
}

func member(dec *json.Decoder) (string, json.RawMessage, error) {
	token, err := dec.Token()
	if err != nil {
		return "", nil, err
	}
	var value json.RawMessage
	err = dec.Decode(&value)
	name, _ := token.(string) // the decoder lets nothing else stand here
	return name, value, err
}

// closed checks that the object ends properly and that nothing follows it.
func closed(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return err
	}
	// More would take a bracket for the end.
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text after the JSON object")
	}
	return nil
}

// readStrings refuses null as a value, which json.Unmarshal would turn into an
// empty string.
func readStrings(data json.RawMessage, into *map[string]string) error {
	if string(data) == "null" {
		return nil
	}
	out := map[string]string{}
	err := eachMember(data, func(key string, value json.RawMessage) error {
		if string(value) == "null" {
			return errors.New("null instead of text")
		}
		var s string
		err := json.Unmarshal(value, &s)
		out[key] = s
		return err
	})
	*into = cloneMap(out)
	return err
}

func readTolerations(data json.RawMessage, into *[]Toleration) error {
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for i, one := range list {
		var t Toleration
		if err := eachMember(one, t.readMember); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
		*into = append(*into, t)
	}
	return nil
}

func (t *Toleration) readMember(name string, value json.RawMessage) error {
	switch name {
	case "key":
		return json.Unmarshal(value, &t.Key)
	case "operator":
		return json.Unmarshal(value, &t.Operator)
	case "value":
		return json.Unmarshal(value, &t.Value)
	case "effect":
		return json.Unmarshal(value, &t.Effect)
	case "tolerationSeconds":
		return json.Unmarshal(value, &t.TolerationSeconds)
	}
	return nil
}
