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
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Config is what a Driver needs.
type Config struct {
	// Template is envoy.yaml, taken apart.
	Template *envoy.Template
	// Envoys serves what is made.
	Envoys *ads.Server
	Log    *slog.Logger
}

// Driver follows the objects. Make one with [New], and run it with [Driver.Run].
type Driver struct {
	Config
	network *objects.Network
	given   map[objects.Name]order.Snapshot // without what lingers
	left    lingering
}

// New returns a Driver of nothing.
func New(c Config) *Driver { return &Driver{Config: c, left: make(lingering)} }

// Run follows Worlds, until ctx ends. Next returns the latest World and what is closed when there is another.
func (d *Driver) Run(ctx context.Context, next func() (*objects.World, <-chan struct{})) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		w, newer := next()
		if w != nil {
			d.follow(w)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
		case <-tick.C:
			if d.left.end(time.Now()) {
				d.Envoys.Set(d.left.with(d.given))
			}
		}
	}
}

// follow puts the objects of a World in force. Without a change of its Network there is nothing to do: pods are not in any plan.
func (d *Driver) follow(w *objects.World) {
	if w.Network == nil || w.Network == d.network {
		return
	}
	d.network = w.Network
	a := attach.Of(w.Network)
	plans := plan.Of(a, w.Network, nil)
	given := make(map[objects.Name]order.Snapshot, len(plans.Gateways))
	for i, p := range plans.Gateways {
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
	d.Envoys.Set(d.left.with(d.given))
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
