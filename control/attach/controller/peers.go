package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// Peers exchanges the answers of Envoys with the other controls of a cluster. So each control
// leaves out a route that any Envoy rejects, and the leader also reports the state of Gateways
// whose Envoys are connected to other controls.
type Peers interface {
	// Share publishes the report of this control. It does not block.
	Share(Seen)
	// Seen returns the reports of the other controls, by name of the control, and a channel that is
	// closed at the next change.
	Seen() (map[string]Seen, <-chan struct{})
}

// Seen is the report of one control about its Envoys, by Gateway as NAMESPACE/NAME.
type Seen map[string]SeenOf

// SeenOf is the part of a report about one Gateway.
type SeenOf struct {
	// Has is the digest of the current resources if an Envoy has answered all of them; otherwise it
	// is empty.
	Has string `json:"has,omitempty"`
	// Refused lists the resources, except routes, that Envoys reject, as messages.
	Refused []string `json:"refused,omitempty"`
	// Routes contains the rejected routes, by [objects.Object.String].
	Routes map[string]SeenRoute `json:"routes,omitempty"`
}

// SeenRoute is a route that an Envoy rejects.
type SeenRoute struct {
	// Content is the rejected content, as in [plan.Plan.Contents]. The rejection does not apply to
	// a route whose content differs.
	Content string `json:"content"`
	Message string `json:"words"`
	Dropped bool   `json:"dropped,omitempty"`
}

// digest hashes a snapshot. All controls with the same objects compute the same digest.
func digest(s order.Snapshot) string {
	sum := sha256.New()
	for _, of := range slices.Sorted(maps.Keys(s)) {
		for _, name := range slices.Sorted(maps.Keys(s[of])) {
			fmt.Fprintf(sum, "%s %s %s\n", of, name, s[of][name].Version)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// share publishes the answers of this control's Envoys if they have changed.
func (d *Controller) share() {
	if d.Peers == nil || d.plans == nil {
		return
	}
	own := d.followers.programmed()
	now := make(Seen)
	for name, q := range d.bisections {
		is := SeenOf{Refused: others(q.Faults())}
		if own[name] {
			is.Has = d.digests[name]
		}
		for of, left := range q.Plan(q.planned.Contents) {
			if is.Routes == nil {
				is.Routes = make(map[string]SeenRoute)
			}
			is.Routes[of.String()] = SeenRoute{q.planned.Contents[of], left.Message, left.Dropped}
		}
		if is.Has != "" || len(is.Refused)+len(is.Routes) > 0 {
			now[name.String()] = is
		}
	}
	if !reflect.DeepEqual(now, d.shared) {
		d.shared = now
		d.Peers.Share(now)
	}
}

// also adds the resources that Envoys of other controls reject. It ignores rejected routes whose
// content here differs.
func (q *bisection) also(is plan.Refused, of objects.Name, peers map[string]Seen) plan.Refused {
	is.Routes, is.Others = maps.Clone(is.Routes), slices.Clone(is.Others)
	for _, peer := range slices.Sorted(maps.Keys(peers)) {
		seen := peers[peer][of.String()]
		is.Others = append(is.Others, seen.Refused...)
		for route, content := range q.planned.Contents {
			r, refused := seen.Routes[route.String()]
			if _, known := is.Routes[route]; refused && !known && r.Content == content {
				is.Routes[route] = plan.LeftOut{Message: r.Message, Dropped: r.Dropped}
			}
		}
	}
	slices.Sort(is.Others)
	is.Others = slices.Compact(is.Others)
	return is
}

// programmedAnywhere returns the Gateways with an Envoy that has answered all current resources.
// The Envoy may be connected to any control.
func (d *Controller) programmedAnywhere() map[objects.Name]bool {
	all := d.followers.programmed()
	for _, seen := range d.peers {
		for name, digest := range d.digests {
			if has := seen[name.String()].Has; has != "" && has == digest {
				all[name] = true
			}
		}
	}
	return all
}
