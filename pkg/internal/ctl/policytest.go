package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/policy"
)

func (c *cli) policyTest() *cobra.Command {
	var policyFile string
	cmd := &cobra.Command{
		Use:   "test FILE…|DIR…",
		Short: "Run policies against their tests",
		Long: `Run policies against their tests. The tests of NAME.yaml are in NAME.test.yaml
beside it; either of the two may be named, or a directory, of which every file of
tests is run. Exit code 1 if a test fails.`,
		Example: `  dispatchctl policy test policy.yaml
  dispatchctl policy test policies/
  dispatchctl policy test -f config.yaml team-a.test.yaml team-b.test.yaml`,
		Args: needArgs("FILE or DIR"),
		RunE: c.action(func(_ context.Context, args []string) error { return c.test(policyFile, args) }),
	}
	cmd.Flags().StringVarP(&policyFile, "policy", "f", "", "`file` of the policy that the tests are about; empty: the one beside the tests")
	c.addOutput(cmd, formatText)
	return cmd
}

// suite is a policy with a file of tests.
type suite struct{ policy, tests string }

// testResult is what policy test found.
type testResult struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	// Problems are what kept tests from being run.
	Problems []problemJSON `json:"problems,omitempty"`
	Tests    []caseResult  `json:"tests"`
}

// caseResult is what came of one test.
type caseResult struct {
	Policy string `json:"policy"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	// Differences say what is not as wanted, Want and Got show it.
	Differences []string   `json:"differences,omitempty"`
	Want        *verdict   `json:"want,omitempty"`
	Got         *verdict   `json:"got,omitempty"`
	Rules       []rulePart `json:"rules,omitempty"`
}

func (c *cli) test(policyFile string, args []string) error {
	suites, err := findSuites(policyFile, args)
	if err != nil {
		return err
	}
	result := testResult{Tests: []caseResult{}}
	for _, s := range suites {
		c.runSuite(s, &result)
	}
	err = c.print(result, func(w io.Writer) { result.text(w, suites) })
	if err == nil && (result.Failed > 0 || len(result.Problems) > 0) {
		err = ErrTold
	}
	return err
}

// findSuites pairs policies with their tests.
func findSuites(policyFile string, args []string) ([]suite, error) {
	var suites []suite
	for _, arg := range args {
		info, err := os.Stat(arg)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %s", arg, reason(err))
		case info.IsDir():
			inDir, err := testsIn(policyFile, arg)
			if err != nil {
				return nil, err
			}
			suites = append(suites, inDir...)
			continue
		}
		s := suite{policy: policyFile, tests: arg}
		switch of := policyOf(arg); {
		case policyFile != "":
		case of != "":
			s.policy = of
		default:
			s = suite{policy: arg, tests: testsOf(arg)}
			if _, err := os.Stat(s.tests); errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s: has no tests; write %s, or name the file of tests with -f %s", arg, s.tests, arg)
			}
		}
		suites = append(suites, s)
	}
	return suites, nil
}

// testsIn finds the files of tests below a directory.
func testsIn(policyFile, dir string) ([]suite, error) {
	var suites []suite
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != dir && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir // such as those in which a ConfigMap keeps its versions
		}
		if of := policyOf(name); of != "" && !entry.IsDir() {
			if policyFile != "" {
				of = policyFile
			}
			suites = append(suites, suite{policy: of, tests: name})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if len(suites) == 0 {
		return nil, fmt.Errorf("%s: there is no file of tests in it; the tests of NAME.yaml are in NAME%s.yaml", dir, testInfix)
	}
	return suites, nil
}

// runSuite adds what came of the tests of a suite.
func (c *cli) runSuite(s suite, result *testResult) {
	p, err := c.loadPolicy(s.policy)
	result.Problems = append(result.Problems, problemsOf(s.policy, err)...)
	data, readErr := c.read(s.tests)
	if readErr != nil {
		result.Problems = append(result.Problems, problemsOf(s.tests, readErr)...)
		return
	}
	cases, casesErr := policy.LoadCases(s.tests, data)
	result.Problems = append(result.Problems, problemsOf(s.tests, casesErr)...)
	if err != nil || casesErr != nil {
		return
	}
	for i := range cases {
		one := runCase(s, p, &cases[i])
		if one.Passed {
			result.Passed++
		} else {
			result.Failed++
		}
		result.Tests = append(result.Tests, one)
	}
}

func runCase(s suite, p *policy.Policy, c *policy.Case) caseResult {
	one := caseResult{Policy: s.policy, File: s.tests, Line: c.Line, Name: c.Name, Differences: c.Differences(p)}
	if one.Passed = len(one.Differences) == 0; one.Passed {
		return one
	}
	result, err := p.Decide(c.Request, c.Now)
	one.Want, one.Got = wanted(&c.Want), got(result, err)
	one.Rules = partsOf(result)
	if !compares(one.Differences, "rules") && len(c.Want.Rules) == 0 {
		one.Got.Rules = nil
	}
	return one
}

// compares tells whether a difference is about a part of a decision.
func compares(differences []string, part string) bool {
	for _, d := range differences {
		if strings.HasPrefix(d, part+":") {
			return true
		}
	}
	return false
}

// text tells what is wrong, then how each suite did.
func (r *testResult) text(w io.Writer, suites []suite) {
	for _, p := range r.Problems {
		fmt.Fprintln(w, p.line())
	}
	for i := range r.Tests {
		r.Tests[i].text(w)
	}
	for _, s := range suites {
		switch passed, failed := r.tally(s.tests); {
		case passed+failed == 0:
			fmt.Fprintf(w, "FAIL  %s  not run\n", s.tests)
		case failed > 0:
			fmt.Fprintf(w, "FAIL  %s  %d of %s failed\n", s.tests, failed, count(passed+failed, "test"))
		default:
			fmt.Fprintf(w, "ok    %s  %s\n", s.tests, count(passed, "test"))
		}
	}
	if len(suites) > 1 {
		fmt.Fprintf(w, "%d passed, %d failed, %s\n", r.Passed, r.Failed, count(len(r.Problems), "problem"))
	}
}

// tally counts the tests of a file.
func (r *testResult) tally(file string) (passed, failed int) {
	for i := range r.Tests {
		switch t := &r.Tests[i]; {
		case t.File != file:
		case t.Passed:
			passed++
		default:
			failed++
		}
	}
	return passed, failed
}

// text shows a test that failed: what was wanted against what came, and the part
// of each rule in it.
func (c *caseResult) text(w io.Writer) {
	if c.Passed {
		return
	}
	fmt.Fprintf(w, "%s:%d: %s\n", c.File, c.Line, c.Name)
	fmt.Fprint(w, "    - wanted, + came:\n")
	fmt.Fprint(w, indent("    ", lineDiff(c.Want.lines(), c.Got.only(c.Want).lines())))
	var rules strings.Builder
	table(&rules, partRows(c.Rules))
	fmt.Fprintln(w, indent("    ", rules.String()))
}
