package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/internal/policy"
)

// stdinName stands for standard input where a file is asked for.
const stdinName = "-"

func (c *cli) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, test and try policies",
		Long: `Check, test and try the policies that dispatch-hook serves. A policy is a YAML
file with the field rules. The configuration of dispatch-hook will do as well: the
policy in it is looked at, and nothing else.`,
	}
	return c.group(cmd, c.policyLint(), c.policyTest(), c.policyEval())
}

// read reads a file, or standard input.
func (c *cli) read(name string) ([]byte, error) {
	if name != stdinName {
		return os.ReadFile(name)
	}
	if c.In == nil {
		return nil, errors.New("there is no standard input to read")
	}
	return io.ReadAll(c.In)
}

// loadPolicy reads a policy, which may be part of the configuration of the
// adapter. Problems of the policy are those of package policy.
func (c *cli) loadPolicy(name string) (*policy.Policy, error) {
	data, err := c.read(name)
	if err != nil {
		return nil, err
	}
	return parsePolicy(name, data)
}

func parsePolicy(name string, data []byte) (*policy.Policy, error) {
	node := policyIn(data)
	if node == nil {
		return policy.Load(name, data)
	}
	if file := member(node, "file"); file != nil && member(node, "rules") == nil {
		return nil, &policy.Problem{File: name, Line: file.Line, Field: "policy.file", Text: fmt.Sprintf("the rules are in %s; name that file instead", file.Value)}
	}
	return policy.LoadNode(name, node)
}

// policyIn finds the policy in a configuration of the adapter; nil if the data is
// a policy by itself, or nothing that can be told apart.
func policyIn(data []byte) *yaml.Node {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) != 1 {
		return nil
	}
	root := doc.Content[0]
	if member(root, "rules") != nil {
		return nil
	}
	return member(root, "policy")
}

// isTests tells whether the data is a file of tests.
func isTests(data []byte) bool {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) != 1 {
		return false
	}
	return member(doc.Content[0], "tests") != nil
}

// member is the value of a name in a mapping, nil if there is none.
func member(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// problemJSON is a [policy.Problem] as data.
type problemJSON struct {
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Rule  string `json:"rule,omitempty"`
	Field string `json:"field,omitempty"`
	Text  string `json:"text"`
}

// line is a problem on one line, the way compilers tell it.
func (p problemJSON) line() string {
	if p.File == "" {
		return p.Text
	}
	problem := policy.Problem(p)
	return problem.Error()
}

// problemsOf takes a joined error apart.
func problemsOf(file string, err error) []problemJSON {
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	list := make([]problemJSON, len(errs))
	for i, err := range errs {
		if p, ok := errors.AsType[*policy.Problem](err); ok {
			list[i] = problemJSON(*p)
			continue
		}
		list[i] = problemJSON{File: file, Text: oneLine(reason(err))}
	}
	return list
}

// reason is an error of a file without the file, which is named already.
func reason(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// readRequest reads a request from JSON or YAML. Fields that a request does not
// have are errors: in a file that somebody wrote they are misspelt.
func (c *cli) readRequest(name string) (*admission.Request, error) {
	data, err := c.read(name)
	if err != nil {
		return nil, fmt.Errorf("-r %s: %s", name, reason(err))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("-r %s: %w", name, err)
	}
	if len(doc.Content) == 0 {
		return nil, fmt.Errorf("-r %s: is empty; dispatchctl request prints the request of a job", name)
	}
	keepText(&doc)
	var plain any
	if err := doc.Decode(&plain); err != nil {
		return nil, fmt.Errorf("-r %s: %w", name, err)
	}
	data, err = json.Marshal(plain)
	if err != nil {
		return nil, fmt.Errorf("-r %s: %w", name, err)
	}
	req := &admission.Request{}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(req); err != nil {
		return nil, fmt.Errorf("-r %s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
	}
	return req, nil
}

// keepText keeps YAML from taking the text of a label for a time, as tests of
// policies do.
func keepText(n *yaml.Node) {
	if n.Tag == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		keepText(child)
	}
}

// testsOf is the name of the tests of a policy, and policyOf its reverse; empty
// for a name that has none.
func testsOf(name string) string {
	ext := filepath.Ext(name)
	return strings.TrimSuffix(name, ext) + testInfix + ext
}

func policyOf(name string) string {
	ext := filepath.Ext(name)
	base, ok := strings.CutSuffix(strings.TrimSuffix(name, ext), testInfix)
	if !ok || ext != ".yaml" && ext != ".yml" {
		return ""
	}
	return base + ext
}

// testInfix is what the name of a file of tests has before its ending.
const testInfix = ".test"
