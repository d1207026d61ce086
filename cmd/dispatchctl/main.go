// Command dispatchctl is for the people who run dispatch-admission: it checks and
// tries policies, wires queues, and says why a job waits. See dispatchctl --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/dispatch-admission/dispatch-admission/pkg/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := app.Ctl(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
