package chart

import (
	"slices"
	"strings"
	"testing"
	"text/template/parse"
)

// usedWhole are maps that a template takes whole, so that none names what is in them.
var usedWhole = map[string]string{
	"adapter.policy":           "copied into the configuration of the adapter",
	"adapter.resources":        "copied into the container",
	"controller.kubeAPI":       "asked by the name of the field",
	"controller.resources":     "copied into the container",
	"jobs.resources":           "copied into the containers",
	"metrics.dashboard.labels": "merged into the labels",
	"podSecurityContext":       "copied into the pods",
	"securityContext":          "copied into the containers",
}

// walker collects what a template asks of the values. Paths are lists of keys below
// .Values; nil is something else.
type walker struct {
	uses map[string]bool
	vars map[string][]string
	dot  []string
}

// TestValuesUsed: some template uses every value, and every value that a template asks
// for is in values.yaml.
func TestValuesUsed(t *testing.T) {
	w := walker{uses: map[string]bool{}}
	for _, file := range loadChart(t).Templates {
		tree := parse.New(file.Name)
		tree.Mode = parse.SkipFuncCheck
		all := map[string]*parse.Tree{}
		if _, err := tree.Parse(string(file.Data), "", "", all); err != nil {
			t.Fatal(err)
		}
		for _, tr := range all {
			w.vars, w.dot = map[string][]string{}, nil
			w.node(tr.Root)
		}
	}
	defaults := values(t)
	for _, path := range paths(defaults) {
		name := strings.Join(path, ".")
		if m, ok := get(defaults, path...).(map[string]any); ok && len(m) > 0 {
			continue
		}
		if !w.uses[name] && !deepIn(keys(usedWhole), name) {
			t.Errorf("%s: no template uses it", name)
		}
	}
	for name := range usedWhole {
		if !w.uses[name] {
			t.Errorf("%s: no template takes it whole; take it off the list", name)
		}
	}
	for use := range w.uses {
		if use != "" && !has(defaults, strings.Split(use, ".")) {
			t.Errorf("%s: a template asks for it, and values.yaml does not have it", use)
		}
	}
}

func keys(m map[string]string) []string {
	var all []string
	for key := range m {
		all = append(all, key)
	}
	return all
}

// has tells whether values.yaml has a path, or an empty map that is the user's to fill.
func has(value map[string]any, path []string) bool {
	inner, ok := value[path[0]]
	if !ok || len(path) == 1 {
		return ok
	}
	m, ok := inner.(map[string]any)
	return ok && (len(m) == 0 || has(m, path[1:])) || inner == nil
}

// path is what a node stands for, nil if that is none of the values.
func (w *walker) path(node parse.Node) []string {
	var base, rest []string
	switch n := node.(type) {
	case *parse.DotNode:
		return w.dot
	case *parse.FieldNode:
		base, rest = w.dot, n.Ident
	case *parse.VariableNode:
		base, rest = w.vars[n.Ident[0]], n.Ident[1:]
	case *parse.ChainNode:
		base, rest = w.path(n.Node), n.Field
	case *parse.PipeNode:
		if len(n.Cmds) > 0 && len(n.Cmds[0].Args) == 1 && (len(n.Cmds) == 1 || n.Cmds[1].String() == "default dict") {
			return w.path(n.Cmds[0].Args[0])
		}
		return nil
	default:
		return nil
	}
	// Whatever holds the root, .Values is below it.
	if i := slices.Index(rest, "Values"); i >= 0 {
		return append([]string{"Values"}, rest[i+1:]...)
	}
	if base == nil {
		return nil
	}
	return slices.Concat(base, rest)
}

func (w *walker) use(path []string) {
	if path != nil {
		w.uses[strings.Join(path[1:], ".")] = true
	}
}

func (w *walker) node(node parse.Node) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, inner := range n.Nodes {
				w.node(inner)
			}
		}
	case *parse.ActionNode:
		w.pipe(n.Pipe)
	case *parse.IfNode:
		w.pipe(n.Pipe)
		w.branch(&n.BranchNode, w.dot)
	case *parse.WithNode:
		dot := w.path(n.Pipe)
		if dot == nil {
			w.pipe(n.Pipe)
		}
		w.branch(&n.BranchNode, dot)
	case *parse.RangeNode:
		w.pipe(n.Pipe)
		w.branch(&n.BranchNode, nil)
	case *parse.TemplateNode:
		w.pipe(n.Pipe)
	}
}

func (w *walker) branch(n *parse.BranchNode, dot []string) {
	outer := w.dot
	w.dot = dot
	w.node(n.List)
	w.dot = outer
	w.node(n.ElseList)
}

// pipe looks at a pipeline. A variable that is given one of the values stands for it.
func (w *walker) pipe(p *parse.PipeNode) {
	if p == nil {
		return
	}
	if path := w.path(p); len(p.Decl) == 1 && path != nil {
		w.vars[p.Decl[0].Ident[0]] = path
		return
	}
	for _, c := range p.Cmds {
		for _, arg := range c.Args {
			if inner, ok := arg.(*parse.PipeNode); ok {
				w.pipe(inner)
			} else if chain, ok := arg.(*parse.ChainNode); ok && w.path(arg) == nil {
				w.node(&parse.ActionNode{Pipe: &parse.PipeNode{Cmds: []*parse.CommandNode{{Args: []parse.Node{chain.Node}}}}})
			} else {
				w.use(w.path(arg))
			}
		}
	}
}
