// Agent runs beside one engine. It fetches models from storage, loads them onto the engine for
// control, and relays requests to an engine that listens on a socket or on localhost.
//
//	agent --help    explains it, with examples
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // certificate authorities, for the image, which has no files of its own

	"github.com/headgate/headgate/control/agent/command"
	"github.com/headgate/headgate/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command.Run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr) //nolint:forbidigo // main
	stop()
	os.Exit(cli.Exit("agent", err, os.Stderr))
}
