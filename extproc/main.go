// Extproc is the program that Envoy asks, for every request, which endpoint is to answer it. It reads the model that the
// request names, looks at what it knows of the endpoints, and names one.
//
// This package is wiring. A request passes through stream, openai, route, fleet and pick, in that order, and waits in flow
// where its model must be loaded first; beside its path scrape, outcome and placement keep the fleet true, and meter tells
// how it goes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/relay"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/extproc/sidecar"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// commands are what extproc does beside serving, for the pod of an Envoy with extproc beside it.
var commands = map[string]func(ctx context.Context, args []string, out io.Writer) error{
	"drain":   sidecar.Drain,
	"install": sidecar.Install,
}

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
	if len(args) > 0 && commands[args[0]] != nil {
		return commands[args[0]](ctx, args[1:], out)
	}
	c, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	log := c.log(logs)
	if c.explain.On {
		return c.explain.Print(ctx, out, c.source(), c.explainPool)
	}
	engines, err := c.engines.Access(log)
	if err != nil {
		return err
	}

	f, held, talk, err := believe(c, log)
	if err != nil {
		return err
	}
	m := metrics.New(f)
	scraper := scrape.New(scrape.Config{
		Fleet: f, Interval: c.scrapeInterval, ModelsInterval: c.modelsInterval, Log: log, Looked: m.Looked,
		Access: engines,
	})
	observe := func(o outcome.Outcome) {
		o = f.Attribute(o)
		f.Observe(o)
		m.Observe(o) // last: what metrics show is in force
		for _, endpoint := range o.Suspicious() {
			scraper.Due(endpoint)
		}
	}
	c.serve.Endpoints, c.serve.Opened = eds.New(log), m.Serves
	c.serve.Log = log
	errands, clients, err := within(c, log)
	if err != nil {
		return err
	}
	if c.serve.Payloads, err = c.payloads.Open(m, log); err != nil {
		return err
	}
	socket := serve.InnerSocket(c.serve.Own)
	c.serve.Inner = relay.New(relay.Config{Folder: filepath.Dir(socket), Errands: errands, Fleet: f, Mesh: clients, Replied: m.Replied, Log: log})
	c.serve.Exchanges = stream.New(stream.Config{
		Inner: socket, Errands: errands, Manages: clients != nil, Fleet: f, Flow: held, Meter: m, Log: log, Settings: c.settings, Default: c.pool, Observe: observe, Tokens: engines.Tokens,
		ModeOverride: c.modeOverride, Conformance: c.conformance, ExplainPicks: c.explainPicks, Random: c.random(),
	})
	c.serve.Outcomes = accesslog.NewServer(observe, c.serve.Exchanges.Progressed)
	// What keeps the fleet true goes on until the last request is answered, after ctx has ended.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, work := errgroup.WithContext(work)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(work, cancel)
	loaded := make(chan struct{})
	publish := func(w *objects.World) {
		if len(c.serve.Own) > 0 { // first, for Envoy must know an endpoint before it is picked
			c.serve.Endpoints.Set(work, eds.Endpoints(w, socket))
			c.serve.Endpoints.Await(work, eds.Needed(w))
		}
		f.SetWorld(w)
		scraper.SetTargets(scrape.Targets(w))
		m.SetWorld(w)
		select {
		case <-loaded:
		default:
			close(loaded) // the first: publish is called from one goroutine
		}
	}

	group.Go(func() error { return c.source().Follow(work, log, engines.Tokens, m, publish) })
	group.Go(func() error { return f.Run(work) })
	if talk != nil {
		group.Go(func() error { return talk(work, m) })
	}
	group.Go(func() error { return c.serve.Endpoints.Run(work) })
	group.Go(func() error { return c.serve.Payloads.Run(work) })
	group.Go(func() error { return scraper.Run(work) })
	if c.metricsPort >= 0 {
		group.Go(func() error { return serveMetrics(work, c, m.Handler(), log) })
	}
	group.Go(func() error {
		defer stop()
		select { // without objects every model would be unknown
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		if c.serve.TakeOver {
			settle(ctx, f, log)
		}
		return c.serve.Run(ctx)
	})
	return group.Wait()
}
