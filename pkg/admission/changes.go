package admission

import (
	"maps"
	"slices"
)

// MaxTolerations is how many tolerations one decision may add.
const MaxTolerations = 8

// Changes is what a hook wants to be different about the pods of an attempt.
// A zero field changes nothing. [Changes.Validate] has the limits.
type Changes struct {
	// NodeSelector, Labels and Annotations are merged over those of the task;
	// where both have a key, the hook's value wins. Labels and Annotations
	// must not use a reserved key.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`

	// Tolerations are appended to those of the task, at most [MaxTolerations].
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// PriorityClassName and ServiceAccount replace those of the task when not
	// empty. They must be on the operator's allowlist when there is one; an
	// empty list allows nothing.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	ServiceAccount    string `json:"serviceAccount,omitempty"`
}

// Toleration lets pods run on nodes with a matching taint, as in Kubernetes.
type Toleration struct {
	// Key is the key of the taint; empty, with Operator "Exists", matches all.
	Key string `json:"key,omitempty"`

	// Operator is "Exists" or "Equal"; empty means "Equal".
	Operator string `json:"operator,omitempty"`

	// Value is the value of the taint; empty with Operator "Exists".
	Value string `json:"value,omitempty"`

	// Effect is "NoSchedule", "PreferNoSchedule" or "NoExecute"; empty matches
	// all three.
	Effect string `json:"effect,omitempty"`

	// TolerationSeconds is for Effect "NoExecute" only: how long a pod stays
	// on the node once the taint is there. Nil means for ever.
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// IsZero reports whether c changes nothing.
func (c Changes) IsZero() bool {
	return len(c.NodeSelector) == 0 && len(c.Labels) == 0 && len(c.Annotations) == 0 &&
		len(c.Tolerations) == 0 && c.PriorityClassName == "" && c.ServiceAccount == ""
}

func (c Changes) clone() Changes {
	c.NodeSelector = cloneMap(c.NodeSelector)
	c.Labels = cloneMap(c.Labels)
	c.Annotations = cloneMap(c.Annotations)
	c.Tolerations = cloneTolerations(c.Tolerations)
	return c
}

func (c Changes) equal(o Changes) bool {
	return maps.Equal(c.NodeSelector, o.NodeSelector) &&
		maps.Equal(c.Labels, o.Labels) &&
		maps.Equal(c.Annotations, o.Annotations) &&
		slices.EqualFunc(c.Tolerations, o.Tolerations, Toleration.equal) &&
		c.PriorityClassName == o.PriorityClassName &&
		c.ServiceAccount == o.ServiceAccount
}

func (t Toleration) equal(o Toleration) bool {
	a, b := t.TolerationSeconds, o.TolerationSeconds
	t.TolerationSeconds, o.TolerationSeconds = nil, nil
	if a == nil || b == nil {
		return t == o && a == b
	}
	return t == o && *a == *b
}

// cloneMap makes nil of an empty map, so that what means the same is the same.
func cloneMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}

func cloneTolerations(list []Toleration) []Toleration {
	if len(list) == 0 {
		return nil
	}
	out := slices.Clone(list)
	for i, t := range out {
		if t.TolerationSeconds != nil {
			out[i].TolerationSeconds = new(*t.TolerationSeconds)
		}
	}
	return out
}
