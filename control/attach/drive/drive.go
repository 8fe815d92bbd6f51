// Package drive keeps what the Envoys of Gateways are given true to the objects: it makes plans of them, and of the plans what Envoys
// are told.
package drive

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/attach/services"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Config is what a Driver needs.
type Config struct {
	// Template is envoy.yaml, taken apart.
	Template *envoy.Template
	// Envoys serves what is made.
	Envoys *ads.Server
	// Certificates are those in the Secrets of an API server; nil where a folder has them.
	Certificates *certificates.Watch
	// Planned is told each plan, with what it is made of, once Envoys may have it; nil means nobody. What it gets is immutable.
	Planned func(a *attach.Attachments, p *plan.Plans, n *objects.Network)
	Log     *slog.Logger
}

// Driver follows the objects. Make one with [New], and run it with [Driver.Run].
type Driver struct {
	Config
	world   *objects.World   // that is in force
	network *objects.Network // of the plans
	plans   *plan.Plans
	given   map[objects.Name]order.Snapshot // without what lingers
	left    lingering
	secrets map[objects.Name]plan.Certificate // of a folder, as they were known last
	// problems were told, in order.
	problems []string
}

// New returns a Driver of nothing.
func New(c Config) *Driver { return &Driver{Config: c, left: make(lingering)} }

// Run follows Worlds, until ctx ends. Next returns the latest World, nil before there is one, and what is closed when there is another.
func (d *Driver) Run(ctx context.Context, next func() (*objects.World, <-chan struct{})) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var certificates <-chan struct{}
	if d.Certificates != nil {
		certificates = d.Certificates.Changed()
	}
	for w, newer := next(); ; {
		d.follow(ctx, w)
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
			w, newer = next()
		case <-certificates:
			d.network = nil // the plans are of what was known of Secrets then
		case <-tick.C:
			if d.left.end(time.Now()) {
				d.Envoys.Set(d.left.with(d.given))
			}
		}
	}
}

// follow puts a World in force, nil for none yet.
func (d *Driver) follow(ctx context.Context, w *objects.World) {
	switch {
	case w == nil || w.Network == nil || w == d.world && w.Network == d.network:
	case w.Network != d.network:
		d.replan(ctx, w)
	default:
		d.tellEndpoints(w)
	}
	d.world = w
}

// replan makes the plans of a World's Network, and has Envoys given what comes of them. Pods are in no plan.
func (d *Driver) replan(ctx context.Context, w *objects.World) {
	a := attach.Of(w.Network)
	d.network, d.plans = w.Network, plan.Of(a, w.Network, d.known(ctx, w, plan.Secrets(a, w.Network)))
	d.tell(problems(a, d.plans, w.Where))
	given := make(map[objects.Name]order.Snapshot, len(d.plans.Gateways))
	for i, p := range d.plans.Gateways {
		snapshot, err := d.snapshot(p, a.Gateways[i])
		if err != nil {
			d.Log.Error("cannot configure the Envoys of a Gateway; they keep what they have", "gateway", p.Gateway.String(), "err", err)
			snapshot = d.given[p.Gateway]
		}
		if snapshot != nil {
			given[p.Gateway] = snapshot
		}
	}
	d.left.note(d.given, given, time.Now())
	d.given = given
	d.tellEndpoints(w) // a cluster waits for its endpoints
	d.Envoys.Set(d.left.with(d.given))
	if d.Planned != nil {
		d.Planned(a, d.plans, w.Network)
	}
}

// known is what is known of the Secrets that listeners name.
func (d *Driver) known(ctx context.Context, w *objects.World, names []objects.Name) map[objects.Name]plan.Certificate {
	if d.Certificates != nil {
		return d.Certificates.Name(ctx, names)
	}
	d.secrets = certificates.OfFolder(w.Network, w.At, names, d.secrets, time.Now())
	return d.secrets
}

// tellEndpoints has Envoys told of the endpoints of the Services that plans name.
func (d *Driver) tellEndpoints(w *objects.World) {
	if err := d.Envoys.SetEndpoints(services.Of(d.plans.Gateways, w.Network, w.Slices)); err != nil {
		d.Log.Error("cannot tell Envoys of the endpoints of Services; they keep what they have", "err", err)
	}
}

// snapshot is what the Envoys of a Gateway are to have.
func (d *Driver) snapshot(p *plan.Plan, g *attach.Gateway) (order.Snapshot, error) {
	address := addressOf(g)
	resources, err := d.Template.Of(p, d.Template.FromControl(func(port int32) (string, uint32) { return address, uint32(port) }))
	if err != nil {
		return nil, err
	}
	return ads.SnapshotOf(resources)
}

// addressOf is where an Envoy of a Gateway listens: the first IP address that the Gateway asks for, else every one.
func addressOf(g *attach.Gateway) string {
	for _, a := range g.Spec.Addresses {
		if _, err := netip.ParseAddr(a.Value); err == nil && ptr.Deref(a.Type, gatewayv1.IPAddressType) == gatewayv1.IPAddressType {
			return a.Value
		}
	}
	return "0.0.0.0"
}
