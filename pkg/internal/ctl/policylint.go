package ctl

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/policy"
)

func (c *cli) policyLint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lint FILE…",
		Short: "Check policies and their tests, and tell everything that is wrong",
		Long: `Check policies and files of tests. Everything that is wrong is told at once, each
on a line with file, line and field. Exit code 1 if there is anything.`,
		Example: `  dispatchctl policy lint policy.yaml policy.test.yaml
  dispatchctl policy lint /etc/dispatch-hook/config.yaml`,
		Args: needArgs("FILE"),
		RunE: c.action(func(_ context.Context, args []string) error { return c.lint(args) }),
	}
	c.addOutput(cmd, formatText)
	return cmd
}

// lintResult is what policy lint found.
type lintResult struct {
	Files    int           `json:"files"`
	Problems []problemJSON `json:"problems"`
}

func (c *cli) lint(files []string) error {
	result := lintResult{Files: len(files), Problems: []problemJSON{}}
	for _, name := range files {
		result.Problems = append(result.Problems, problemsOf(name, c.lintFile(name))...)
	}
	err := c.print(result, func(w io.Writer) {
		for _, p := range result.Problems {
			fmt.Fprintln(w, p.line())
		}
		if len(result.Problems) == 0 {
			fmt.Fprintf(w, "%s in order\n", count(len(files), "file"))
		}
	})
	if err == nil && len(result.Problems) > 0 {
		err = ErrTold
	}
	return err
}

func (c *cli) lintFile(name string) error {
	data, err := c.read(name)
	if err != nil {
		return err
	}
	if isTests(data) {
		_, err = policy.LoadCases(name, data)
		return err
	}
	_, err = parsePolicy(name, data)
	return err
}

// needArgs wants one argument or more and says what they are.
func needArgs(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("an argument is missing: %s", what)
		}
		return nil
	}
}

// count is "1 file" or "3 files".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// noArgs wants flags only.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q: there are flags only", args[0])
	}
	return nil
}
