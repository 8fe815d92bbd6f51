// Control is the companion of extproc. It loads models and LoRA adapters onto engines, and
// configures the Envoys of Gateways. Package command does the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/command"
	"github.com/headgate/headgate/control/provision/plan"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, plan.ErrNoPlan) {
		os.Exit(3)
	}
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "control:", err)
		os.Exit(1)
	}
}
