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
	"strings"
	"syscall"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

const usage = `usage: cluster COMMAND [-name NAME]
       cluster up [-name NAME] [-programs IMAGE=DIRECTORY]...

  up      start a cluster that goes on running, and say how to reach it;
          with -node on one real node, which takes root (make node-deps)
  down    end it and remove its directory
  status  list its components
  env     print the shell lines that point kubectl at it
  build   build the programs only, which up does by itself;
          with -node those of a node too, if this machine can have one

Several clusters can run under different names; the name is "default" otherwise.

-programs runs the pods of an image instead of simulating them: IMAGE is the last
element of its repository, DIRECTORY has its static binaries.
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
	name     string
	dir      string            // of the cluster
	programs map[string]string // of up
	node     bool              // up or build with a real node
	stdout   io.Writer
	stderr   io.Writer
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
	r, err := parse(args[0], args[1:])
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return err
	}
	r.stdout, r.stderr = stdout, stderr
	return command(ctx, r)
}

// parse reads the flags of a command.
func parse(command string, args []string) (request, error) {
	r := request{programs: map[string]string{}}
	known := "the only flag is -name NAME"
	flags := flag.NewFlagSet("cluster "+command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&r.name, "name", "default", "name of the cluster")
	switch command {
	case "build":
		known = "the flags are -name NAME and -node"
		flags.BoolVar(&r.node, "node", false, "build what a real node runs too")
	case "up":
		known = "the flags are -name NAME, -programs IMAGE=DIRECTORY and -node"
		flags.BoolVar(&r.node, "node", false, "run all pods on a real node")
		flags.Func("programs", "run the pods of an image", func(text string) error {
			image, dir, ok := strings.Cut(text, "=")
			if !ok {
				return errors.New("want IMAGE=DIRECTORY")
			}
			r.programs[image] = dir
			return nil
		})
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return request{}, err
		}
		return request{}, fmt.Errorf("%s: %w; %s", command, err, known)
	}
	if flags.NArg() > 0 {
		return request{}, fmt.Errorf("%s: unexpected argument %q; %s", command, flags.Arg(0), known)
	}
	if !validName.MatchString(r.name) {
		return request{}, fmt.Errorf("%s: name %q: a name is of lower-case letters, digits and dashes", command, r.name)
	}
	cache, err := cluster.CacheDir()
	r.dir = filepath.Join(cache, "state", r.name)
	return r, err
}

func build(ctx context.Context, r request) error {
	if r.node {
		if err := cluster.CheckNode(); err != nil { // before anything takes minutes
			return err
		}
		if _, err := cluster.BuildNode(ctx, r.stderr); err != nil {
			return err
		}
	}
	tools, err := cluster.Build(ctx, r.stderr)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.stdout, tools.Bin(""))
	return nil
}
