package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

func up(ctx context.Context, r request) error {
	unlock, err := cluster.LockDir(ctx, r.dir, r.stderr)
	if err != nil {
		return err
	}
	defer unlock()
	if running, err := alreadyUp(r); running || err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Config{
		Dir: r.dir, Programs: r.programs, Node: r.node, Progress: r.stderr, Detached: true,
	})
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("interrupted; %q is not running", r.name)
	}
	if err != nil {
		return fmt.Errorf("%q did not start: %w", r.name, err)
	}
	s, err := cluster.ReadState(c.Dir())
	if err != nil {
		return err
	}
	announce(r, s)
	return nil
}

// alreadyUp reports whether the cluster runs, and says so. What is left of a
// start that failed is removed; a cluster that lost a component is an error.
func alreadyUp(r request) (bool, error) {
	s, err := cluster.ReadState(r.dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, os.RemoveAll(r.dir) // nothing was started in it
	}
	if err != nil {
		return false, err
	}
	dead := s.Dead()
	switch {
	case len(dead) == len(s.Components):
		fmt.Fprintf(r.stderr, "cluster %q has ended; starting it afresh\n", r.name)
		return false, cluster.StopDir(r.dir) // containers of a node may be left
	case len(dead) > 0:
		return false, fmt.Errorf("%q is broken: %s does not run; see status, then run down", r.name, dead[0].Name)
	case r.node && s.Node == "":
		return false, fmt.Errorf("%q runs without a node; run down first, or up -node under another -name", r.name)
	case !s.Ready:
		return false, fmt.Errorf("%q did not start completely; run down", r.name)
	case len(r.programs) > 0 && !maps.Equal(r.programs, s.Programs):
		return false, fmt.Errorf("%q is running without these programs; run down first", r.name)
	}
	fmt.Fprintf(r.stderr, "cluster %q is already running\n", r.name)
	announce(r, s)
	return true, nil
}

// announce prints the line to copy, and what to do next.
func announce(r request, s *cluster.State) {
	fmt.Fprintf(r.stdout, "export KUBECONFIG=%s\n", s.Kubeconfig)
	fmt.Fprintf(r.stderr, "next: %s get nodes; then apply docs/examples/gated-queue.yaml. End it with: make cluster-down, or down%s\n",
		filepath.Join(s.Bin, "kubectl"), nameFlag(r))
}

func nameFlag(r request) string {
	if r.name == "default" {
		return ""
	}
	return " -name " + r.name
}

func down(ctx context.Context, r request) error {
	if _, err := os.Stat(r.dir); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(r.stderr, "no cluster %q is running\n", r.name)
		return nil
	}
	unlock, err := cluster.LockDir(ctx, r.dir, r.stderr)
	if err != nil {
		return err
	}
	defer unlock()
	err = cluster.StopDir(r.dir)
	if errors.Is(err, os.ErrNotExist) { // nothing was started in it
		err = os.RemoveAll(r.dir)
	}
	if err == nil {
		fmt.Fprintf(r.stderr, "cluster %q has ended\n", r.name)
	}
	return err
}

// require reads the state of a cluster that must be there.
func require(r request) (*cluster.State, error) {
	s, err := cluster.ReadState(r.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no cluster %q is running; start it with: up%s", r.name, nameFlag(r))
	}
	return s, err
}

func env(_ context.Context, r request) error {
	s, err := require(r)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.stdout, "export KUBECONFIG=%s\nexport PATH=%s:$PATH\n", s.Kubeconfig, s.Bin)
	return nil
}

func status(_ context.Context, r request) error {
	s, err := require(r)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(r.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tPID\tMEMORY\tSTATE")
	var sum int64
	for _, comp := range s.Components {
		memory, state := comp.Identity.Memory()>>20, "running"
		if !comp.Identity.Alive() {
			state = "dead"
		}
		sum += memory
		fmt.Fprintf(w, "%s\t%d\t%d MiB\t%s\n", comp.Name, comp.Identity.PID, memory, state)
	}
	fmt.Fprintf(w, "all\t\t%d MiB\t\n", sum)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(r.stdout, "logs: %s\n", filepath.Join(s.Dir, "logs"))
	return reportDead(r.stdout, r, s)
}

// reportDead shows the end of the log of each component that does not run.
func reportDead(w io.Writer, r request, s *cluster.State) error {
	dead := s.Dead()
	for _, comp := range dead {
		fmt.Fprintf(w, "\n%s is dead; the end of its log:\n%s\n", comp.Name, s.Tail(comp.Name))
	}
	if len(dead) > 0 {
		return fmt.Errorf("%d of %d components are dead; run: down%s", len(dead), len(s.Components), nameFlag(r))
	}
	return nil
}
