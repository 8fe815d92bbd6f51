// Package controller keeps the configuration of Gateways' Envoys up to date with the objects: it
// plans, and turns plans into xDS resources.
package controller

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/attach/services"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Config configures a Controller.
type Config struct {
	// Template is envoy.yaml, parsed.
	Template *envoy.Template
	// Envoys serves the resources, and reports the answers of Envoys to Answers.
	Envoys  *ads.Server
	Answers *Answers
	// Certificates follows the Secrets of an API server, and Authorities its ConfigMaps; nil for a
	// folder.
	Certificates, Authorities *certificates.Watch
	// Pods reports that control makes the pods of managed Gateways. These do not listen at the
	// Gateways' addresses.
	Pods bool
	// Peers are the other controls; nil if there is none.
	Peers Peers
	// Planned receives the plans in force at each change; it may be nil.
	Planned func(Plans)
	// Replanned receives the time from a change of the Network to new resources; it may be nil.
	Replanned func(took time.Duration)
	Log       *slog.Logger
}

// Plans are the plans in force. They are immutable.
type Plans struct {
	*attach.Attachments
	*plan.Plans
	*objects.Network
	// Programmed has the Gateways of which an Envoy has answered all resources, at any control.
	Programmed map[objects.Name]bool
}

// Controller follows the objects. Make one with [New], and run it with [Controller.Run].
type Controller struct {
	Config
	world      *objects.World   // in force, nil for none
	network    *objects.Network // of the plans
	attached   *attach.Attachments
	planned    *plan.Plans // with the routes that Envoys reject
	plans      *plan.Plans // without them
	makers     map[objects.Name]*maker
	sent       map[objects.Name]order.Snapshot // without lingering clusters and trials
	left       lingering
	bisections map[objects.Name]*bisection
	folder     plan.Known // of a folder: the last results
	problems   []string   // logged ones, in order
	followers
	programmed map[objects.Name]bool   // last reported
	digests    map[objects.Name]string // of given
	peers      map[string]Seen         // what other controls have seen
	shared     Seen                    // last shared with them
}

// New returns a Controller without plans.
func New(c Config) *Controller {
	return &Controller{Config: c, left: make(lingering), makers: make(map[objects.Name]*maker), followers: newFollowers()}
}

// Run follows Worlds until ctx ends. Next returns the latest World (nil before the first), and a
// channel that is closed when there is a newer one.
func (d *Controller) Run(ctx context.Context, next func() (*objects.World, <-chan struct{})) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var certificates, authorities <-chan struct{}
	if d.Certificates != nil {
		certificates, authorities = d.Certificates.Changed(), d.Authorities.Changed()
	}
	var heard <-chan struct{} // by peers
	if d.Peers != nil {
		d.peers, heard = d.Peers.Seen()
	}
	for w, newer := next(); ; {
		if w != nil && w.Network != nil {
			d.follow(ctx, w)
		}
		d.receive()
		d.bisect(time.Now())
		if d.plans != nil && !maps.Equal(d.programmed, d.programmedAnywhere()) {
			d.say()
		}
		d.share()
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
			w, newer = next()
		case <-certificates:
			d.network = nil // the plans used the old Secrets
		case <-authorities:
			d.network = nil
		case <-d.Answers.news:
		case <-heard:
			if d.peers, heard = d.Peers.Seen(); d.plans != nil {
				d.put() // peers may have seen routes to leave out
			}
		case <-tick.C:
			if d.left.end(time.Now()) {
				d.publish()
			}
		}
	}
}

// follow applies a World. Plans do not depend on pods, so most Worlds need no new plan.
func (d *Controller) follow(ctx context.Context, w *objects.World) {
	another := w != d.world
	d.world = w
	switch {
	case w.Network != d.network:
		began := time.Now()
		d.network = w.Network
		d.attached = attach.Of(w.Network)
		d.planned = plan.After(d.planned, d.attached, w.Network,
			d.known(ctx, plan.Secrets(d.attached, w.Network), plan.ConfigMaps(d.attached, w.Network)))
		d.inquire(d.attached, d.planned)
		d.put()
		if d.Replanned != nil {
			d.Replanned(time.Since(began))
		}
	case another:
		d.sendEndpoints()
	}
}

