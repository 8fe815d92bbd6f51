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

// This file sends requests to the relay, a server in extproc that Envoy uses as an endpoint. If no
// endpoint has served a request, the relay sends it through Envoy again. It sends a call for
// several models to each of them, and a request for a stored response to each pool. It converts a
// REST request to a gRPC call if the engines accept only gRPC.

// openToken decrypts the token of a request from the relay. The token contains the listener or pool
// at which the client sent the request, and the target for which it was admitted.
func (x *exchange) openToken() error {
	if x.in.relayToken == "" || x.scope.front != Own || x.server.RelayTokens == nil {
		return nil
	}
	e, ok := x.server.RelayTokens.Open(x.in.relayToken)
	if !ok || e.Kind != relaytoken.Sent || len(e.Models) != 1 {
		return errRelayToken
	}
	x.scope.relayed, x.scope.listener, x.scope.pool, x.scope.rewrite = &e, e.Listener, e.Given, nil
	x.dispatcher.fallback.resume(&e)
	return nil
}

// relayServes reports whether the data plane can send a request for a pool to the relay. At a
// Gateway, the relay is an endpoint of every pool except pools that fail open and pools whose
// engines use TLS.
func (s *scope) relayServes(pool objects.Name) bool {
	switch {
	case s.front != Own, s.server.Relay == "", s.back == "", s.relayed != nil && s.relayed.Last:
		return false
	case !s.atGateway():
		return true
	}
	p := s.server.Fleet.View().World.Pools[pool]
	return p != nil && !p.Picker.Open && (p.Settings == nil || p.Settings.EngineTLS == nil)
}

// needsRelay reports whether control can load the request's model elsewhere and the pool allows
// another attempt.
func (d *dispatcher) needsRelay() bool {
	return d.placed() && d.scope.relayServes(d.target.Pool) &&
		(d.search.id != "" || 1+strings.Count(d.to, ",") < d.settings.EndpointsPerRequest)
}

// addRelay makes the relay the last pick if needsRelay. Name is the client's name of the model. The
// argument now is when the request is sent.
func (d *dispatcher) addRelay(name string, now time.Time) {
	if d.sealed = ""; !d.needsRelay() {
		return
	}
	e := d.scope.relayRequest(relaytoken.Again, relaytoken.Model{Name: name, Target: d.found})
	e.ID, e.SentAt, e.Fallback = d.id, now.UnixNano(), d.fallback.name
	for i := range d.picks {
		if d.picks[i].Model == d.picks[0].Model {
			at := d.picks[i].Endpoint.Address
			e.Tried = append(e.Tried, relaytoken.Copy{Endpoint: at, At: d.reached(at), Model: d.known()})
		}
	}
	d.to, d.sealed = d.to+","+d.server.Relay, d.server.RelayTokens.Seal(e)
}

func (s *scope) relayRequest(kind relaytoken.Kind, models ...relaytoken.Model) relaytoken.Request {
	return relaytoken.Request{Kind: kind, Back: s.back, Listener: s.listener, Given: s.pool, Models: models}
}

// sendToEach sends a call for several models to the relay, which calls each model. It skips unknown
// models, unless the call requires all models.
func (c *call) sendToEach() responses {
	naming := modelName
	if c.named.VModel {
		naming = vmodelName
	}
	view := c.server.Fleet.View()
	var models []relaytoken.Model
	for _, id := range c.named.IDs {
		target, _, err := c.dispatcher.admit(&ask{model: id, naming: naming}, view)
		missing := errors.Is(err, route.ErrUnknownModel) || errors.Is(err, errNoVModel)
		if missing && !kserve.WantsAll(c.in.ids) {
			continue
		}
		if err != nil {
			return c.fail(err, id)
		}
		models = append(models, relaytoken.Model{Name: id, Target: target})
	}
	if len(models) == 0 {
		return c.fail(errNoneFound, "")
	}
	if c.dispatcher.aim(models[0].Target); !c.scope.relayServes(models[0].Target.Pool) {
		return c.fail(errSeveral, "")
	}
	return c.sendToRelay(relaytoken.Several, models...)
}

// sendToRelay forwards a request to the relay. This needs only the request's headers.
func (x *exchange) sendToRelay(kind relaytoken.Kind, models ...relaytoken.Model) responses {
	x.dispatcher.relayTo(kind, models...)
	x.phase = sent
	return x.forward()
}

// relayTo makes the relay the only destination of a request. The request is not counted as in
// flight.
func (d *dispatcher) relayTo(kind relaytoken.Kind, models ...relaytoken.Model) {
	e := d.scope.relayRequest(kind, models...)
	e.Fallback = d.fallback.name
	if e.All = kserve.WantsAll(d.in.ids); kind == relaytoken.Search {
		e.Most = int64(maxSearch / len(models))
	}
	d.to, d.sealed = d.server.Relay, d.server.RelayTokens.Seal(e)
}

// converts reports whether the relay must convert the request to a gRPC call, because the engines
// of the pool accept only gRPC.
func (d *dispatcher) converts(p *objects.Pool) bool {
	return d.traits.converts && p != nil && p.CallsOnly && d.scope.relayServes(p.Name)
}
