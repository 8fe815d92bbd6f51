package stream

import (
	"sync"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/internal/objects"
)

// prompt is the hashed prompt of a request that is being decided.
type prompt struct {
	hasher prefix.Hasher
	cached []int32
}

// demand fills in the fields of request that policies with predictions use. Body is nil if it is
// unknown. Base is the engine's name of the base model.
func (d *dispatcher) demand(text *openai.Request, body []byte, base string, now time.Time, request *pick.Request) {
	of := &request.Demand
	of.Now = fleet.Steady(now).UnixNano()
	for _, o := range d.target.Objectives {
		switch seconds := o.Latency.Value.Seconds(); o.Type {
		case v1alpha1.TimeToFirstToken:
			of.FirstToken = seconds
		case v1alpha1.OutputTokenLatency:
			of.PerToken, of.Stated = seconds, true
		}
	}
	habit := d.server.memory.RequestStats(d.statsKey(*request, base))
	of.Output, of.Block = int(habit.Output()), prefix.BlockBytes/habit.BytesPerToken()
	if body == nil {
		return
	}
	p := d.readPrompt(text, body, request)
	of.Prompt, d.bytes = int(float64(p.Bytes)/habit.BytesPerToken()), p.Bytes
	if d.limit = p.MaxTokens; p.MaxTokens > 0 {
		of.Output = min(of.Output, p.MaxTokens)
	}
}

// statsKey returns the model whose statistics apply to the request, by the engine's name.
func (d *dispatcher) statsKey(request pick.Request, base string) objects.ModelKey {
	if request.Base { // the client may use another name for the base model
		return objects.ModelKey{Pool: d.target.Pool, ID: base}
	}
	return objects.ModelKey{Pool: d.target.Pool, ID: request.Model}
}

var prompts = sync.Pool{New: func() any { return new(prompt) }}

// readPrompt hashes the prompt, and finds how much of it is in each endpoint's prefix cache. The
// cache of a base model is the same for all its names.
func (d *dispatcher) readPrompt(r *openai.Request, body []byte, request *pick.Request) openai.Prompt {
	if d.prompt == nil {
		d.prompt = prompts.Get().(*prompt)
	}
	of := prefix.Scope{Pool: request.Pool, Adapter: d.target.Adapter}
	if request.Open { // the name may be that of an adapter
		of.Model = request.Model
	}
	p := d.prompt
	is := r.Prompt(body, of, &p.hasher)
	p.cached = d.server.memory.Cached(request, p.hasher.Blocks(), p.cached)
	request.Demand.Cached = p.cached
	return is
}

// promptSent records that the first pick will have the prompt in its cache. Another data plane may
// choose another pick and report it; the prompt is then recorded there too.
func (d *dispatcher) promptSent() {
	if d.prompt == nil {
		return
	}
	d.server.Fleet.Sent(d.first().Endpoint.Number, d.prompt.hasher.Blocks())
	if d.scope.front != Own && len(d.picks) > 1 {
		d.inFlight.Asks(d.prompt.hasher.Blocks())
	}
}

// dropPrompt puts the prompt's memory back into the sync.Pool.
func (d *dispatcher) dropPrompt() {
	if d.prompt != nil {
		prompts.Put(d.prompt)
		d.prompt = nil
	}
}
