package stream

import (
	"slices"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// This file finds a stored response if its endpoint is unknown, for example because extproc has
// just started. Envoy tries one endpoint after the other as long as they answer 404. The access log
// then reports which endpoint has the response.

// maxSearch limits how many endpoints are asked for a stored response.
const maxSearch = 8

// search describes a request that asks several endpoints for a stored response. It is zero for all
// other requests.
type search struct {
	id string
	// everybody means that the picks include every endpoint that may have the response.
	everybody bool
	// most limits how many endpoints are asked.
	most int
	// maker is the address of the endpoint that made the response; empty if it is unknown or was
	// already scraped.
	maker string
}

// searchable reports whether the data plane can ask several endpoints for a stored response. Only
// Headgate's own Envoys try another endpoint after a 404, and only if the pool allows retries. For
// a request that names a model, pick checks the pool later.
func (s *scope) searchable(a *ask, w *objects.World, counts func(objects.Name) bool) bool {
	if s.front != Own || s.relayed != nil || !a.stored {
		return false
	}
	if a.model != "" {
		return true
	}
	for name := range w.Pools {
		if counts(name) && !s.once(w, name) {
			return true
		}
	}
	return false
}

// once reports whether a pool forbids retries.
func (s *scope) once(w *objects.World, pool objects.Name) bool {
	return s.server.Settings.For(w.Pools[pool]).EndpointsPerRequest < 2
}

// apart returns the pools of a listener that may have a stored response, if it is unknown which
// pool has it and there are several. Each pool is a cluster, and for one request Envoy tries only
// endpoints of one cluster. So the request goes to the relay, through the first of these pools.
func (s *scope) apart(about string) []objects.Name {
	view := s.server.Fleet.View()
	offer, err := s.offer(view)
	if _, known := s.server.memory.Maker(about); err != nil || about == "" || s.listener == "" || known || s.server.memory.Nowhere(about) {
		return nil
	}
	counts := s.counts(offer, s.pool)
	if !s.searchable(&ask{previous: about, stored: true}, view.World, counts) {
		return nil
	}
	_, pools := s.mayHave(view, counts)
	if len(pools) < 2 {
		return nil
	}
	turn := int(s.server.Random() % uint64(len(pools)))
	pools = slices.Concat(pools[turn:], pools[:turn])
	at := slices.IndexFunc(pools, s.relayServes)
	if at < 0 {
		return nil
	}
	pools[0], pools[at] = pools[at], pools[0]
	return pools[:min(len(pools), maxSearch)]
}

// mayHave returns the pools that may have a stored response. One request can try all pools in
// together, but only one pool in alone. At a Gateway all pools are in alone, because each is a
// cluster of its own. So are pools with a token, because other pools' endpoints must not get the
// token.
func (s *scope) mayHave(view *endpointstate.View, counts func(objects.Name) bool) (together, alone []objects.Name) {
	for name, p := range view.World.Pools {
		snapshot := view.Snapshot.Pools[name.String()]
		switch {
		case snapshot == nil || len(snapshot.Any) == 0 || p.CallsOnly || !counts(name):
		case s.atGateway() || p.ReplacesAuthorization():
			alone = append(alone, name)
		default:
			together = append(together, name)
		}
	}
	slices.SortFunc(together, func(a, b objects.Name) int { // pools that allow retries come first, because the first one's settings apply
		if once := s.once(view.World, a); once != s.once(view.World, b) {
			return map[bool]int{true: 1, false: -1}[once]
		}
		return a.Compare(b)
	})
	slices.SortFunc(alone, objects.Name.Compare)
	return together, alone
}

// unscraped reports whether the endpoint that made a response has not been scraped yet. No policy
// picks such an endpoint.
func unscraped(view *endpointstate.View, m fleet.Maker) bool {
	p := view.Snapshot.Pools[m.Pool.String()]
	return p != nil && slices.ContainsFunc(p.Endpoints, func(e *pick.Endpoint) bool { return e.Unscraped && e.Address == m.Address })
}

// searched returns the pools to ask for a stored response if the request names no model. The first
// pool becomes the request's pool. The result everybody is false if other pools may have the
// response too.
func (s *scope) searched(view *endpointstate.View, offer *objects.Offer, given objects.Name) (pools []objects.Name, everybody bool) {
	pools, alone := s.mayHave(view, s.counts(offer, given))
	if n := uint64(len(alone)); n > 0 && (len(pools) == 0 || s.server.Random()%(n+1) > 0) {
		return alone[s.server.Random()%n:][:1], n == 1 && len(pools) == 0
	}
	return pools, len(alone) == 0
}

// spread adds endpoints of other pools to the picks, one of each pool in turn. A pool that forbids
// retries adds only one endpoint. Then spread adds endpoints that have not been scraped yet.
func (d *dispatcher) spread(view *endpointstate.View, request pick.Request, others []objects.Name) {
	all := [][]pick.Decision{d.picks}
	for _, name := range others {
		request.Pool = name.String()
		more, err := pick.Pick(d.settings.Policy, view.Snapshot, request, make([]pick.Decision, maxSearch+1))
		if err == nil && d.scope.once(view.World, name) {
			more = more[:1]
		}
		if err == nil {
			all = append(all, more)
		}
	}
	var picks []pick.Decision
	for turn := 0; len(picks) <= maxSearch; turn++ {
		before := len(picks)
		for _, of := range all {
			if turn < len(of) {
				picks = append(picks, of[turn])
			}
		}
		if len(picks) == before {
			break
		}
	}
	// Soon after its start, extproc has not scraped every endpoint. The endpoint that made the
	// response is asked first. Other unscraped endpoints are asked last.
	for _, name := range append([]objects.Name{d.target.Pool}, others...) {
		pool := view.Snapshot.Pools[name.String()]
		for i, e := range pool.Endpoints {
			if e.Unscraped && request.Only.Has(e.Address) {
				at := len(picks)
				if e.Address == d.search.maker {
					at = 0
				} else if d.scope.once(view.World, name) {
					continue
				}
				picks = slices.Insert(picks, at, pick.Decision{
					Endpoint: e, Copy: &pool.Any[i], Model: picks[0].Model,
					Reason: "no model list yet",
				})
			}
		}
	}
	d.search.everybody = d.search.everybody && d.all(view, picks, others)
	seen := make(map[string]bool, len(picks))
	d.picks = slices.DeleteFunc(picks, func(d pick.Decision) bool { // an endpoint may be in several pools
		again := seen[d.Endpoint.Address]
		seen[d.Endpoint.Address] = true
		return again
	})
}

// all reports whether the picks include every endpoint of the request's pool and of the other
// pools, with the same name for the model. Even an endpoint that is out or has no copy of the model
// may have the response.
func (d *dispatcher) all(view *endpointstate.View, picks []pick.Decision, others []objects.Name) bool {
	n := len(view.Snapshot.Pools[d.target.Pool.String()].Endpoints)
	for _, name := range others {
		n += len(view.Snapshot.Pools[name.String()].Endpoints)
	}
	return len(picks) >= n && !slices.ContainsFunc(picks, func(d pick.Decision) bool { return d.Model != picks[0].Model })
}

// limitSearch drops the picks beyond search.most. Dropped endpoints may have the response, so
// everybody becomes false.
func (d *dispatcher) limitSearch() {
	if len(d.picks) > d.search.most {
		d.picks, d.search.everybody = d.picks[:d.search.most], false
	}
}
