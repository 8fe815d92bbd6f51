package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/bisect"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// bisection finds the routes that the Envoys of a Gateway reject.
type bisection struct {
	*bisect.Bisection
	gateway *attach.Gateway
	planned *plan.Plan   // plan with all routes, including rejected ones
	refused plan.Refused // rejections that the last plan left out
	others  []string     // other resources that Envoys of this control reject, as messages
	// The next three fields describe the current search: its number, the plan at its start, and the
	// resources of its current trial.
	search int
	of     *plan.Plan
	trial  order.Snapshot
	tries  string // version of trial; empty: no trial
}

// inquire adds a bisection for each new Gateway, and removes those of deleted Gateways.
func (d *Controller) inquire(a *attach.Attachments, plans *plan.Plans) {
	now := make(map[objects.Name]*bisection, len(plans.Gateways))
	for i, p := range plans.Gateways {
		q := d.bisections[p.Gateway]
		if q == nil {
			q = &bisection{Bisection: bisect.New(strconv.FormatInt(time.Now().UnixNano(), 36))}
		}
		q.gateway, q.planned = a.Gateways[i], p
		now[p.Gateway] = q
	}
	d.bisections = now
}

// refused returns, for each Gateway, the routes to leave out and the other resources that Envoys
// reject. It logs new rejections.
func (d *Controller) refused() map[objects.Name]plan.Refused {
	all := make(map[objects.Name]plan.Refused, len(d.bisections))
	for name, q := range d.bisections {
		q.others = others(q.Faults())
		is := plan.Refused{Routes: q.Plan(q.planned.Contents), Others: q.others}
		if len(d.peers) > 0 {
			is = q.also(is, name, d.peers)
		}
		for _, of := range slices.SortedFunc(maps.Keys(is.Routes), compare) {
			if _, known := q.refused.Routes[of]; !known {
				d.Log.Error("an Envoy rejected a route; it is left out until it changes",
					"gateway", name.String(), "route", d.world.Where(of.Kind, of.Name), "dropped", is.Routes[of].Dropped, "err",
					is.Routes[of].Message)
			}
		}
		for of := range q.refused.Routes {
			if _, still := is.Routes[of]; !still {
				d.Log.Info("a rejected route has changed or was deleted; trying the new version", "gateway", name.String(), "route",
					of.String())
			}
		}
		for _, words := range is.Others {
			if !slices.Contains(q.refused.Others, words) {
				d.Log.Error("an Envoy rejected its configuration; it keeps the last accepted one", "gateway", name.String(), "err", words)
			}
		}
		q.refused = is
		all[name] = is
	}
	return all
}

func compare(x, y objects.Object) int { return strings.Compare(x.String(), y.String()) }

// kinds maps the type URLs of resources to their names in messages.
var kinds = map[string]string{order.Clusters: "cluster", order.Secrets: "secret", order.Listeners: "listener", order.Routes: "routes"}

// others formats faults, which are rejections that no route causes.
func others(all []bisect.Fault) []string {
	words := make([]string, len(all))
	for i, f := range all {
		words[i] = fmt.Sprintf("%s %s: %s", kinds[f.Type], f.Name, f.Message)
	}
	return words
}

// offer sets the current resources of a Gateway's Envoys. The function in returns the routes in
// each route configuration. It is called only when needed.
func (q *bisection) offer(in func() map[string][]objects.Object, given order.Snapshot) {
	all := make(map[bisect.Resource]bisect.Offer)
	for of, named := range given {
		for name, r := range named {
			o := bisect.Offer{Version: r.Version}
			if of == order.Routes {
				o.Routes = func() []objects.Object { return in()[name] }
			}
			all[bisect.Resource{Type: of, Name: name}] = o
		}
	}
	q.Offer(all)
}

// receive processes the queued answers of Envoys.
func (d *Controller) receive() {
	for _, s := range d.Answers.take() {
		switch {
		case s.disconnected:
			delete(d.envoys, s.from)
		case s.settled > 0:
			d.envoys[s.from] = s.settled
			continue
		}
		q := d.bisections[s.from.Gateway]
		switch {
		case q == nil:
		case s.disconnected:
			q.Disconnected(s.from.Stream)
		default:
			q.Answered(s.from.Stream, s.Answer)
		}
	}
}

// bisect continues each search with the answers so far.
func (d *Controller) bisect(now time.Time) {
	replan, another := d.search(now)
	if replan {
		d.put()
		_, another = d.search(now)
	}
	if another {
		d.publish()
	}
}

// search continues each search once. It reports whether the plans must change, and whether a trial
// has changed.
func (d *Controller) search(now time.Time) (replan, another bool) {
	for _, q := range d.bisections {
		another = q.try(d, now) || another
		replan = replan || q.Stale() || !slices.Equal(others(q.Faults()), q.others)
	}
	return replan, another
}

// try updates the trial, and reports whether it has changed.
func (q *bisection) try(d *Controller, now time.Time) bool {
	t, some := q.Next(now)
	if t.Version == q.tries {
		return false
	}
	q.tries, q.trial = t.Version, nil
	if !some {
		return true
	}
	if t.Search != q.search {
		q.search, q.of = t.Search, q.planned
	}
	resources, err := d.Template.Trial(q.of.LeaveOut(t.Out), t.Routes, d.options(q.gateway))
	if err == nil {
		q.trial, err = ads.SnapshotOf(resources)
	}
	if err != nil { // a trial without resources gets no answer, and times out
		d.Log.Error("cannot find the route that an Envoy rejects", "gateway", q.planned.Gateway.String(), "routes", t.Routes, "err", err)
		return true
	}
	is := q.trial[order.Routes][envoy.TrialName]
	is.Version = t.Version
	q.trial[order.Routes][envoy.TrialName] = is
	return true
}

// withTrials returns the snapshots with the resources of trials added.
func (d *Controller) withTrials(given map[objects.Name]order.Snapshot) map[objects.Name]order.Snapshot {
	all := maps.Clone(given)
	for name, q := range d.bisections {
		if q.trial == nil || all[name] == nil {
			continue
		}
		snapshot := maps.Clone(all[name])
		for _, of := range []string{order.Listeners, order.Routes} {
			named := maps.Clone(snapshot[of])
			named[envoy.TrialName] = q.trial[of][envoy.TrialName]
			snapshot[of] = named
		}
		all[name] = snapshot
	}
	return all
}
