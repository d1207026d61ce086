package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"time"
)

const (
	buildTick   = 5 * time.Second
	errorLines  = 30
	lineMaximum = 1 << 20
)

// buildSize says how much there is to build at most.
type buildSize struct{ packages, programs int }

// goBuild runs go build for all programs, into bin, and tells every few seconds
// how many packages it has compiled and how many programs it has linked.
func goBuild(ctx context.Context, dir, bin string, args []string, total buildSize, progress io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, goEnvironment()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var compiled atomic.Int64
	stop := tellEvery(buildTick, progress, func(elapsed time.Duration) string {
		linked, _ := os.ReadDir(bin) // it only informs
		return fmt.Sprintf("%7s  %d packages compiled, of up to %d; %d of %d programs linked",
			elapsed, compiled.Load(), total.packages, len(linked), total.programs)
	})
	complaints := readBuild(stderr, &compiled)
	err = cmd.Wait()
	stop()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return errors.Join(err, errors.New(strings.Join(complaints, "\n")))
	}
	return nil
}

// tellEvery writes a line to w every tick until stop is called.
func tellEvery(tick time.Duration, w io.Writer, line func(elapsed time.Duration) string) (stop func()) {
	start, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				fmt.Fprintln(w, line(time.Since(start).Round(time.Second)))
			}
		}
	}()
	return func() { close(done); <-ended }
}

var packageLine = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.~/+-]*$`)

// readBuild counts the packages that go build -v names, and returns the last
// lines that are no package names, which are its complaints.
func readBuild(r io.Reader, compiled *atomic.Int64) []string {
	var complaints []string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, lineMaximum)
	for lines.Scan() {
		if packageLine.MatchString(lines.Text()) {
			compiled.Add(1)
			continue
		}
		complaints = append(complaints, lines.Text())
		if len(complaints) > errorLines {
			complaints = complaints[1:]
		}
	}
	_, _ = io.Copy(io.Discard, r) // after an overlong line: let go build finish
	return complaints
}
