package objects

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Offer is the set of models that requests may name at one place, with the route that admits each.
// It is immutable once built, and safe for concurrent use.
type Offer struct {
	// Gateway is the Gateway of the listener; zero for the offer outside Gateways.
	Gateway Name
	// Routes are in order of precedence. Models and VModels whose ids no LLMRoute admits come last.
	Routes []*Route

	byModel map[string]*Route
	models  []Model
	pools   map[Name]bool // pools of its LLMRoutes, and pools without LLMRoutes
	// fallbacks are pools that are only fallbacks of its LLMRoutes. Requests cannot name their
	// models.
	fallbacks map[Name]bool
}

func newOffer() Offer {
	return Offer{byModel: make(map[string]*Route), pools: make(map[Name]bool), fallbacks: make(map[Name]bool)}
}

// Route returns the route that admits requests for model, or nil.
func (o *Offer) Route(model string) *Route { return o.byModel[model] }

// Models returns every name that requests may use, sorted. The caller must not change it.
func (o *Offer) Models() []Model { return o.models }

// Pools returns the pools that may serve it, sorted: those of its LLMRoutes with their fallbacks,
// and those without LLMRoutes.
func (o *Offer) Pools() []Name {
	all := slices.AppendSeq(slices.Collect(maps.Keys(o.pools)), maps.Keys(o.fallbacks))
	slices.SortFunc(all, Name.Compare)
	return slices.Compact(all)
}

// Serves reports whether a pool, not only as a fallback, may serve it.
func (o *Offer) Serves(pool Name) bool { return o.pools[pool] }

// kept is a name that a route requests but an older route has.
type kept struct {
	name string
	by   *Route
}

// add adds a route under those of its names that no earlier route has. It returns the other names,
// in order.
func (o *Offer) add(r *Route) (others []kept) {
	o.Routes = append(o.Routes, r)
	for _, name := range r.wants {
		if first := o.byModel[name]; first != nil {
			others = append(others, kept{name, first})
			continue
		}
		o.byModel[name] = r
		model := Model{Name: name, Created: r.created}
		if r.created.IsZero() {
			model.Created = r.written
		}
		o.models = append(o.models, model)
		r.Models = append(r.Models, name)
	}
	return others
}

// sort sorts its models.
func (o *Offer) sort() {
	slices.SortFunc(o.models, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
}

// OfferOf returns the offer of a Gateway's listener to which these LLMRoutes attach, in order of
// precedence, plus pools without LLMRoutes. It contains the routes' models, where the first route
// to request a name keeps it, and the pools' Models whose ids no route admits.
func (w *World) OfferOf(gateway Name, routes, unrouted []Name) *Offer {
	o := newOffer()
	o.Gateway = gateway
	own := func(r *Route) *Route { // the copy has only the Models admitted here
		is := *r
		is.Models = nil
		return &is
	}
	for _, name := range routes {
		r := w.byName[name]
		if r == nil {
			continue
		}
		o.add(own(r))
		for _, b := range r.Backends {
			o.pools[b.Pool] = true
		}
		if f := r.Sharing.Or().Fallback.Pool; f != (Name{}) {
			o.fallbacks[f] = true
		}
	}
	for _, pool := range unrouted {
		o.pools[pool] = true
	}
	var models []*Route
	for pool := range o.pools {
		models = append(models, w.unrouted[pool]...)
	}
	slices.SortFunc(models, func(a, b *Route) int { return cmp.Or(a.created.Compare(b.created), a.Name.Compare(b.Name)) })
	for _, r := range models {
		if o.byModel[r.Adapter] == nil {
			o.add(own(r))
		}
	}
	o.sort()
	return &o
}
