package stream

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/internal/objects"
)

// common returns the changes to make to the request's headers.
func (d *dispatcher) common() *processing.Changes {
	changes := &processing.Changes{
		Set:    append(make([]processing.Header, 0, 4), header(wire.DestinationHeader, d.to)),
		Remove: d.in.control,
		// If the client's route names the pool, the route has already chosen the cluster, maybe by
		// weight.
		ClearRouteCache: d.scope.pool == (objects.Name{}) || d.scope.relayed != nil,
	}
	changes.Set = append(changes.Set, d.retries()...)
	if left := d.left(); left > 0 && d.scope.front == Own {
		changes.Set = append(changes.Set, header(wire.TimeoutHeader, strconv.FormatInt(left.Milliseconds(), 10)))
	}
	if d.traits.call && d.spent > 0 && d.in.deadline() > 0 {
		changes.Set = append(changes.Set, header("grpc-timeout", timeout(d.in.deadline()-d.spent)))
	}
	if d.traits.tokenless && d.model != "" {
		for _, h := range kserve.Written(d.model) {
			changes.Set = append(changes.Set, header(h.Name, h.Value))
		}
	}
	if d.sealed != "" {
		changes.Set = append(changes.Set, header(wire.RelayTokenHeader, d.sealed))
	}
	switch {
	case !d.replaced:
	case d.token == "":
		changes.Remove = append(slices.Clip(changes.Remove), wire.AuthorizationHeader)
	default:
		changes.Set = append(changes.Set, header(wire.AuthorizationHeader, "Bearer "+d.token))
	}
	if d.scope.listener != "" || d.scope.relayed != nil && d.scope.pool != (objects.Name{}) {
		cluster := wire.PoolCluster
		if d.traits.call {
			cluster = wire.PoolCallsCluster
		}
		changes.Set = append(changes.Set, header(wire.PoolHeader, cluster(d.target.Pool.Namespace, d.target.Pool.Name)))
	}
	return changes
}

// destination formats picks as the endpoint-picker protocol requires. All endpoints get the same
// body, so it drops picks whose engine has another name for the model than the first pick's engine.
func destination(picks []pick.Decision, reached func(endpoint string) string) string {
	if len(picks) == 1 {
		return reached(picks[0].Endpoint.Address)
	}
	list := make([]string, 0, 8)
	for i := range picks {
		if picks[i].Model == picks[0].Model {
			list = append(list, reached(picks[i].Endpoint.Address))
		}
	}
	return strings.Join(list, ",")
}

// reached returns the address to which the data plane must send the request. Headgate's own Envoy
// can use a separate port for gRPC or HTTP; other gateways know only the endpoint's address.
func (d *dispatcher) reached(endpoint string) string {
	switch {
	case d.scope.front != Own:
		return endpoint
	case d.traits.call:
		return d.world.Reached(endpoint, objects.GRPC)
	}
	return d.world.Reached(endpoint, objects.HTTP)
}

// addMetadata completes the message that forwards a request. It adds the destination for the
// cluster and the decision for the access log. Then it releases the decision.
func (d *dispatcher) addMetadata(m *message) {
	m.Metadata = processing.NewStruct(metadataBytes)
	to := &m.Metadata
	destination := to.Begin(wire.DestinationNamespace)
	to.Text(wire.DestinationHeader, d.to)
	addScores(d, to)
	to.End(destination)
	pick := to.Begin(wire.PickNamespace)
	addPick(d, to)
	to.End(pick)
	d.limited.addMetadata(to)
	d.announced = true
	d.dropPicks()
	d.token, d.sealed = "", ""
}

// metadataBytes is the room for the metadata of a decision. Few decisions need more.
const metadataBytes = 512

