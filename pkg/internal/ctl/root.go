// Package ctl is dispatchctl: the commands by which people check policies, look
// at what the gate does with a job, and wire queues.
//
// Commands read the cluster anew each time and keep nothing. What the gate would
// do is asked of the gate's own code, never worked out a second time.
package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Name is the program's.
const Name = "dispatchctl"

// ErrUsage marks a wrong command line.
var ErrUsage = errors.New("wrong command line")

// ErrTold is the end of a command that has already said what is wrong.
var ErrTold = errors.New("told already")

// Streams are where a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Build says what program this is.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// Run runs one command. Its error is one line and wraps ErrUsage for a wrong
// command line; after ErrTold there is nothing left to say.
func Run(ctx context.Context, args []string, std Streams, build Build) error {
	c := &cli{Streams: std, build: build}
	root := c.root()                          //nolint:contextcheck // cobra hands the context to the command
	root.SetArgs(append([]string{}, args...)) // nil would mean those of the process
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil || errors.Is(err, ErrTold):
		return err
	case !c.began && !errors.Is(err, ErrUsage):
		// What cobra finds wrong before the command begins is the command line.
		err = usagef("%s", oneLine(err.Error()))
	}
	if errors.Is(err, ErrUsage) {
		return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
	}
	return oneLineError{err}
}

// cli is one run of the program.
type cli struct {
	Streams

	build Build
	// began tells that the command line is in order, as far as cobra can see.
	began bool
	// access and output are filled by flags.
	access access
	output format
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   Name,
		Short: "Check policies, wire queues, and see why a job waits",
		Long: Name + ` is for the people who run dispatch-admission. It checks and tries
admission policies, shows what a hook is told about a job, wires ClusterQueues,
and says why a job waits. Exit codes: 0 all is as it should be, 1 it is not or
could not be found out, 2 the command line is wrong.`,
		Version:       c.build.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate(Name + " " + c.build.String() + "\n")
	c.group(root, c.explainCommand(), c.preflightCommand(), c.verifyCommand(), c.queuesCommand(), c.prepareUninstallCommand(), c.policyCommand(), c.requestCommand(), c.versionCommand())
	return root
}

// group makes parent a command that does nothing without one of its own.
func (c *cli) group(parent *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	names := make([]string, len(commands))
	for i, cmd := range commands {
		names[i] = cmd.Name()
	}
	parent.AddCommand(commands...)
	parent.Args = cobra.ArbitraryArgs
	parent.RunE = c.action(func(_ context.Context, args []string) error {
		if len(args) > 0 {
			return usagef("unknown command %q: want %s", args[0], orList(names))
		}
		return usagef("a command is missing: want %s", orList(names))
	})
	return parent
}

// action is the body of a command.
func (c *cli) action(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c.began = true
		return run(cmd.Context(), args)
	}
}

func (c *cli) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  noArgs,
		RunE: c.action(func(context.Context, []string) error {
			return c.print(c.build, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", Name, c.build) })
		}),
	}
	c.addOutput(cmd, formatText)
	return cmd
}

// String is the line of version.
func (b Build) String() string { return fmt.Sprintf("%s commit %s %s", b.Version, b.Commit, b.Go) }

// usagef is an error of the command line.
func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// usageError does not repeat the words of ErrUsage.
type usageError string

func (e usageError) Error() string { return string(e) }

func (usageError) Is(target error) bool { return target == ErrUsage }

// oneLineError keeps an error of other hands, such as an API server's, to a line.
type oneLineError struct{ error }

func (e oneLineError) Error() string { return oneLine(e.error.Error()) }

func (e oneLineError) Unwrap() error { return e.error }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// orList is "a, b or c".
func orList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