// put applies the plans without what Envoys reject.
func (d *Controller) put() {
	d.plans = d.planned.LeaveOut(d.refused())
	d.note(problems(d.plans, d.world.Where))
	given := make(map[objects.Name]order.Snapshot, len(d.plans.Gateways))
	maps.DeleteFunc(d.makers, func(name objects.Name, _ *maker) bool { return d.bisections[name] == nil })
	for i, p := range d.plans.Gateways {
		snapshot, err := d.snapshot(p, d.attached.Gateways[i])
		if err != nil {
			d.Log.Error("cannot configure the Envoys of a Gateway; they keep what they have", "gateway", p.Gateway.String(), "err", err)
			snapshot = d.sent[p.Gateway]
		}
		if snapshot != nil {
			given[p.Gateway] = snapshot
			maker := d.makers[p.Gateway]
			d.bisections[p.Gateway].offer(sync.OnceValue(func() map[string][]objects.Object { return maker.RoutesIn(p) }), snapshot)
		}
	}
	d.left.note(d.sent, given, time.Now())
	had := d.sent
	d.sent = given
	if d.Peers != nil {
		d.digests = make(map[objects.Name]string, len(given))
		for name, snapshot := range given {
			d.digests[name] = digest(snapshot)
		}
	}
	d.sendEndpoints() // a cluster waits for its endpoints
	d.give(had, given, d.publish())
	d.say()
}

// publish sends the current resources to Envoys, and returns the number of the change.
func (d *Controller) publish() uint64 { return d.Envoys.Set(d.withTrials(d.left.with(d.sent))) }

// say reports the plans in force.
func (d *Controller) say() {
	d.programmed = d.programmedAnywhere()
	if d.Planned != nil {
		d.Planned(Plans{d.attached, d.plans, d.network, d.programmed})
	}
}

// known returns the results for the named Secrets and ConfigMaps.
func (d *Controller) known(ctx context.Context, secrets, configMaps []objects.Name) plan.Known {
	if d.Certificates != nil {
		return plan.Known{Certificates: d.Certificates.Name(ctx, secrets), Authorities: d.Authorities.Name(ctx, configMaps)}
	}
	d.folder = plan.Known{
		Certificates: certificates.OfFolder(d.world.Network, d.world.At, secrets, d.folder.Certificates, time.Now()),
		Authorities:  certificates.AuthoritiesOfFolder(d.world.Network, d.world.At, configMaps, d.folder.Authorities, time.Now()),
	}
	return d.folder
}

// sendEndpoints sends the endpoints of the Services that plans name.
func (d *Controller) sendEndpoints() {
	if err := d.Envoys.SetEndpoints(services.Of(d.plans.Gateways, d.world.Network, d.world.Slices)); err != nil {
		d.Log.Error("cannot send the endpoints of Services to Envoys; they keep the last ones", "err", err)
	}
}

// snapshot returns the resources of a Gateway's Envoys.
func (d *Controller) snapshot(p *plan.Plan, g *attach.Gateway) (order.Snapshot, error) {
	m := d.makers[p.Gateway]
	if m == nil {
		m = &maker{Maker: envoy.Maker{Template: d.Template}}
		d.makers[p.Gateway] = m
	}
	resources, err := m.Of(p, d.options(g))
	if err != nil {
		return nil, err
	}
	return m.SnapshotOf(resources)
}

// maker makes the snapshots of a Gateway.
type maker struct {
	envoy.Maker
	ads.Encoder
}

// options returns what the plan of a Gateway does not contain.
func (d *Controller) options(g *attach.Gateway) envoy.Options {
	address := g.Address()
	if d.Pods && g.Managed() {
		address = "0.0.0.0"
	}
	return d.Template.FromControl(func(port int32) (string, uint32) { return address, uint32(port) })
}
