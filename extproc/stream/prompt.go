package stream

import (
	"math"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
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
func (x *exchange) demand(a ask, body []byte, base string, now time.Time, request *pick.Request) {
	d := &request.Demand
	d.Now = fleet.Steady(now).UnixNano()
	for _, o := range x.target.Objectives {
		switch seconds := o.Latency.Value.Seconds(); o.Type {
		case v1alpha1.TimeToFirstToken:
			d.FirstToken = seconds
		case v1alpha1.OutputTokenLatency:
			d.PerToken, d.Stated = seconds, true
		}
	}
	habit := x.server.Fleet.Habit(x.habitual(*request, base))
	d.Output, d.Block = int(habit.Output()), prefix.BlockBytes/habit.BytesPerToken()
	if body == nil {
		return
	}
	p := x.readPrompt(a.text, body, request)
	d.Prompt, x.bytes = int(float64(p.Bytes)/habit.BytesPerToken()), p.Bytes
	if p.MaxTokens > 0 {
		d.Output = min(d.Output, p.MaxTokens)
	}
}

// habitual is the model of a request as engines name it, by whom the base model is called base: by that it is known what its requests are like.
func (x *exchange) habitual(request pick.Request, base string) objects.ModelKey {
	if request.Base { // which its client may call otherwise than engines do
		return objects.ModelKey{Pool: x.target.Pool, ID: base}
	}
	return objects.ModelKey{Pool: x.target.Pool, ID: request.Model}
}

var prompts = sync.Pool{New: func() any { return new(prompt) }}

// readPrompt reads the prompt of a body, for a policy that asks who has how much of it. Engines know a base model under many names,
// and have its KV once.
func (x *exchange) readPrompt(r openai.Request, body []byte, request *pick.Request) openai.Prompt {
	if x.prompt == nil {
		x.prompt = prompts.Get().(*prompt)
	}
	of := prefix.Scope{Pool: request.Pool, Adapter: x.target.Adapter}
	if request.Open { // nobody says whether it is an adapter
		of.Model = request.Model
	}
	p := x.prompt
	is := r.Prompt(body, of, &p.hasher)
	p.cached = x.server.Fleet.Cached(request, p.hasher.Blocks(), p.cached)
	request.Demand.Cached = p.cached
	return is
}

// promptSent notes that the endpoint that the request goes to will have its prompt, and so will another one that it turns out to be at: a data
// plane that is given several says at which it was.
func (x *exchange) promptSent() {
	if x.prompt == nil {
		return
	}
	x.server.Fleet.Sent(x.decision().Endpoint.Number, x.prompt.hasher.Blocks())
	if x.front != Own && len(x.picks) > 1 {
		x.inFlight.Asks(x.prompt.hasher.Blocks())
	}
}

// dropPrompt lets go of the prompt, once the request is decided or cannot be.
func (x *exchange) dropPrompt() {
	if x.prompt != nil {
		prompts.Put(x.prompt)
		x.prompt = nil
	}
}

// expect writes what was expected of the request into the metadata of its decision.
func (x *exchange) expect(to map[string]*structpb.Value) {
	if x.bytes > 0 {
		to[wire.PickBytes] = structpb.NewNumberValue(float64(x.bytes))
	}
	if len(x.picks) == 0 {
		return
	}
	d := x.decision()
	if x.among > 0 {
		to[wire.PickAmong] = structpb.NewNumberValue(float64(x.among))
	}
	if d.Estimate == (pick.Estimate{}) {
		return
	}
	to[wire.PickFirstToken] = structpb.NewNumberValue(float64(x.expected.Microseconds()))
	if x.adapter != "" {
		to[wire.PickAdapter] = structpb.NewStringValue(x.adapter)
		to[wire.PickLoad] = structpb.NewNumberValue(float64(x.loading.Microseconds()))
	}
	if !x.server.ExplainPicks {
		return
	}
	to[wire.PickExpected] = structpb.NewStructValue(explained(d))
	if len(x.ranked) > 1 {
		to[wire.PickRunnerUp] = structpb.NewStructValue(explained(&x.ranked[1]))
	}
}

// explained is why the policy thinks of a decision what it does: seconds, and what they are as shares of objectives.
func explained(d *pick.Decision) *structpb.Struct {
	is := &d.Estimate
	fields := map[string]*structpb.Value{"endpoint": structpb.NewStringValue(d.Endpoint.Address)}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"intake", is.Intake},
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
