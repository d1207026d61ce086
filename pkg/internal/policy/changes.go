package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// changes are what a rule wants to be different.
type changes struct {
	nodeSelector, labels, annotations []entry
	tolerations                       []toleration
	priorityClassName, serviceAccount *expression

	// fixed are the changes if nothing of the request goes into them.
	fixed *admission.Changes
}

// entry is one key of a map of changes.
type entry struct {
	key   string
	value *expression
}

// toleration has what is worked out beside what is not.
type toleration struct {
	rest       admission.Toleration
	key, value *expression // nil if not given
}

// decide returns valid changes, or names the field that is the trouble.
func (c *changes) decide(s *scope) (_ *admission.Changes, field string, err error) {
	if c.fixed != nil {
		return c.fixed, "", nil
	}
	made, field, err := c.make(s)
	if err == nil {
		field, err = fieldOf(made.Validate())
	}
	return &made, field, err
}

// make works out the values, or names the field that it could not.
func (c *changes) make(s *scope) (made admission.Changes, field string, err error) {
	for i, entries := range [...][]entry{c.nodeSelector, c.labels, c.annotations} {
		if len(entries) == 0 {
			continue
		}
		into := make(map[string]string, len(entries))
		for _, e := range entries {
			if into[e.key], err = s.string(e.value); err != nil {
				return made, fmt.Sprintf("admit.%s[%q]", parts[i].name, e.key), err
			}
		}
		*parts[i].of(&made) = into
	}
	for i, t := range c.tolerations {
		one, name, err := t.make(s)
		if err != nil {
			return made, fmt.Sprintf("admit.tolerations[%d].%s", i, name), err
		}
		made.Tolerations = append(made.Tolerations, one)
	}
	if made.PriorityClassName, err = s.optional(c.priorityClassName); err != nil {
		return made, "admit.priorityClassName", err
	}
	if made.ServiceAccount, err = s.optional(c.serviceAccount); err != nil {
		return made, "admit.serviceAccount", err
	}
	return made, "", nil
}

func (t *toleration) make(s *scope) (one admission.Toleration, field string, err error) {
	one = t.rest
	if one.Key, err = s.optional(t.key); err != nil {
		return one, "key", err
	}
	if one.Value, err = s.optional(t.value); err != nil {
		return one, "value", err
	}
	return one, "", nil
}

// optional is empty for what is not given.
func (s *scope) optional(e *expression) (string, error) {
	if e == nil {
		return "", nil
	}
	return s.string(e)
}

// fieldOf takes the field out of what the contract finds wrong with changes.
func fieldOf(err error) (string, error) {
	if err == nil {
		return "", nil
	}
	field, ok := errors.AsType[*admission.FieldError](err)
	if !ok {
		return "admit", err
	}
	return "admit" + strings.TrimPrefix(field.Field, "changes"), errors.New(field.Problem)
}
