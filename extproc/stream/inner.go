package stream

import (
	"errors"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// This file is how requests use the inner server, which Envoy has among the endpoints: it sends a request through Envoy again if no endpoint has
// served it, a call for several models to each of them, a request for a stored response to each pool, and a REST request as a gRPC call if engines
// take nothing else.

// openErrand takes what the inner server says of a request: where it came in, and what it was admitted for.
func (x *exchange) openErrand() error {
	if x.in.errand == "" || x.front != Own || x.server.Errands == nil {
		return nil
	}
	e, ok := x.server.Errands.Open(x.in.errand)
	if !ok || e.Kind != relaytoken.Sent || len(e.Models) != 1 {
		return errErrand
	}
	x.errand, x.listener, x.pool, x.rewrite = &e, e.Listener, e.Given, nil
	return nil
}

// innerServes says whether the inner server may get a request for a pool: at a Gateway it is not among the endpoints of one that fails open, nor
// can it be reached where the pool's engines are reached by TLS.
func (x *exchange) innerServes(pool objects.Name) bool {
	switch {
	case x.front != Own, x.server.Inner == "", x.back == "", x.errand != nil && x.errand.Last:
		return false
	case !x.atGateway():
		return true
	}
	p := x.server.Fleet.View().World.Pools[pool]
	return p != nil && !p.Picker.Open && (p.Settings == nil || p.Settings.EngineTLS == nil)
}

// atGateway says whether the request came in at a Gateway of ours, where each pool is a cluster of its own.
func (x *exchange) atGateway() bool { return x.listener != "" || x.pool != (objects.Name{}) }

// addInner makes the inner server the last pick of a request whose model control can load elsewhere, if there are fewer picks than may be
// tried. Name is the client's name of the model, and now is when the request is sent.
func (x *exchange) addInner(name string, now time.Time) {
	if x.sealed = ""; !x.placed() || !x.innerServes(x.target.Pool) || x.search.id == "" && 1+strings.Count(x.to, ",") >= x.settings.Picks {
		return
	}
	e := x.errandOf(relaytoken.Again, relaytoken.Model{Name: name, Target: x.found})
	e.ID, e.SentAt = x.id, now.UnixNano()
	for i := range x.picks {
		if x.picks[i].Model == x.picks[0].Model {
			at := x.picks[i].Endpoint.Address
			e.Tried = append(e.Tried, relaytoken.Copy{Endpoint: at, At: x.reached(at), Model: x.known()})
		}
	}
	x.to, x.sealed = x.to+","+x.server.Inner, x.server.Errands.Seal(e)
}

func (x *exchange) errandOf(kind relaytoken.Kind, models ...relaytoken.Model) relaytoken.Errand {
	return relaytoken.Errand{Kind: kind, Back: x.back, Listener: x.listener, Given: x.pool, Models: models}
}

// sendToEach has the inner server send a call to each of several models. One that there is not is left out, unless the call wants all.
func (x *exchange) sendToEach() responses {
	naming := modelName
	if x.call.named.VModel {
		naming = vmodelName
	}
	view := x.server.Fleet.View()
	var models []relaytoken.Model
	for _, id := range x.call.named.IDs {
		target, _, err := x.admit(&ask{model: id, naming: naming}, view)
		missing := errors.Is(err, route.ErrUnknownModel) || errors.Is(err, errNoVModel)
		if missing && !kserve.WantsAll(x.in.ids) {
			continue
		}
		if err != nil {
			return x.fail(err, id)
		}
		models = append(models, relaytoken.Model{Name: id, Target: target})
	}
	if len(models) == 0 {
		return x.fail(errNoneFound, "")
	}
	if x.target = models[0].Target; !x.innerServes(x.target.Pool) {
		return x.fail(errSeveral, "")
	}
	return x.sendInner(relaytoken.Several, models...)
}

// searchEach makes the inner server ask one pool after the other for a stored response, at maxSearch endpoints at most.
func (x *exchange) searchEach(pools []objects.Name) responses {
	var models []relaytoken.Model
	for _, name := range pools {
		models = append(models, relaytoken.Model{Target: route.Target{Pool: name}})
	}
	x.target = models[0].Target
	return x.sendInner(relaytoken.Search, models...)
}

// sendInner sends a request to the inner server, by its headers.
func (x *exchange) sendInner(kind relaytoken.Kind, models ...relaytoken.Model) responses {
	x.toInner(kind, models...)
	return responses{x.withMetadata(answerHeaders(x.common()))}
}

// toInner lets a request go to the inner server alone, which decides nothing of it. It counts nowhere.
func (x *exchange) toInner(kind relaytoken.Kind, models ...relaytoken.Model) {
	e := x.errandOf(kind, models...)
	if e.All = kserve.WantsAll(x.in.ids); kind == relaytoken.Search {
		e.Most = int64(maxSearch / len(models))
	}
	x.to, x.sealed = x.server.Inner, x.server.Errands.Seal(e)
	x.phase = sent
}
