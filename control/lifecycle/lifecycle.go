// Package lifecycle runs a control: it serves all the time, and makes decisions during its
// leadership terms. With a folder of objects there is one control, which always leads. In a
// cluster, the control that holds a Lease leads. A [Deployment] is one of these two.
package lifecycle

import (
	"context"
	"log/slog"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/attach/controller"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/election"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/prestop"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/internal/objects"
)

// Config configures a Runtime.
type Config struct {
	Serve serve.Config
	// Prestop is where control answers preStop hooks, HOST:PORT; empty: nowhere.
	Prestop string
	// XDSAddress is where control serves the Envoys of Gateways; empty: nowhere.
	XDSAddress string
	// Place configures the placer of a term. The Runtime sets its fields Memory, Board, Meter and
	// Log.
	Place place.Config
	Meter *metrics.Meter
	Log   *slog.Logger
	// Ready is called when a term has read the objects, possibly several times.
	Ready func()
}

// Deployment is how a control is deployed: [Alone] or in a [Cluster]. The functions leads report
// whether this control leads and its term is not paused. While they return false, the Deployment
// writes nothing.
type Deployment interface {
	// Credentials adds credentials to the configuration of the gRPC server. It may wait for the API
	// server until ctx ends.
	Credentials(ctx context.Context, c *serve.Config) error
	// Lead calls term for each leadership term of this control, until ctx ends.
	Lead(ctx context.Context, term election.Term) error
	// Leader returns a function that returns the leader's address; nil if there is no other
	// control.
	Leader() func(ctx context.Context) (netip.Addr, error)
	// Open opens the store with the state of earlier leaders, and returns the writer of objects'
	// status.
	Open(ctx context.Context, leads func() bool) (store.Memory, StatusWriter, error)
	// KeepGateways reports the state of Gateways until ctx ends. It also makes their pods if this
	// is configured.
	KeepGateways(ctx context.Context, leads func() bool, gateways *broadcast.Value[conditions.Input], report func(conditions.Input)) error
	// Announce directs extprocs to this control until ctx ends.
	Announce(ctx context.Context, leads func() bool)
	// ServeEnvoys serves Envoys until ctx ends, whether this control leads or not.
	ServeEnvoys(ctx context.Context, s controller.Service) error
}

// StatusWriter writes the state of objects into their status.
type StatusWriter interface {
	SetWorld(w *objects.World)
	SetGateways(in conditions.Input)
	// SetObserved sets what is known of endpoints. If this control serves Gateways, it is called
	// only after SetGateways.
	SetObserved(o conditions.Observed)
}

// Runtime is the part of a control that lives as long as the process. Make one with [New].
type Runtime struct {
	// Worlds provides the latest objects, which the caller sets.
	Worlds *broadcast.Value[objects.World]

	config     Config
	deployment Deployment
	gateways   *broadcast.Value[conditions.Input] // latest plans of Gateways
	server     *serve.Server
	prestop    *prestop.Server
}

// New returns a Runtime.
func New(c Config, d Deployment) *Runtime {
	return &Runtime{
		Worlds: broadcast.New[objects.World](), config: c, deployment: d, gateways: broadcast.New[conditions.Input](),
		prestop: prestop.New(c.Log),
	}
}

// Run serves until ctx ends, and runs the leadership terms of the Deployment.
func (r *Runtime) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if r.config.XDSAddress != "" {
		group.Go(func() error { return r.serveEnvoys(ctx) })
	}
	group.Go(func() error { return r.serve(ctx) })
	return group.Wait()
}

func (r *Runtime) serve(ctx context.Context) error {
	c := r.config.Serve
	if err := r.deployment.Credentials(ctx, &c); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	var err error
	if r.server, err = serve.New(c, r.config.Log); err != nil {
		return err
	}
	r.prestop.Leader = r.deployment.Leader()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.server.Run(ctx) })
	group.Go(func() error { return r.prestop.Serve(ctx, r.config.Prestop) })
	group.Go(func() error { return r.deployment.Lead(ctx, r.term) })
	return group.Wait()
}

// serveEnvoys serves the Envoys of Gateways, and keeps the plans for the status of objects.
func (r *Runtime) serveEnvoys(ctx context.Context) error {
	err := r.deployment.ServeEnvoys(ctx, controller.Service{
		Address: r.config.XDSAddress, Worlds: r.Worlds.Get, Meter: r.config.Meter, Log: r.config.Log,
		Planned: func(p controller.Plans) {
			r.gateways.Set(&conditions.Input{Attachments: p.Attachments, Plans: p.Plans, Network: p.Network, Facts: p.Facts()})
		},
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
