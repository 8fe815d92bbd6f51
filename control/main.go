// Control is the companion of extproc: it puts models and LoRA adapters onto engines before and when requests need them.
//
// This package is wiring. place decides and drives engines; place/stream tells extprocs where copies are and hears what
// they need; place/mesh serves ModelMesh's API to its clients.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/stream"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "control:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. Help goes to out, the log to logs.
func run(ctx context.Context, args []string, out, logs io.Writer) (err error) {
	c, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: c.logLevel}))
	access, err := c.engines.Access(log)
	if err != nil {
		return err
	}
	memory, err := store.Open(c.state, log)
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	defer func() { err = errors.Join(err, memory.Close()) }()

	board := stream.New(log)
	m := newMeter(board)
	placer, err := place.New(place.Config{
		Store: memory, Log: log, Access: access, Board: board, Meter: m, DrainLimit: c.drainLimit, LookInterval: c.lookInterval,
		RegisteredPool: c.pool(),
	})
	if err != nil {
		return fmt.Errorf("--state %s: %w", c.state, err)
	}
	board.SetPlacer(placer)
	m.follow(placer)

	group, ctx := errgroup.WithContext(ctx)
	loaded := make(chan struct{})
	running := make(chan struct{})
	group.Go(func() error { return placer.Run(ctx, func() { close(running) }) })
	group.Go(func() error {
		<-running
		first := true
		return c.source().Follow(ctx, log, m, func(w *objects.World) {
			placer.SetWorld(w)
			if first {
				close(loaded)
				first = false
			}
		})
	})
	group.Go(func() error {
		select { // without objects every model would be unknown
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		return serve(ctx, c, services{board: board, placer: placer, log: log})
	})
	if c.metricsPort >= 0 {
		group.Go(func() error { return serveMetrics(ctx, c, m.handler(placer, loaded), log) })
	}
	return group.Wait()
}
