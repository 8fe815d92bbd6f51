// Package command runs extproc: it builds the packages that serve a request from the command line
// and connects them.
//
// A request passes through stream, openai, route, fleet and pick, in that order. It waits in flow
// while its model is loaded. Packages scrape, outcome and placementclient keep the fleet current,
// and metrics counts what happens.
package command

import (
	"context"
	"io"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/decisions"
	"github.com/headgate/headgate/extproc/drain"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/extproc/install"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/options"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/relay"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/query"
)

// commands are extproc's subcommands, which run in the pod of an Envoy that has extproc as a
// sidecar.
var commands = map[string]func(ctx context.Context, args []string, out io.Writer) error{
	"drain":   drain.Run,
	"install": install.Run,
}

// Run serves until ctx ends. It writes help to out and the log to logs.
func Run(ctx context.Context, args []string, out, logs io.Writer) error {
	if len(args) > 0 && commands[args[0]] != nil {
		return commands[args[0]](ctx, args[1:], out)
	}
	c, err := options.Parse(args, out)
	if err != nil {
		return err
	}
	if c.Processors > 0 {
		runtime.GOMAXPROCS(c.Processors)
	}
	log := c.Log(logs)
	if c.Explain.On {
		return c.Explain.Print(ctx, out, c.Source(), c.ExplainPool)
	}
	engines, err := c.Engines.Access(log)
	if err != nil {
		return err
	}

	f, held, placement, err := newFleet(c, log)
	if err != nil {
		return err
	}
	m := metrics.New(f)
	scraper := scrape.New(scrape.Config{
		Fleet: f, Interval: c.ScrapeInterval, ModelsInterval: c.ModelsInterval, Log: log, Scraped: m.Scraped,
		Access: engines,
	})
	record := decisions.New()
	book := limits.New()
	observe := func(o outcome.Outcome) {
		o = f.Attribute(o)
		f.Observe(o)
		record.Observe(&o)
		if o.ID != "" {
			held.Answered(record.Number(o.ID), stream.LengthOf(&o))
		}
		book.Observe(o)
		m.Observe(o) // last, so that the fleet already has every outcome that metrics show
		for _, endpoint := range o.Suspicious() {
			scraper.Due(endpoint)
		}
	}
	c.Serve.Endpoints, c.Serve.Opened = eds.New(log), m.Serves
	c.Serve.Log = log
	tokens, clients, err := within(c, log)
	if err != nil {
		return err
	}
	if c.Serve.Payloads, err = c.Payloads.Open(m, log); err != nil {
		return err
	}
	m.ReportHeld(stream.HeldIn(held))
	socket := serve.RelaySocket(c.Serve.Own)
	c.Serve.Relay = relay.New(relay.Config{
		Folder: filepath.Dir(socket), Tokens: tokens, Fleet: f, Hold: book.Hold, Mesh: clients, Replied: m.Replied, Log: log,
	})
	c.Serve.Exchanges = stream.New(stream.Config{
		Relay: socket, RelayTokens: tokens, Manages: clients != nil, Fleet: f, Flow: held, Meter: m, Log: log, Settings: c.Settings,
		Default: c.Pool, Observe: observe, Tokens: engines.Tokens,
		ModeOverride: c.ModeOverride, Conformance: c.Conformance,
		ExplainPicks: c.ExplainPicks, EmitScores: c.EmitScores, Random: c.Random(),
		Decisions: record, Limits: book,
	})
	c.Serve.Outcomes = accesslog.NewServer(observe, c.Serve.Exchanges.Progressed)
	about := newAbout(c)
	if c.Control.Address != "" {
		book.Shared()
		about.limits = book
	}
	rejected, source := new(rejections), c.Source()
	source.Rejected = rejected.set
	about.queries[admin.Endpoints] = func(context.Context, []byte) (any, error) { return endpointsOf(f, held, rejected), nil }
	about.queries[admin.Decisions] = record.Query
	about.queries[admin.Explain] = c.Serve.Exchanges.Query
	// After ctx has ended, the fleet is still kept current until the last request has its answer.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, work := errgroup.WithContext(work)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(work, cancel)
	loaded := make(chan struct{})
	publish := func(w *objects.World) {
		if len(c.Serve.Own) > 0 { // before the fleet: Envoy must know an endpoint before extproc picks it
			c.Serve.Endpoints.Set(work, eds.Endpoints(w, socket))
			c.Serve.Endpoints.Await(work, eds.Needed(w))
		}
		f.SetWorld(w)
		scraper.SetTargets(scrape.Targets(w))
		m.SetWorld(w)
		book.SetWorld(w)
		select {
		case <-loaded:
		default:
			close(loaded) // closed once, at the first call; publish is called from one goroutine
		}
	}

	group.Go(func() error { return source.Follow(work, log, engines.Tokens, m, publish) })
	group.Go(func() error { return f.Run(work) })
	if placement != nil {
		group.Go(func() error { return placement(work, m, about) })
	}
	group.Go(func() error { return c.Serve.Endpoints.Run(work) })
	group.Go(func() error { return c.Serve.Payloads.Run(work) })
	group.Go(func() error { return scraper.Run(work) })
	if c.MetricsPort >= 0 {
		mux := m.Handler()
		query.Mount(mux, "extproc", about.ask)
		group.Go(func() error { return serveMetrics(work, c, mux, log) })
	}
	group.Go(func() error {
		defer stop()
		select { // waits for the first objects: without them every model would be unknown
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		if c.Serve.TakeOver {
			settle(ctx, f, log)
		}
		return c.Serve.Run(ctx)
	})
	return group.Wait()
}
