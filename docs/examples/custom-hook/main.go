// Command custom-hook is dispatch-hook with a hook in Go instead of a policy.
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
	code := app.Hook(ctx, os.Args[1:], budgets{url: os.Getenv("BUDGET_URL")})
	stop()
	os.Exit(code)
}
