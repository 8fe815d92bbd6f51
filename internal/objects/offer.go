package objects

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Offer is which models requests may name somewhere, and the route that admits each. It is immutable once built, and safe for
// concurrent use.
type Offer struct {
	// Gateway is whose listener it is that of; zero for what is offered everywhere.
	Gateway Name
	// Routes in order of precedence. Models and VModels whose ids no LLMRoute admits are the last of them.
	Routes []*Route

	byModel map[string]*Route
	models  []Model
	pools   map[Name]bool // those of its LLMRoutes, and those that no other names
}

func newOffer() Offer { return Offer{byModel: make(map[string]*Route), pools: make(map[Name]bool)} }

// Route returns the route that admits requests for model, or nil.
func (o *Offer) Route(model string) *Route { return o.byModel[model] }

// Models returns every name that requests may use, in order. The caller must not change it.
func (o *Offer) Models() []Model { return o.models }

// Pools returns the pools that may serve it, in order: those to which its LLMRoutes lead, and those that no LLMRoute names.
func (o *Offer) Pools() []Name { return slices.SortedFunc(maps.Keys(o.pools), Name.Compare) }

// Serves says whether a pool may serve it.
func (o *Offer) Serves(pool Name) bool { return o.pools[pool] }

// kept is a name that a route wants and an older one has.
type kept struct {
	name string
	by   *Route
}

// add adds a route under the names that it wants and no route before it has. It returns the others, in order.
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

// sort puts its models in order.
func (o *Offer) sort() {
	slices.SortFunc(o.models, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
}

// OfferOf returns what is offered by a Gateway where the LLMRoutes of these names attach, which are in order of precedence, and of these pools, which
// none names: the routes' models, of which the first keeps a name that two of them want, and the Models of all these pools whose ids no route
// admits.
func (w *World) OfferOf(gateway Name, routes, unrouted []Name) *Offer {
	o := newOffer()
	o.Gateway = gateway
	own := func(r *Route) *Route { // its Models are those that it has here
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
