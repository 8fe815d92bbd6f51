package stream

import (
	"errors"
	"slices"
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
	hashed
	cached []int32
}

// hashed is a prompt without its text.
type hashed struct {
	seed   uint64 // of its scope without the salt; see [prefix.Scope]
	is     openai.Prompt
	blocks []uint64 // nil if the prompt is not hashed yet
}

// mostKept limits the blocks that a request keeps while it waits to 4 KB, for a prompt of 128 KiB.
// A longer prompt is hashed again whenever the request is decided again, in 0.5 ms for 1 MiB.
const mostKept = 512

// keptPrompt returns what a request keeps of its prompt after it was decided with this error: nil
// unless it will be decided again.
func keptPrompt(d *dispatcher, err error) *hashed {
	p := d.prompt
	switch {
	case err == nil || p == nil || p.blocks == nil || len(p.blocks) > mostKept || !errors.As(err, new(*notReady)):
		return nil
	case d.kept != nil && d.kept.seed == p.seed:
		return d.kept
	}
	is := p.hashed
	is.blocks = slices.Clone(is.blocks)
	return &is
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

// readPrompt hashes the prompt unless it is hashed already, and finds how much of it is in each
// endpoint's prefix cache. The cache of a base model is the same for all its names.
func (d *dispatcher) readPrompt(r *openai.Request, body []byte, request *pick.Request) openai.Prompt {
	if d.prompt == nil {
		d.prompt = prompts.Get().(*prompt)
	}
	of := prefix.Scope{Pool: request.Pool, Adapter: d.target.Adapter}
	if request.Open { // the name may be that of an adapter
		of.Model = request.Model
	}
	p, seed := d.prompt, of.Seed()
	switch {
	case p.blocks != nil && p.seed == seed:
	case d.kept != nil && d.kept.seed == seed:
		p.hashed = *d.kept
	default:
		p.hashed = hashed{seed, r.Prompt(body, of, &p.hasher), p.hasher.Blocks()}
	}
	p.cached = d.server.memory.Cached(request, p.blocks, p.cached)
	request.Demand.Cached = p.cached
	return p.is
}

// promptSent records that the first pick will have the prompt in its cache. Another data plane may
// choose another pick and report it; the prompt is then recorded there too.
func (d *dispatcher) promptSent() {
	if d.prompt == nil {
		return
	}
	d.server.Fleet.Sent(d.first().Endpoint.Number, d.prompt.blocks)
	if d.scope.front != Own && len(d.picks) > 1 {
		d.inFlight.Asks(d.prompt.blocks)
	}
}

// dropPrompt puts the prompt's memory back into the sync.Pool.
func (d *dispatcher) dropPrompt() {
	if d.prompt != nil {
		d.prompt.hashed = hashed{}
		prompts.Put(d.prompt)
		d.prompt = nil
	}
}
