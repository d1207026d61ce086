package ctl

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (c *cli) policyEval() *cobra.Command {
	var policyFile, requestFile, at string
	cmd := &cobra.Command{
		Use:   "eval -f POLICY -r REQUEST",
		Short: "Decide about one request, and show the part of each rule",
		Long: `Decide about one request, and show the part that each rule has in the decision.
Exit code 0 for any decision, 1 if there is no verdict.`,
		Example: `  dispatchctl policy eval -f policy.yaml -r request.json
  dispatchctl request -n team-a job/train | dispatchctl policy eval -f policy.yaml -r -
  dispatchctl policy eval -f policy.yaml -r request.yaml --now 2026-07-03T18:00:00Z`,
		Args: noArgs,
		RunE: c.action(func(context.Context, []string) error {
			now, err := timeFlag(at)
			switch {
			case err != nil:
				return err
			case policyFile == "":
				return usagef("-f is missing: give the file of the policy")
			case requestFile == "":
				return usagef("-r is missing: give the file of the request, or - for standard input")
			case policyFile == stdinName && requestFile == stdinName:
				return usagef("-f - and -r -: only one of the two can be standard input")
			}
			return c.eval(policyFile, requestFile, now)
		}),
	}
	flags := cmd.Flags()
	flags.StringVarP(&policyFile, "policy", "f", "", "`file` of the policy")
	flags.StringVarP(&requestFile, "request", "r", "", "`file` of the request, JSON or YAML; -: standard input")
	flags.StringVar(&at, "now", "", "`time` of the decision, such as 2026-03-02T12:00:00Z; empty: now")
	c.addOutput(cmd, formatText)
	return cmd
}

// timeFlag reads --now.
func timeFlag(text string) (time.Time, error) {
	if text == "" {
		return time.Now(), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, usagef("--now %q: want a time such as 2026-03-02T12:00:00Z", text)
	}
	return t, nil
}

// evalResult is what policy eval found.
type evalResult struct {
	verdict

	Parts []rulePart `json:"parts"`
}

func (c *cli) eval(policyFile, requestFile string, now time.Time) error {
	p, err := c.loadPolicy(policyFile)
	if err != nil {
		for _, problem := range problemsOf(policyFile, err) {
			fmt.Fprintln(c.Err, problem.line())
		}
		return ErrTold
	}
	req, err := c.readRequest(requestFile)
	if err != nil {
		return err
	}
	decision, noVerdict := p.Decide(req, now)
	result := evalResult{verdict: *got(decision, noVerdict), Parts: partsOf(decision)}
	err = c.print(result, result.text)
	if err == nil && noVerdict != nil {
		err = ErrTold
	}
	return err
}

func (r *evalResult) text(w io.Writer) {
	switch {
	case r.Error != "":
		fmt.Fprintf(w, "No verdict: %s\n", oneLine(r.Error))
	case r.Reason != "":
		fmt.Fprintf(w, "%s: %s\n", r.Decision, r.Reason)
	default:
		fmt.Fprintln(w, r.Decision)
	}
	if r.Until != nil {
		fmt.Fprintf(w, "  until %s\n", r.Until.Format(time.RFC3339))
	}
	if r.Changes != nil {
		if out, err := encode(formatYAML, r.Changes); err == nil && strings.TrimSpace(string(out)) != "{}" {
			fmt.Fprint(w, indent("  ", string(out)))
		}
	}
	fmt.Fprintln(w)
	table(w, partRows(r.Parts))
}
