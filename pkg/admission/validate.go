package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// The limits of Kubernetes.
const (
	maxNameBytes       = 63        // of a label value, and of a key behind its "/"
	maxDomainBytes     = 253       // of a key before its "/", and of an object's name
	maxAnnotationBytes = 256 << 10 // of all keys and values of one object
)

// FieldError says which field of a decision is invalid and why.
type FieldError struct {
	Field   string // such as changes.labels["team"] or changes.tolerations[0].effect
	Problem string
}

// Error returns the field, a colon and the problem.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Validate reports the first problem of c as a [*FieldError], always the same
// one for equal changes. It checks what Kubernetes and Kueue would refuse
// later, and reserved keys. It does not know the operator's allowlist, nor
// what c is merged with.
func (c Changes) Validate() error {
	// The type matters: a nil *FieldError must not become a non-nil error.
	for _, check := range []func(Changes) *FieldError{
		checkNodeSelector, checkLabels, checkAnnotations, checkTolerations, checkNames,
	} {
		if err := check(c); err != nil {
			err.Field = "changes." + err.Field
			return err
		}
	}
	return nil
}

func checkNodeSelector(c Changes) *FieldError {
	return eachEntry("nodeSelector", c.NodeSelector, func(key, value string) string {
		return first(labelKey(key), labelValue(value))
	})
}

func checkLabels(c Changes) *FieldError {
	return eachEntry("labels", c.Labels, func(key, value string) string {
		return first(reservedKey(key), labelKey(key), labelValue(value))
	})
}

func checkAnnotations(c Changes) *FieldError {
	size := 0
	for key, value := range c.Annotations {
		size += len(key) + len(value)
	}
	if size > maxAnnotationBytes {
		return &FieldError{"annotations", fmt.Sprintf("more than %d bytes in all", maxAnnotationBytes)}
	}
	return eachEntry("annotations", c.Annotations, func(key, value string) string {
		return first(reservedKey(key), labelKey(strings.ToLower(key)), text(value))
	})
}

func checkTolerations(c Changes) *FieldError {
	if n := len(c.Tolerations); n > MaxTolerations {
		return &FieldError{"tolerations", fmt.Sprintf("%d given, at most %d allowed", n, MaxTolerations)}
	}
	for i, t := range c.Tolerations {
		if err := t.check(); err != nil {
			err.Field = fmt.Sprintf("tolerations[%d].%s", i, err.Field)
			return err
		}
	}
	return nil
}

func (t Toleration) check() *FieldError {
	switch {
	case !slices.Contains([]string{"", "Equal", "Exists"}, t.Operator):
		return &FieldError{"operator", fmt.Sprintf("%q is neither Exists nor Equal", cut(t.Operator, 64))}
	case t.Key == "" && t.Operator != "Exists":
		return &FieldError{"operator", "must be Exists when the key is empty"}
	case t.Operator == "Exists" && t.Value != "":
		return &FieldError{"value", "must be empty when the operator is Exists"}
	case t.Key != "" && labelKey(t.Key) != "":
		return &FieldError{"key", labelKey(t.Key)}
	case labelValue(t.Value) != "":
		return &FieldError{"value", labelValue(t.Value)}
	}
	return t.checkEffect()
}

func (t Toleration) checkEffect() *FieldError {
	switch {
	case !slices.Contains([]string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}, t.Effect):
		return &FieldError{"effect", fmt.Sprintf("%q is none of NoSchedule, PreferNoSchedule and NoExecute", cut(t.Effect, 64))}
	case t.TolerationSeconds != nil && t.Effect != "NoExecute":
		return &FieldError{"tolerationSeconds", "only allowed with effect NoExecute"}
	}
	return nil
}

func checkNames(c Changes) *FieldError {
	if c.PriorityClassName != "" && !isSubdomain(c.PriorityClassName) {
		return &FieldError{"priorityClassName", fmt.Sprintf("%q is not a lower-case DNS name", cut(c.PriorityClassName, 64))}
	}
	if c.ServiceAccount != "" && !isSubdomain(c.ServiceAccount) {
		return &FieldError{"serviceAccount", fmt.Sprintf("%q is not a lower-case DNS name", cut(c.ServiceAccount, 64))}
	}
	return nil
}

// eachEntry goes through m in the order of its keys, so that the first problem
// is always the same one.
func eachEntry(field string, m map[string]string, problem func(key, value string) string) *FieldError {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if p := problem(key, m[key]); p != "" {
			return &FieldError{fmt.Sprintf("%s[%q]", field, cut(key, 128)), p}
		}
	}
	return nil
}

func first(problems ...string) string {
	for _, p := range problems {
		if p != "" {
			return p
		}
	}
	return ""
}

func reservedKey(key string) string {
	if IsReservedKey(key) {
		return "the key is reserved"
	}
	return ""
}

// labelKey checks a key: a name, with or without a DNS subdomain and a slash
// before it.
func labelKey(key string) string {
	name := key
	if domain, rest, found := strings.Cut(key, "/"); found {
		if !isSubdomain(domain) {
			return "the key's part before the slash is not a lower-case DNS name"
		}
		name = rest
	}
	if name == "" || !isName(name) {
		return fmt.Sprintf("the key is not a name: 1 to %d letters, digits, '-', '_' and '.', with a letter or digit at both ends", maxNameBytes)
	}
	return ""
}

func labelValue(value string) string {
	if value != "" && !isName(value) {
		return fmt.Sprintf("the value %q is not a label value: at most %d letters, digits, '-', '_' and '.', with a letter or digit at both ends", cut(value, 64), maxNameBytes)
	}
	return ""
}

func text(value string) string {
	if !utf8.ValidString(value) {
		return "the value is not valid UTF-8"
	}
	return ""
}

func isName(s string) bool {
	if len(s) > maxNameBytes || !alphanumeric(s[0]) || !alphanumeric(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// isSubdomain checks for DNS labels in lower case with dots between them. As
// in Kubernetes only the whole has a limit, not each label.
func isSubdomain(s string) bool {
	if len(s) > maxDomainBytes {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isDNSLabel(label) {
			return false
		}
	}
	return true
}

func isDNSLabel(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '-' && (!alphanumeric(c) || 'A' <= c && c <= 'Z') {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
