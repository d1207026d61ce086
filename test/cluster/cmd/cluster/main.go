// Command cluster starts and stops a local control plane with Kueue, JobSet and
// Trainer for trying things out by hand. See the README of test/cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

const usage = `usage: cluster COMMAND [-name NAME]

  up      start a cluster that goes on running, and say how to reach it
  down    end it and remove its directory
  status  list its components
  env     print the shell lines that point kubectl at it
  build   build the programs only, which up does by itself

Several clusters can run under different names; the name is "default" otherwise.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// request is one call of the command.
type request struct {
	name   string
	dir    string // of the cluster
	stdout io.Writer
	stderr io.Writer
}

var commands = map[string]func(context.Context, request) error{
	"up":     up,
	"down":   down,
	"status": status,
	"env":    env,
	"build":  build,
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	command, ok := commands[args[0]]
	if !ok {
		return fmt.Errorf("unknown command %q: it is one of up, down, status, env, build", args[0])
	}
	flags := flag.NewFlagSet("cluster "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	name := flags.String("name", "default", "name of the cluster")
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, err := io.WriteString(stdout, usage)
			return err
		}
		return fmt.Errorf("%s: %w; the only flag is -name NAME", args[0], err)
	}
	if flags.NArg() > 0 || !validName.MatchString(*name) {
		return fmt.Errorf("%s takes -name NAME only; a name is of lower-case letters, digits and dashes", args[0])
	}
	cache, err := cluster.CacheDir()
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, "state", *name)
	return command(ctx, request{name: *name, dir: dir, stdout: stdout, stderr: stderr})
}

func build(ctx context.Context, r request) error {
	tools, err := cluster.Build(ctx, r.stderr)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.stdout, tools.Bin(""))
	return nil
}
