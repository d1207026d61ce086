package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// say announces a step.
func (d *demo) say(title string, text ...string) {
	d.step++
	fmt.Printf("\n== %d. %s\n", d.step, title)
	for _, line := range text {
		fmt.Println("  ", line)
	}
	fmt.Println()
}

// kubectl shows a command and what it prints.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	return d.shell(ctx, "kubectl", args...)
}

func (d *demo) shell(ctx context.Context, name string, args ...string) error {
	fmt.Println("  $", name, shown(args))
	out, err := d.output(ctx, name, args...)
	for line := range strings.Lines(out) {
		fmt.Print("    ", line)
	}
	return err
}

// shown leaves out what would hide the point of a command.
func shown(args []string) string {
	var words []string
	for i, a := range args {
		if a == "-o" || i > 0 && args[i-1] == "-o" {
			continue
		}
		if strings.HasPrefix(a, root()) {
			a = strings.TrimPrefix(a, root()+"/")
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

func (d *demo) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.c.Bin(name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.c.Kubeconfig())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, shown(args), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}

// await waits until a kubectl command prints the wanted words.
func (d *demo) await(ctx context.Context, want string, args ...string) error {
	deadline := time.Now().Add(patience)
	for {
		out, err := d.output(ctx, "kubectl", args...)
		got := strings.Join(strings.Fields(out), " ")
		if err == nil && got == want {
			return nil
		}
		if time.Now().After(deadline) {
			if err == nil {
				err = fmt.Errorf("kubectl %s still prints %q instead of %q", shown(args), got, want)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// awaitPods waits until the pods of a TrainJob carry the given counts, one word a
// pod.
func (d *demo) awaitPods(ctx context.Context, job, counts string) error {
	return d.await(ctx, counts, "-n", "research", "get", "pods", "-l", "jobset.sigs.k8s.io/jobset-name="+job,
		"--no-headers", "-o", "custom-columns=A:"+countPath)
}