// addPick adds the decision for the access log.
func addPick(d *dispatcher, to *processing.Struct) {
	to.Text(wire.PickPool, d.pool)
	to.Text(wire.PickModel, d.model)
	to.Text(wire.PickReason, d.reason())
	to.Bool(wire.PickStream, d.stream)
	if d.noUsage {
		to.Bool(wire.PickNoUsage, true)
	}
	to.Text(wire.PickID, d.id)
	if d.route != "" {
		to.Text(wire.PickRoute, d.route)
	}
	if d.found.Adapter != "" && d.found.Adapter != d.target.Adapter {
		to.Text(wire.PickVModel, d.found.Adapter)
	}
	if d.search.id != "" {
		to.Text(wire.PickStored, d.search.id)
		to.Bool(wire.PickEverybody, d.search.everybody)
	}
	if d.scope.relayed != nil {
		to.Bool(wire.PickRelay, true)
		if d.scope.relayed.Last {
			to.Bool(wire.PickAgain, true)
		}
	}
	if len(d.picks) > 0 && d.first().Copy.Unlisted {
		to.Bool(wire.PickUnlisted, d.begunAt.UnixNano() >= d.first().Copy.Own)
	}
	if d.traits.messages {
		to.Bool(wire.PickMessages, true)
	}
	if d.settings.FinalUnavailable {
		to.Bool(wire.PickUnavailable, false)
	}
	if d.fallback.name != "" {
		to.Text(wire.PickFallbackName, d.fallback.name)
	}
	d.expect(to)
	if d.spent > 0 {
		to.Number(wire.PickHold, float64(d.spent.Microseconds()))
		to.Text(wire.PickWaitFor, d.why.Reason())
	}
	if d.target.Priority != 0 {
		to.Number(wire.PickBand, float64(d.target.Priority))
	}
}

// addScores adds the predicted seconds to the first token at each ranked endpoint that has a
// prediction, if scores are reported and there is a prediction.
func addScores(d *dispatcher, to *processing.Struct) {
	if !d.server.EmitScores || !slices.ContainsFunc(d.ranked, predicted) {
		return
	}
	scores := to.Begin(wire.ScoresKey)
	for i := range d.ranked {
		if at := &d.ranked[i]; predicted(*at) {
			to.Number(d.reached(at.Endpoint.Address), math.Round(at.Estimate.FirstToken()*1e6)/1e6)
		}
	}
	to.End(scores)
}

// predicted reports whether a decision has a prediction.
func predicted(d pick.Decision) bool { return d.Estimate != (pick.Estimate{}) }

// expect adds the predictions for the request to the metadata.
func (d *dispatcher) expect(to *processing.Struct) {
	if d.bytes > 0 {
		to.Number(wire.PickBytes, float64(d.bytes))
	}
	if len(d.picks) == 0 {
		return
	}
	first := d.first()
	if d.among > 0 {
		to.Number(wire.PickAmong, float64(d.among))
	}
	if d.unpredicted {
		to.Text(wire.PickFallback, "waiting for measurements")
	}
	for i := range d.explained {
		at := to.Begin([...]string{wire.PickExpected, wire.PickRunnerUp}[i])
		addExplained(to, &d.explained[i])
		to.End(at)
	}
	if first.Estimate == (pick.Estimate{}) {
		return
	}
	to.Number(wire.PickFirstToken, float64(d.expected.Microseconds()))
	if d.adapter != "" {
		to.Text(wire.PickAdapter, d.adapter)
		to.Number(wire.PickLoad, float64(d.loading.Microseconds()))
	}
}

// addExplained adds what the policy compared of an endpoint: numbers of requests and adapters, and
// the terms of policy latency: times in seconds, and costs as shares of the objectives.
func addExplained(to *processing.Struct, c *ring.Candidate) {
	is := &c.Estimate
	to.Text("endpoint", c.Endpoint)
	to.Text("state", c.State.String())
	to.Text("reason", c.Reason)
	to.Number("requests", float64(c.Requests))
	if c.ForAdapter >= 0 {
		to.Number("adapter_requests", float64(c.ForAdapter))
		to.Number("active_adapters", float64(c.Adapters))
	}
	if *is == (pick.Estimate{}) {
		return
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"frontend_overhead", is.FrontendOverhead},
		{"queue", is.Queue},
		{"room", is.Room},
		{"load", is.Load},
		{"prefill", is.Prefill},
		{"delay", is.Delay},
		{"first_token", is.FirstToken()},
		{"step", is.Step},
		{"longer", is.Longer},
		{"own", is.Own},
		{"others", is.Others},
	} {
		to.Number(f.name, math.Round(f.value*1e6)/1e6)
	}
}

// retries returns the header that limits Envoy's retries for a search for a stored response; nil
// for other requests.
func (d *dispatcher) retries() []processing.Header {
	if d.search.id == "" {
		return nil
	}
	return []processing.Header{header(wire.RetriesHeader, strconv.Itoa(strings.Count(d.to, ",")))}
}
