// Package controller keeps the configuration of Gateways' Envoys up to date: it makes plans from
// the objects, and xDS resources from plans.
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
	// Certificates follows the Secrets of an API server, and Authorities the ConfigMaps. Both are
	// nil if the objects are in a folder.
	Certificates, Authorities *certificates.Watch
	// Pods reports that control creates the pods of managed Gateways. Envoys in these pods do not
	// listen at the Gateways' addresses.
	Pods bool
	// Peers are the other controls; nil if there is none.
	Peers Peers
	// Planned is called with the new plans at each change; it may be nil.
	Planned func(Plans)
	// Replanned is called with the time that it took to compute plans and resources after a change
	// of the Network; it may be nil.
	Replanned func(took time.Duration)
	Log       *slog.Logger
}

// Plans are the current plans and their input. They are immutable.
type Plans struct {
	*attach.Attachments
	*plan.Plans
	*objects.Network
	// Programmed contains the Gateways with an Envoy that has answered all current resources. The
	// Envoy may be connected to any control.
	Programmed map[objects.Name]bool
}

// Controller configures Envoys from the objects. Make one with [New], and run it with
// [Controller.Run].
type Controller struct {
	Config
	world      *objects.World   // current World; nil before the first
	network    *objects.Network // input of the current plans
	attached   *attach.Attachments
	planned    *plan.Plans // current plans, including routes that Envoys reject
	plans      *plan.Plans // current plans, without routes that Envoys reject
	makers     map[objects.Name]*maker
	sent       map[objects.Name]order.Snapshot // current resources, without lingering clusters and trials
	left       lingering
	bisections map[objects.Name]*bisection
	folder     plan.Known // last certificates that were read from a folder
	problems   []string   // problems that were logged, sorted
	followers
	programmed map[objects.Name]bool   // Gateways last reported as programmed
	digests    map[objects.Name]string // digests of the current resources
	peers      map[string]Seen         // last reports of other controls
	shared     Seen                    // last report to other controls
}

// New returns a Controller without plans.
func New(c Config) *Controller {
	return &Controller{Config: c, left: make(lingering), makers: make(map[objects.Name]*maker), followers: newFollowers()}
}

// Run applies Worlds until ctx ends. The function next returns the latest World (nil before the
// first), and a channel that is closed when there is a newer one.
func (d *Controller) Run(ctx context.Context, next func() (*objects.World, <-chan struct{})) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var certificates, authorities <-chan struct{}
	if d.Certificates != nil {
		certificates, authorities = d.Certificates.Changed(), d.Authorities.Changed()
	}
	var heard <-chan struct{} // closed when a peer reports
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
			d.network = nil // plan again, with the new Secrets
		case <-authorities:
			d.network = nil
		case <-d.Answers.news:
		case <-heard:
			if d.peers, heard = d.Peers.Seen(); d.plans != nil {
				d.put() // peers may have reported more routes to leave out
			}
		case <-tick.C:
			if d.left.end(time.Now()) {
				d.publish()
			}
		}
	}
}

// follow applies a World. It makes new plans only if the Network has changed, since plans do not
// depend on pods.
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

// put makes resources from the plans, without what Envoys reject, and publishes them.
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
	d.sendEndpoints() // Envoy uses a new cluster only when it has its endpoints
	d.give(had, given, d.publish())
	d.say()
}

// publish sends the current resources to Envoys, and returns the number of the change.
func (d *Controller) publish() uint64 { return d.Envoys.Set(d.withTrials(d.left.with(d.sent))) }

// say reports the current plans to Planned.
func (d *Controller) say() {
	d.programmed = d.programmedAnywhere()
	if d.Planned != nil {
		d.Planned(Plans{d.attached, d.plans, d.network, d.programmed})
	}
}

// known returns the certificates in the named Secrets and ConfigMaps.
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

// options returns the settings of a Gateway's Envoys that are not in its plan.
func (d *Controller) options(g *attach.Gateway) envoy.Options {
	address := g.Address()
	if d.Pods && g.Managed() {
		address = "0.0.0.0"
	}
	return d.Template.FromControl(func(port int32) (string, uint32) { return address, uint32(port) })
}
