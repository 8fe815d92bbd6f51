// Extproc is the program that Envoy asks, for every request, which endpoint is to answer it. It reads the model that the
// request names, looks at what it knows of the endpoints, and names one.
//
// This package is wiring. A request passes through stream, openai, route, fleet and pick, in that order; beside its path
// scrape and outcome keep the fleet true, and meter tells how it goes.
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
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/meter"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "extproc:", err)
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

	f := fleet.New(time.Now)
	m := meter.New(f)
	scraper := scrape.New(scrape.Config{
		Fleet: f, Interval: c.scrapeInterval, ModelsInterval: c.modelsInterval, Log: log, Looked: m.Looked,
	})
	observe := func(o outcome.Outcome) {
		m.Observe(o)
		if o.Turned() {
			f.Refused(o.Endpoint)
		}
		for _, endpoint := range o.Unreached {
			f.Refused(endpoint)
		}
		for _, endpoint := range o.Stopping {
			f.Stopping(endpoint, o.Began)
		}
	}
	var endpoints *eds.File
	if c.edsFile != "" {
		if endpoints, err = eds.Open(c.edsFile); err != nil {
			return fmt.Errorf("--eds-file %s: %w", c.edsFile, err)
		}
	}
	loaded := make(chan struct{})
	publish := func(w *objects.World) {
		if endpoints != nil { // first, for Envoy must know an endpoint before it is picked
			if err := endpoints.Set(w.Addresses()); err != nil {
				log.Error("the endpoints cannot be written: Envoy does not know of new ones", "err", err)
			}
		}
		f.SetWorld(w)
		scraper.SetTargets(w.Addresses())
		m.SetWorld(w)
		select {
		case <-loaded:
		default:
			close(loaded) // the first: publish is called from one goroutine
		}
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return dir.New(c.objects, log, m.Refused).Run(ctx, publish) })
	group.Go(func() error { return f.Run(ctx) })
	if endpoints != nil {
		group.Go(func() error { return endpoints.Run(ctx, log) })
	}
	group.Go(func() error { return scraper.Run(ctx) })
	group.Go(func() error {
		select { // without objects every model would be unknown
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		return serve(ctx, c, stream.New(f, c.policy, c.picks, m, log), outcome.NewServer(observe), log)
	})
	if c.metricsPort >= 0 {
		group.Go(func() error { return serveMetrics(ctx, c, m.Handler(), log) })
	}
	return group.Wait()
}
