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

// Peers are the other controls of a cluster. Each serves some Envoys, and what these say all controls go by: a route that one Envoy
// refuses is left out of what every Envoy of the Gateway is given, and the control that leads tells of a Gateway whose Envoys others
// serve.
type Peers interface {
	// Share tells the others what this control has seen. It does not wait.
	Share(Seen)
	// Seen returns what the others have, by their names, and what is closed when that is something else.
	Seen() (map[string]Seen, <-chan struct{})
}

// Seen is what a control has seen of Envoys, by their Gateway, as NAMESPACE/NAME.
type Seen map[string]SeenOf

// SeenOf is what the Envoys of a Gateway say.
type SeenOf struct {
	// Has is a digest of what an Envoy has all of; empty for none.
	Has string `json:"has,omitempty"`
	// Refused is what they refuse beside routes, in words for people.
	Refused []string `json:"refused,omitempty"`
	// Routes are those that they refuse, by what [objects.Object] says of itself.
	Routes map[string]SeenRoute `json:"routes,omitempty"`
}

// SeenRoute is a route that an Envoy refuses.
type SeenRoute struct {
	// Content is that of [plan.Plan.Contents]: a route that has changed since is another.
	Content string `json:"content"`
	Words   string `json:"words"`
	Dropped bool   `json:"dropped,omitempty"`
}

// digest tells what Envoys are to have: it is the same in every control that makes it of the same objects.
func digest(s order.Snapshot) string {
	sum := sha256.New()
	for _, of := range slices.Sorted(maps.Keys(s)) {
		for _, name := range slices.Sorted(maps.Keys(s[of])) {
			fmt.Fprintf(sum, "%s %s %s\n", of, name, s[of][name].Version)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// share tells the other controls what this one's Envoys say, if that is something else than before.
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
			is.Routes[of.String()] = SeenRoute{q.planned.Contents[of], left.Words, left.Dropped}
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

// also adds to what is refused what other controls have seen of the Envoys of a Gateway, where it is the same as here.
func (q *bisection) also(is plan.Refused, of objects.Name, peers map[string]Seen) plan.Refused {
	is.Routes, is.Others = maps.Clone(is.Routes), slices.Clone(is.Others)
	for _, peer := range slices.Sorted(maps.Keys(peers)) {
		seen := peers[peer][of.String()]
		is.Others = append(is.Others, seen.Refused...)
		for route, content := range q.planned.Contents {
			r, refused := seen.Routes[route.String()]
			if _, known := is.Routes[route]; refused && !known && r.Content == content {
				is.Routes[route] = plan.LeftOut{Words: r.Words, Dropped: r.Dropped}
			}
		}
	}
	slices.Sort(is.Others)
	is.Others = slices.Compact(is.Others)
	return is
}

// programmedAnywhere are the Gateways of which an Envoy has, or has refused, all that it is to have, whichever control serves it.
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
