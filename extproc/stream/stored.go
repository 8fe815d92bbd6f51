package stream

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// This file is about requests for a stored response of which nobody is known to have it: extproc has just started, or another one saw it
// made. Envoy tries one endpoint after the other while they answer 404, and the access log tells who has it.

// maxSearch bounds how many endpoints are asked for a stored response.
const maxSearch = 8

// search is a request for a stored response that is asked of several endpoints. The zero search is none.
type search struct {
	id string
	// everybody says that all endpoints that might have it are among the picks.
	everybody bool
	// most is how many endpoints may be asked.
	most int
	// maker is the address of who made it, if that is known: an endpoint that was not scraped yet.
	maker string
}

// searchable reports whether the data plane can ask several endpoints, in pools that count, for a stored response. Only Headgate's own Envoys try
// another endpoint after a 404, and only in pools that allow retries; choose checks this if the request names a model.
func (x *exchange) searchable(a *ask, w *objects.World, counts func(objects.Name) bool) bool {
	if x.front != Own || x.errand != nil || x.call != nil || x.op != openai.Stored && !a.text.Continues(x.in.path) {
		return false
	}
	if a.model != "" {
		return true
	}
	for name := range w.Pools {
		if counts(name) && !x.once(w, name) {
			return true
		}
	}
	return false
}

// once reports whether a pool forbids retries.
func (x *exchange) once(w *objects.World, pool objects.Name) bool {
	return x.server.Settings.For(w.Pools[pool]).Picks < 2
}

// apart returns the pools of a Gateway's listener that may have a stored response whose maker is unknown, if there are several. Each is a cluster of
// its own, and Envoy asks the endpoints of only one cluster for a request. The inner server can be reached through the first pool.
func (x *exchange) apart(about string) []objects.Name {
	view := x.server.Fleet.View()
	offer, err := x.offer(view)
	if _, known := x.server.Fleet.Maker(about); err != nil || about == "" || x.listener == "" || known || x.server.Fleet.Nowhere(about) {
		return nil
	}
	counts := x.counts(offer, x.pool)
	if !x.searchable(&ask{previous: about}, view.World, counts) {
		return nil
	}
	_, pools := x.mayHave(view, counts)
	if len(pools) < 2 {
		return nil
	}
	turn := int(x.server.Random() % uint64(len(pools)))
	pools = slices.Concat(pools[turn:], pools[:turn])
	at := slices.IndexFunc(pools, x.innerServes)
	if at < 0 {
		return nil
	}
	pools[0], pools[at] = pools[at], pools[0]
	return pools[:min(len(pools), maxSearch)]
}

// mayHave returns the pools whose endpoints may have a stored response: those that one request can try together, and those that it can only try
// alone. At a Gateway each pool is a cluster of its own, and a pool's own token is only for its endpoints.
func (x *exchange) mayHave(view *endpointstate.View, counts func(objects.Name) bool) (together, alone []objects.Name) {
	for name, p := range view.World.Pools {
		s := view.Snapshot.Pools[name.String()]
		switch {
		case s == nil || len(s.Any) == 0 || p.CallsOnly || !counts(name):
		case x.atGateway() || p.ReplacesAuthorization():
			alone = append(alone, name)
		default:
			together = append(together, name)
		}
	}
	slices.SortFunc(together, func(a, b objects.Name) int { // the first must allow retries
		if once := x.once(view.World, a); once != x.once(view.World, b) {
			return map[bool]int{true: 1, false: -1}[once]
		}
		return a.Compare(b)
	})
	slices.SortFunc(alone, objects.Name.Compare)
	return together, alone
}

// unheard reports whether the maker of a response has not been scraped yet, so that no policy picks it.
func unheard(view *endpointstate.View, m fleet.Maker) bool {
	p := view.Snapshot.Pools[m.Pool.String()]
	return p != nil && slices.ContainsFunc(p.Endpoints, func(e pick.Endpoint) bool { return e.Unheard && e.Address == m.Address })
}

// searched returns the pools to ask for a stored response if the request names no model; the first becomes the request's pool. Of the pools that
// must be tried alone it returns one.
func (x *exchange) searched(view *endpointstate.View, offer *objects.Offer, given objects.Name) (pools []objects.Name, everybody bool) {
	pools, alone := x.mayHave(view, x.counts(offer, given))
	if n := uint64(len(alone)); n > 0 && (len(pools) == 0 || x.server.Random()%(n+1) > 0) {
		return alone[x.server.Random()%n:][:1], n == 1 && len(pools) == 0
	}
	return pools, len(alone) == 0
}

// spread adds endpoints of other pools to the picks of a request, round robin, and endpoints that were not scraped yet. A pool that forbids retries
// adds one.
func (x *exchange) spread(view *endpointstate.View, request pick.Request, others []objects.Name) {
	all := [][]pick.Decision{x.picks}
	for _, name := range others {
		request.Pool = name.String()
		more, err := pick.Pick(x.settings.Policy, view.Snapshot, request, make([]pick.Decision, maxSearch+1))
		if err == nil && x.once(view.World, name) {
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
	// An extproc that has just started has not heard of every endpoint yet. The last ones are asked too, and who made the response before all others.
	for _, name := range append([]objects.Name{x.target.Pool}, others...) {
		pool := view.Snapshot.Pools[name.String()]
		for i := range pool.Endpoints {
			if e := &pool.Endpoints[i]; e.Unheard && request.Only.Has(e.Address) {
				at := len(picks)
				if e.Address == x.search.maker {
					at = 0
				} else if x.once(view.World, name) {
					continue
				}
				picks = slices.Insert(picks, at, pick.Decision{Endpoint: e, Copy: &pool.Any[i], Model: picks[0].Model, Reason: "not heard of yet"})
			}
		}
	}
	x.search.everybody = x.search.everybody && x.all(view, picks, others)
	seen := make(map[string]bool, len(picks))
	x.picks = slices.DeleteFunc(picks, func(d pick.Decision) bool { // one may be of several pools
		again := seen[d.Endpoint.Address]
		seen[d.Endpoint.Address] = true
		return again
	})
}

// all says whether picks are every endpoint of the request's pool and others, asked for the same model: one that is out now, or has no copy of the
// model, may have the response.
func (x *exchange) all(view *endpointstate.View, picks []pick.Decision, others []objects.Name) bool {
	n := len(view.Snapshot.Pools[x.target.Pool.String()].Endpoints)
	for _, name := range others {
		n += len(view.Snapshot.Pools[name.String()].Endpoints)
	}
	return len(picks) >= n && !slices.ContainsFunc(picks, func(d pick.Decision) bool { return d.Model != picks[0].Model })
}

// limitSearch keeps as many picks as may be asked. Those that are left out might have the response.
func (p *picked) limitSearch() {
	if len(p.picks) > p.search.most {
		p.picks, p.search.everybody = p.picks[:p.search.most], false
	}
}

// retries bounds how often Envoy tries a request again that searches, nil of any other.
func (x *exchange) retries() []*corev3.HeaderValueOption {
	if x.search.id == "" {
		return nil
	}
	return []*corev3.HeaderValueOption{header(wire.RetriesHeader, strconv.Itoa(strings.Count(x.to, ",")))}
}
