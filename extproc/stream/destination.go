package stream

import (
	"math"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// common returns the changes to make to the request's headers.
func (d *dispatcher) common() *extprocv3.CommonResponse {
	mutation := &extprocv3.HeaderMutation{
		SetHeaders:    []*corev3.HeaderValueOption{header(wire.DestinationHeader, d.to)},
		RemoveHeaders: d.in.control,
	}
	mutation.SetHeaders = append(mutation.SetHeaders, d.retries()...)
	if left := d.left(); left > 0 && d.scope.front == Own {
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.TimeoutHeader, strconv.FormatInt(left.Milliseconds(), 10)))
	}
	if d.traits.call && d.spent > 0 && d.in.deadline() > 0 {
		mutation.SetHeaders = append(mutation.SetHeaders, header("grpc-timeout", timeout(d.in.deadline()-d.spent)))
	}
	if d.traits.tokenless && d.model != "" {
		for _, h := range kserve.Written(d.model) {
			mutation.SetHeaders = append(mutation.SetHeaders, header(h.Name, h.Value))
		}
	}
	if d.sealed != "" {
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.RelayTokenHeader, d.sealed))
	}
	switch {
	case !d.replaced:
	case d.token == "":
		mutation.RemoveHeaders = append(slices.Clip(mutation.RemoveHeaders), wire.AuthorizationHeader)
	default:
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.AuthorizationHeader, "Bearer "+d.token))
	}
	if d.scope.listener != "" || d.scope.relayed != nil && d.scope.pool != (objects.Name{}) {
		cluster := wire.PoolCluster
		if d.traits.call {
			cluster = wire.PoolCallsCluster
		}
		mutation.SetHeaders = append(mutation.SetHeaders, header(wire.PoolHeader, cluster(d.target.Pool.Namespace, d.target.Pool.Name)))
	}
	// If the client's route names the pool, the route has already chosen the cluster, maybe by
	// weight.
	return &extprocv3.CommonResponse{HeaderMutation: mutation, ClearRouteCache: d.scope.pool == (objects.Name{}) || d.scope.relayed != nil}
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
func (d *dispatcher) addMetadata(m *extprocv3.ProcessingResponse) {
	pick := map[string]*structpb.Value{
		wire.PickPool:   structpb.NewStringValue(d.pool),
		wire.PickModel:  structpb.NewStringValue(d.model),
		wire.PickReason: structpb.NewStringValue(d.reason()),
		wire.PickStream: structpb.NewBoolValue(d.stream),
		wire.PickID:     structpb.NewStringValue(d.id),
	}
	if d.route != "" {
		pick[wire.PickRoute] = structpb.NewStringValue(d.route)
	}
	if d.found.Adapter != "" && d.found.Adapter != d.target.Adapter {
		pick[wire.PickVModel] = structpb.NewStringValue(d.found.Adapter)
	}
	if d.search.id != "" {
		pick[wire.PickStored] = structpb.NewStringValue(d.search.id)
		pick[wire.PickEverybody] = structpb.NewBoolValue(d.search.everybody)
	}
	if d.scope.relayed != nil {
		pick[wire.PickRelay] = structpb.NewBoolValue(true)
		if d.scope.relayed.Last {
			pick[wire.PickAgain] = structpb.NewBoolValue(true)
		}
	}
	if len(d.picks) > 0 && d.first().Copy.Unlisted {
		pick[wire.PickUnlisted] = structpb.NewBoolValue(d.begunAt.UnixNano() >= d.first().Copy.Own)
	}
	if d.traits.messages {
		pick[wire.PickMessages] = structpb.NewBoolValue(true)
	}
	if d.settings.FinalUnavailable {
		pick[wire.PickUnavailable] = structpb.NewBoolValue(false)
	}
	if d.fallback.name != "" {
		pick[wire.PickFallbackName] = structpb.NewStringValue(d.fallback.name)
	}
	d.expect(pick)
	if d.spent > 0 {
		pick[wire.PickHold] = structpb.NewNumberValue(float64(d.spent.Microseconds()))
		pick[wire.PickWaitFor] = structpb.NewStringValue(d.why.Reason())
	}
	if d.target.Priority != 0 {
		pick[wire.PickBand] = structpb.NewNumberValue(float64(d.target.Priority))
	}
	destination := map[string]*structpb.Value{wire.DestinationHeader: structpb.NewStringValue(d.to)}
	if scores := d.scores(); scores != nil {
		destination[wire.ScoresKey] = structpb.NewStructValue(object(scores))
	}
	spaces := map[string]*structpb.Value{
		wire.DestinationNamespace: structpb.NewStructValue(object(destination)),
		wire.PickNamespace:        structpb.NewStructValue(object(pick)),
	}
	if rates := d.limited.metadata(); rates != nil {
		spaces[wire.RateLimitNamespace] = structpb.NewStructValue(rates)
	}
	m.DynamicMetadata = object(spaces)
	d.announced = true
	d.dropPicks()
	d.token, d.sealed = "", ""
}

