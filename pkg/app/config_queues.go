package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// names is a flag with names of objects, sorted, each once.
type names []string

func (n *names) String() string { return strings.Join(*n, ",") }

// Set adds names to those given before.
func (n *names) Set(text string) error {
	if text == "" {
		return nil // a chart without any
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return fmt.Errorf("%q is no name: %s", name, problems[0])
		}
		*n = append(*n, name)
	}
	slices.Sort(*n)
	*n = slices.Compact(*n)
	return nil
}

// selector is a flag with a label selector; nil unless given.
type selector struct{ to *labels.Selector }

func (s selector) String() string {
	if s.to == nil || *s.to == nil {
		return ""
	}
	return (*s.to).String()
}

// Set replaces the selector.
func (s selector) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		*s.to = nil
		return nil
	}
	parsed, err := labels.Parse(text)
	*s.to = parsed
	return err
}

func (c *Config) validateQueues() error {
	w := c.Wanted
	named, labelled := len(w.Queues) > 0, w.Selector != nil
	switch {
	case !named && !labelled:
		return c.validateNoQueues()
	case len(w.Checks) == 0:
		return errors.New("-queue-checks is missing: say which AdmissionChecks the ClusterQueues are to have")
	}
	return nil
}

// validateNoQueues refuses what is about queues, because none are given.
func (c *Config) validateNoQueues() error {
	switch {
	case c.Mend:
		return errors.New("-mend-queues needs -queues or -queue-selector: say which ClusterQueues are to have our checks")
	case len(c.Wanted.Checks) > 0:
		return errors.New("-queue-checks needs -queues or -queue-selector: say which ClusterQueues are to have them")
	case len(c.Wanted.OnFlavors) > 0:
		return errors.New("-queue-on-flavors needs -queues or -queue-selector: say which ClusterQueues are to have our checks")
	}
	return nil
}
