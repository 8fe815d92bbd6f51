package stream

import (
	"cmp"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
)

// This file predicts the service of requests, by which their flows take turns.

// serviceOf returns the predicted service of a decided request: seconds of engine time, or tokens
// while times cannot be predicted. For a request without tokens, it is the service time of the
// model.
func serviceOf(d *dispatcher) flow.Service {
	is, demand := &d.first().Estimate, &d.demanded
	prompt, output, limit := float64(demand.Prompt), float64(demand.Output), float64(d.limit)
	switch {
	case d.traits.tokenless:
		return tokenless(demand.ServiceTime)
	case demand.Prompt == 0: // the policy reads no prompts
		return d.expects
	case is.Step > 0 && !d.unpredicted:
		return flow.Service{
			Prompt: prompt, Fixed: is.Load + is.Delay, PerToken: is.Longer, Tokens: output, Limit: limit,
			FirstToken: time.Duration(is.FirstToken() * float64(time.Second)), Step: time.Duration(is.Step * float64(time.Second)),
		}
	}
	return flow.Service{InTokens: true, Fixed: prompt, PerToken: flow.Generated, Tokens: output, Limit: limit}
}

// expectedService predicts the service of a request that is about to wait, before an endpoint is
// chosen. Most such requests go behind others without a decision, so that their prompts are not
// read. Their number of tokens then follows from the size of the body, 0 if that is unknown. Model
// is the client's name of the model.
func expectedService(d *dispatcher, model string, body int64) flow.Service {
	view := d.server.Fleet.View()
	request, learned := learnedOf(d, model, view)
	if d.traits.tokenless {
		return tokenless(d.server.serviceTime(view.World, d.statsKey(request, view.Snapshot.Pools[d.pool].BaseModel())))
	}
	demand := pick.Demand{Prompt: d.demanded.Prompt, Output: int(learned.Output())}
	if demand.Prompt == 0 {
		demand.Prompt = int(float64(body) / learned.BytesPerToken())
	}
	is := flow.Service{Prompt: float64(max(1, demand.Prompt)), Tokens: float64(demand.Output), Limit: float64(d.limit)}
	if is.Limit > 0 {
		is.Tokens = min(is.Tokens, is.Limit)
	}
	fixed, perToken, known := pick.Service(d.settings.Policy, view.Snapshot, d.pool, demand)
	if is.Fixed, is.PerToken, is.InTokens = fixed, perToken, !known; !known {
		is.Fixed, is.PerToken, is.Prompt = is.Prompt, flow.Generated, 0
	}
	return is
}

// learnedOf returns the statistics of earlier requests for the model of a request, which may be
// nil, and the request as far as they depend on it. Model is the client's name of the model.
func learnedOf(d *dispatcher, model string, view *endpointstate.View) (pick.Request, *endpointstate.RequestStats) {
	r := pick.Request{
		Pool: d.pool, Model: cmp.Or(d.target.Adapter, model), Base: !d.target.Open && d.target.Adapter == "", Open: d.target.Open,
	}
	return r, d.server.memory.RequestStats(d.statsKey(r, view.Snapshot.Pools[d.pool].BaseModel()))
}

// tokenless returns the service of a request without tokens from the service time of its model, in
// nanoseconds; 0 if that is unknown.
func tokenless(serviceTime int64) flow.Service {
	return flow.Service{Fixed: max(float64(serviceTime)*1e-9, leastService)}
}

// leastService is the service of a request without tokens whose service time is unknown, in
// seconds.
const leastService = 1e-3
