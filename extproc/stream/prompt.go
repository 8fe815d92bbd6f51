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

// prompt is what a request's prompt was made into while it is decided.
type prompt struct {
	hasher prefix.Hasher
	cached []int32
}

// demand is what a request asks of an engine at a time, for a policy that predicts how long it will take. Body is nil where it is not known; base
// is what engines call the base model.
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
	habit := d.server.Fleet.Habit(d.habitual(*request, base))
	of.Output, of.Block = int(habit.Output()), prefix.BlockBytes/habit.BytesPerToken()
	if body == nil {
		return
	}
	p := d.readPrompt(text, body, request)
	of.Prompt, d.bytes = int(float64(p.Bytes)/habit.BytesPerToken()), p.Bytes
	if p.MaxTokens > 0 {
		of.Output = min(of.Output, p.MaxTokens)
	}
}

// habitual is the model of a request as engines name it, by whom the base model is called base: by that it is known what its requests are like.
func (d *dispatcher) habitual(request pick.Request, base string) objects.ModelKey {
	if request.Base { // which its client may call otherwise than engines do
		return objects.ModelKey{Pool: d.target.Pool, ID: base}
	}
	return objects.ModelKey{Pool: d.target.Pool, ID: request.Model}
}

var prompts = sync.Pool{New: func() any { return new(prompt) }}

// readPrompt reads the prompt of a body, for a policy that asks who has how much of it. Engines know a base model under many names,
// and have its KV once.
func (d *dispatcher) readPrompt(r *openai.Request, body []byte, request *pick.Request) openai.Prompt {
	if d.prompt == nil {
		d.prompt = prompts.Get().(*prompt)
	}
	of := prefix.Scope{Pool: request.Pool, Adapter: d.target.Adapter}
	if request.Open { // nobody says whether it is an adapter
		of.Model = request.Model
	}
	p := d.prompt
	is := r.Prompt(body, of, &p.hasher)
	p.cached = d.server.Fleet.Cached(request, p.hasher.Blocks(), p.cached)
	request.Demand.Cached = p.cached
	return is
}

// promptSent notes that the endpoint that the request goes to will have its prompt, and so will another one that it turns out to be at: a data
// plane that is given several says at which it was.
func (d *dispatcher) promptSent() {
	if d.prompt == nil {
		return
	}
	d.server.Fleet.Sent(d.first().Endpoint.Number, d.prompt.hasher.Blocks())
	if d.scope.front != Own && len(d.picks) > 1 {
		d.inFlight.Asks(d.prompt.hasher.Blocks())
	}
}

// dropPrompt lets go of the prompt, once the request is decided or cannot be.
func (d *dispatcher) dropPrompt() {
	if d.prompt != nil {
		prompts.Put(d.prompt)
		d.prompt = nil
	}
}
