package stream

import (
	"cmp"
	"net/http"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
)

// This file predicts the service of requests, by which their flows take turns.

// serviceOf returns the predicted service of a decided request: seconds of engine time, or tokens
// while times cannot be predicted. For a request without tokens, it is the service time of the
// model.
func serviceOf(d *dispatcher) flow.Service {
	is, demand := &d.first().Estimate, &d.demanded
	prompt, output := float64(demand.Prompt), expectedOutput(d, float64(demand.Output))
	switch {
	case d.traits.tokenless:
		return tokenless(demand.ServiceTime)
	case demand.Prompt == 0: // the policy reads no prompts
		return d.expects
	case is.Step > 0 && !d.unpredicted:
		return flow.Service{
			Prompt: prompt, Fixed: is.Load + is.Delay, PerToken: is.Longer, Tokens: output,
			FirstToken: time.Duration(is.FirstToken() * float64(time.Second)), Step: time.Duration(is.Step * float64(time.Second)),
		}
	}
	return flow.Service{InTokens: true, Fixed: prompt, PerToken: flow.Generated, Tokens: output}
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
	is := flow.Service{Prompt: float64(max(1, d.demanded.Prompt)), Tokens: expectedOutput(d, learned.Output())}
	if d.demanded.Prompt == 0 {
		is.Prompt = max(1, float64(body)/learned.BytesPerToken())
	}
	demand := pick.Demand{Prompt: int(is.Prompt), Output: int(is.Tokens)}
	fixed, perToken, known := pick.Service(d.settings.Policy, view.Snapshot, d.pool, demand)
	if is.Fixed, is.PerToken, is.InTokens = fixed, perToken, !known; !known {
		is.Fixed, is.PerToken, is.Prompt = is.Prompt, flow.Generated, 0
	}
	return is
}

// expectedOutput returns the expected number of output tokens of a request. Usual is the mean of
// the model.
func expectedOutput(d *dispatcher, usual float64) float64 {
	limit := float64(d.limit)
	if limit > 0 {
		usual = min(usual, limit)
	}
	if d.server.Flow == nil {
		return usual
	}
	return d.server.Flow.Expected(answersOf(d), usual, limit)
}

// answersOf returns a hash of the route and the tenant of a request, or of its pool if no route
// admits it. The lengths of answers are learned by it. It returns 0 for requests without tokens and
// if the pool's flow is off. It allocates nothing.
func answersOf(d *dispatcher) uint64 {
	if d.server.Flow == nil || !d.settings.Flow || d.traits.tokenless {
		return 0
	}
	h := hash.Of(d.pool)
	if d.route != "" {
		h = hash.Of(d.route)
	}
	return max(1, hash.Fold(h, d.in.hashOf(d.target.Sharing.Or().TenantHeader)))
}

// noteSent connects a request that was sent to an endpoint with the outcome that will report the
// length of its answer.
func noteSent(d *dispatcher) {
	if d.answers = answersOf(d); d.answers != 0 {
		d.server.Flow.Sent(d.number, d.answers)
	}
}

// LengthOf returns the number of output tokens of an answer that ended well; -1 if it is unknown.
func LengthOf(o *outcome.Outcome) float64 {
	if tokens, known := o.Completion.Get(); known && o.Well() && o.Status == http.StatusOK {
		return tokens
	}
	return -1
}

// learnedOf returns the statistics of earlier requests for the model of a request, which may be
// nil, and the fields of the request that identify the model. Model is the client's name of the
// model.
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
