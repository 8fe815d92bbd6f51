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
	"sync"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/meter"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
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
func run(ctx context.Context, args []string, out, logs io.Writer) error {
	c, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: c.logLevel}))
	access, err := c.engines.Access(log)
	if err != nil {
		return err
	}
	m := meter.New()
	worlds := newLatest()
	loaded := make(chan struct{})
	ready := sync.OnceFunc(func() { close(loaded) })
	office := office{config: c, access: access, worlds: worlds, meter: m, log: log, began: ready, open: func(context.Context, func() bool) (memory, error) {
		file, err := store.Open(c.state, log)
		if err != nil {
			return nil, fmt.Errorf("--state: %w", err)
		}
		return file, nil
	}}
	decide := func(ctx context.Context) error { return office.term(ctx, nil) }
	if c.kube.On {
		kube.UseLog(log) // for what follows the objects, and for what asks who decides
		decide = func(ctx context.Context) error {
			if err := office.join(ctx); ctx.Err() != nil {
				return nil
			} else if err != nil {
				return err
			}
			return office.cluster.election().run(ctx, office.term)
		}
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return c.source().Follow(ctx, log, m, func(w *objects.World) {
			worlds.set(w)
			if c.kube.On {
				ready() // one that waits for its turn is ready too
			}
		})
	})
	group.Go(func() error { return decide(ctx) })
	if c.metricsPort >= 0 {
		group.Go(func() error { return m.Serve(ctx, c.metricsHost, c.metricsPort, loaded, log) })
	}
	return group.Wait()
}
