package stream

import (
	"sync"

	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
)

// prompt is what a request's prompt was made into while it is decided.
type prompt struct {
	hasher prefix.Hasher
	cached []int32
}

var prompts = sync.Pool{New: func() any { return new(prompt) }}

// readPrompt reads the prompt of a body, for a policy that asks who has how much of it. Engines know a base model under many names,
// and have its KV once.
func (x *exchange) readPrompt(r openai.Request, body []byte, request *pick.Request) {
	if x.prompt == nil {
		x.prompt = prompts.Get().(*prompt)
	}
	of := prefix.Scope{Pool: request.Pool, Adapter: x.target.Adapter}
	if request.Open { // nobody says whether it is an adapter
		of.Model = request.Model
	}
	p := x.prompt
	d := &request.Demand
	d.Prompt = r.Prompt(body, of, &p.hasher).Bytes / prefix.TokenBytes
	p.cached = x.server.Fleet.Cached(p.hasher.Blocks(), p.cached)
	d.Cached, d.Block = p.cached, prefix.BlockTokens
}

// promptSent notes that the endpoint that the request goes to will have its prompt.
func (x *exchange) promptSent() {
	if x.prompt != nil {
		x.server.Fleet.Sent(x.decision().Endpoint.Number, x.prompt.hasher.Blocks())
	}
}

// dropPrompt lets go of the prompt, once the request is decided or cannot be.
func (x *exchange) dropPrompt() {
	if x.prompt != nil {
		prompts.Put(x.prompt)
		x.prompt = nil
	}
}
