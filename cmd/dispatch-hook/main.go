// Command dispatch-hook is the adapter: it decides by the policy of a file, and
// answers the controller and whoever asks before work is created.
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
	code := app.Hook(ctx, os.Args[1:], nil)
	stop()
	os.Exit(code)
}