// scores returns the predicted seconds to the first token at each ranked endpoint that has a
// prediction; nil if there is none, or if scores are not reported.
func (d *dispatcher) scores() map[string]*structpb.Value {
	if !d.server.EmitScores {
		return nil
	}
	scores := make(map[string]*structpb.Value, len(d.ranked))
	for i := range d.ranked {
		if at := &d.ranked[i]; at.Estimate != (pick.Estimate{}) {
			scores[d.reached(at.Endpoint.Address)] = structpb.NewNumberValue(math.Round(at.Estimate.FirstToken()*1e6) / 1e6)
		}
	}
	if len(scores) == 0 {
		return nil
	}
	return scores
}

func object(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: fields}
}

// expect adds the predictions for the request to the metadata.
func (d *dispatcher) expect(to map[string]*structpb.Value) {
	if d.bytes > 0 {
		to[wire.PickBytes] = structpb.NewNumberValue(float64(d.bytes))
	}
	if len(d.picks) == 0 {
		return
	}
	first := d.first()
	if d.among > 0 {
		to[wire.PickAmong] = structpb.NewNumberValue(float64(d.among))
	}
	if d.unpredicted {
		to[wire.PickFallback] = structpb.NewStringValue("waiting for measurements")
	}
	for i := range d.explained {
		to[[...]string{wire.PickExpected, wire.PickRunnerUp}[i]] = structpb.NewStructValue(explained(&d.explained[i]))
	}
	if first.Estimate == (pick.Estimate{}) {
		return
	}
	to[wire.PickFirstToken] = structpb.NewNumberValue(float64(d.expected.Microseconds()))
	if d.adapter != "" {
		to[wire.PickAdapter] = structpb.NewStringValue(d.adapter)
		to[wire.PickLoad] = structpb.NewNumberValue(float64(d.loading.Microseconds()))
	}
}

// explained returns what the policy compared of an endpoint: numbers of requests and adapters, and
// the terms of policy latency: times in seconds, and costs as shares of the objectives.
func explained(c *ring.Candidate) *structpb.Struct {
	is := &c.Estimate
	fields := map[string]*structpb.Value{
		"endpoint": structpb.NewStringValue(c.Endpoint), "state": structpb.NewStringValue(c.State.String()),
		"reason": structpb.NewStringValue(c.Reason), "requests": structpb.NewNumberValue(float64(c.Requests)),
	}
	if c.ForAdapter >= 0 {
		fields["adapter_requests"] = structpb.NewNumberValue(float64(c.ForAdapter))
		fields["active_adapters"] = structpb.NewNumberValue(float64(c.Adapters))
	}
	if *is == (pick.Estimate{}) {
		return object(fields)
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
		fields[f.name] = structpb.NewNumberValue(math.Round(f.value*1e6) / 1e6)
	}
	return object(fields)
}

// retries returns the header that limits Envoy's retries for a search for a stored response; nil
// for other requests.
func (d *dispatcher) retries() []*corev3.HeaderValueOption {
	if d.search.id == "" {
		return nil
	}
	return []*corev3.HeaderValueOption{header(wire.RetriesHeader, strconv.Itoa(strings.Count(d.to, ",")))}
}
