package stream

import (
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// admit finds the pool, model and route of a request. If the request continues a stored response,
// the result near is the endpoint that stores it. A request from the relay keeps the target for
// which it was admitted before.
func (d *dispatcher) admit(a *ask, view *endpointstate.View) (target route.Target, near string, err error) {
	if d.scope.relayed != nil {
		if d.scope.relayed.Most > 0 { // the relay asks several pools for a stored response
			d.search = search{id: a.previous, most: int(d.scope.relayed.Most)}
		}
		target = d.scope.relayed.Models[0].Target
		target.Sharing = view.World.SharingOf(target.Route)
		return target, "", nil
	}
	s := d.server
	offer, err := d.scope.offer(view)
	if err != nil {
		return target, "", err
	}
	of := route.Ask{Offer: offer, Model: a.model, Default: d.scope.unrouted(view, offer, a.model), Random: s.Random()}
	of.Given, _ = d.scope.given(view.World)
	d.search, d.searches = search{}, nil
	if a.previous != "" {
		maker, ok := s.memory.Maker(a.previous)
		counts := d.scope.counts(offer, of.Given)
		switch {
		case (!ok || unscraped(view, maker)) && d.scope.searchable(a, view.World, counts):
			if s.memory.Nowhere(a.previous) {
				return target, "", errUnknownAnswer
			}
			d.search = search{id: a.previous, everybody: true, most: maxSearch, maker: maker.Address}
			switch {
			case a.model != "":
			case ok && counts(maker.Pool):
				of.Given, d.search.everybody = maker.Pool, false
			default:
				var pools []objects.Name
				if pools, d.search.everybody = d.scope.searched(view, offer, of.Given); len(pools) == 0 {
					return target, "", pick.ErrNoneReady
				}
				of.Given, d.searches = pools[0], pools[1:]
			}
		case ok && counts(maker.Pool):
			near = maker.Address
			if a.model == "" {
				of.Given = maker.Pool
			}
		case a.model == "" && d.scope.inferenceOnly() && of.Default == (objects.Name{}):
			return target, "", errUnknownAnswer
		}
	}
	if a.model != "" && s.placing() && offer.Route(a.model) == nil {
		of.Registered, _ = s.Fleet.Registered(a.model, d.scope.counts(offer, of.Given))
	}
	target, err = route.Find(view.World, of)
	if err != nil || target.Open {
		if err := pathOf(view, target, a.model); err != nil {
			return target, "", err
		}
	}
	if err != nil && d.traits.guess && a.model != "" {
		// On an unknown path, the model in the body is only a hint.
		of.Model, a.model = "", ""
		target, err = route.Find(view.World, of)
	}
	if err != nil {
		return target, "", d.scope.unknown(err)
	}
	if a.naming != anyName && s.Fleet.IsVModel(view.World, objects.ModelKey{Pool: target.Pool, ID: a.model}) != (a.naming == vmodelName) {
		if a.naming == vmodelName {
			return target, "", errNoVModel
		}
		return target, "", route.ErrUnknownModel
	}
	return target, near, nil
}

// pathOf rejects a model name that is a file path, because an engine might load the files there
// (see [engine.CheckName]). It accepts such a name if an endpoint of the open pool lists it.
func pathOf(view *endpointstate.View, target route.Target, model string) error {
	if model == "" {
		return nil
	}
	err := openai.CheckName(model)
	if err != nil && target.Open && view.Snapshot.Pools[target.Pool.String()].Lists(model) {
		return nil
	}
	return err
}
