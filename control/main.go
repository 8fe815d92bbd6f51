// Control is the companion of extproc: it puts models and LoRA adapters onto engines before and when requests need them.
//
// This package is wiring. place decides and drives engines; place/board tells extprocs where copies are and hears what
// they need; place/mesh serves ModelMesh's API to its clients; lead says whether this control does all that, or another.
// attach drives the Envoys of Gateways, in every control.
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

	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/control/attach/show"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/prestop"
	"github.com/headgate/headgate/control/profile"
	"github.com/headgate/headgate/control/provision/plan"
	"github.com/headgate/headgate/control/status"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// commands are what control does beside serving, for people.
var commands = map[string]func(ctx context.Context, args []string, out io.Writer) error{
	"plan":      plan.Command,
	"routes":    show.Routes,
	"explain":   show.Explain,
	"bootstrap": show.Bootstrap,
	"profile":   profile.Command,
	"status":    status.Command,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, plan.ErrNoPlan) {
		os.Exit(3)
	}
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "control:", err)
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
	if c.explain.On {
		return c.explain.Print(ctx, out, c.source(), nil)
	}
	log := slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: c.logLevel}))
	access, err := c.engines.Access(log)
	if err != nil {
		return err
	}
	if c.kube.On {
		kube.UseLog(log) // before anything that follows objects, or the Lease, begins
	}
	m := metrics.New()
	loaded := make(chan struct{})
	o := &office{
		config: c, access: access, worlds: broadcast.New[objects.World](), gateways: broadcast.New[conditions.Input](), meter: m, log: log,
		ready: sync.OnceFunc(func() { close(loaded) }), byName: make(chan kube.Named, 1), prestop: prestop.New(log),
	}
	from := c.source()
	from.ByName = func(n kube.Named) { o.byName <- n }
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return from.Follow(ctx, log, access.Tokens, m, func(w *objects.World) {
			o.worlds.Set(w)
			if c.kube.On {
				o.ready() // one that waits to lead is ready too
			}
		})
	})
	if c.envoys != "" {
		group.Go(func() error { return o.serveEnvoys(ctx) })
	}
	if c.metricsPort >= 0 {
		group.Go(func() error { return m.Serve(ctx, c.metricsHost, c.metricsPort, loaded, log) })
	}
	group.Go(func() error {
		if c.kube.On {
			return o.inCluster(ctx)
		}
		return o.alone(ctx)
	})
	return group.Wait()
}
