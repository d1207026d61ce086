package app

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/dispatch-admission/dispatch-admission/pkg/internal/ctl"
)

// Ctl runs dispatchctl with the given command line, without the program's name.
// It returns the exit code: 0 when what was asked for is done and right, 2 for a
// wrong command line, 1 for everything else. Each error is one line on stderr;
// what a command found out goes to stdout.
func Ctl(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// What a command has to say it says itself.
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	b := version()
	err := ctl.Run(ctx, args, ctl.Streams{In: stdin, Out: stdout, Err: stderr}, ctl.Build{Version: b.Version, Commit: b.Commit, Go: b.Go})
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, ctl.ErrTold):
		return exitFault
	}
	fmt.Fprintf(stderr, "%s: %v\n", ctl.Name, err)
	if errors.Is(err, ctl.ErrUsage) {
		return exitUsage
	}
	return exitFault
}
