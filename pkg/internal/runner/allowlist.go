package runner

import (
	"fmt"
	"slices"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// Allowlist limits what a hook may choose. A nil list is no rule, an empty one
// that is not nil allows nothing. An empty choice changes nothing and is
// always allowed.
type Allowlist struct {
	PriorityClasses []string
	ServiceAccounts []string
}

// clone keeps the difference between a nil list and an empty one.
func (a Allowlist) clone() Allowlist {
	return Allowlist{slices.Clone(a.PriorityClasses), slices.Clone(a.ServiceAccounts)}
}

// check returns a *admission.FieldError for the first choice that is not
// allowed.
func (a Allowlist) check(d admission.Decision) error {
	c, changes := d.Changes()
	switch {
	case !changes:
		return nil
	case !allowed(a.PriorityClasses, c.PriorityClassName):
		return notAllowed("changes.priorityClassName", c.PriorityClassName)
	case !allowed(a.ServiceAccounts, c.ServiceAccount):
		return notAllowed("changes.serviceAccount", c.ServiceAccount)
	}
	return nil
}

func allowed(list []string, choice string) bool {
	return choice == "" || list == nil || slices.Contains(list, choice)
}

func notAllowed(field, choice string) error {
	return &admission.FieldError{Field: field, Problem: fmt.Sprintf("%q is not on the allowlist", choice)}
}
