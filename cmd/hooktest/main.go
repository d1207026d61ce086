// Command hooktest checks whether a hook server, in any language, keeps the
// contract. See hooktest -help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := hooktest.Main(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}
