// Package command is the command line of control: it reads the flags, connects the packages and
// runs them.
//
// lifecycle runs a control, alone or in a cluster. place decides where models are loaded and calls
// engines. placementserver serves extprocs, and modelmesh serves clients of ModelMesh. attach
// configures the Envoys of Gateways, in every control.
package command

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/attach/bootstrap"
	"github.com/headgate/headgate/control/importer"
	"github.com/headgate/headgate/control/lifecycle"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// commands are the subcommands, with output and errors; without one, control serves.
var commands = map[string]func(ctx context.Context, args []string, out, faults io.Writer) error{
	"bootstrap": func(ctx context.Context, args []string, out, _ io.Writer) error {
		return bootstrap.Command(ctx, args, out)
	},
	"import": importer.Command,
}

// Run runs a command line until it is done or ctx ends. It writes output and help to out, and the
// log to logs. It returns pflag.ErrHelp after it printed help.
func Run(ctx context.Context, args []string, out, logs io.Writer) error {
	if len(args) > 0 && commands[args[0]] != nil {
		return commands[args[0]](ctx, args[1:], out, logs)
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
	m := metrics.New()
	loaded := make(chan struct{})
	ready := sync.OnceFunc(func() { close(loaded) })
	from := c.source()
	var deployment lifecycle.Deployment = lifecycle.Alone{StateFile: c.stateFile, Log: log}
	if c.kube.On {
		kube.UseLog(log) // before anything begins to watch objects or the Lease
		cluster, err := lifecycle.NewCluster(lifecycle.ClusterConfig{
			Kubeconfig: c.kube.Config, ObjectsNamespace: c.kube.Namespace, Pod: objectName(c.pod), PodIP: c.podIP,
			CredentialsDir: c.credentials,
			Listen:         c.listen, XDSAddress: c.xdsAddress, EnvoyImage: c.envoyImage, ExtprocImage: c.extprocImage, Meter: m, Log: log,
		})
		if err != nil {
			return err
		}
		deployment, from.ByName = cluster, cluster.SetNamed
	}
	r := lifecycle.New(lifecycle.Config{
		Serve:   serve.Config{Listen: c.listen, CertPath: c.certPath, Placement: c.placement, Mesh: c.mesh},
		Prestop: c.prestopAddress, XDSAddress: c.xdsAddress, Meter: m, Log: log, Ready: ready,
		Place: place.Config{
			Access: access, RegisteredPool: c.pool(), DrainLimit: c.drainTimeout, ScrapeInterval: c.scrapeInterval,
			TickInterval: c.rebalanceInterval,
		},
	}, deployment)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return from.Follow(ctx, log, access.Tokens, m, func(w *objects.World) {
			r.Worlds.Set(w)
			if c.kube.On {
				ready() // a control that waits to lead is ready too
			}
		})
	})
	if c.metricsPort >= 0 {
		group.Go(func() error { return m.Serve(ctx, c.metricsHost, c.metricsPort, loaded, log) })
	}
	group.Go(func() error { return r.Run(ctx) })
	return group.Wait()
}
