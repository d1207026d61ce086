// Command dispatch-admission is the readmission gate: a controller of Kueue
// AdmissionChecks that raises the admission count of a TrainJob before every
// start.
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
	code := app.Controller(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
