package stream

import (
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/openai"
)

// size is the size of a request, as far as it bounds the tokens that an engine can report.
type size struct {
	// body is the size of the body in bytes; 0 if extproc does not get it.
	body   int
	prompt openai.Prompt
	// elsewhere means that a part of the prompt is not in this body: the data plane sends only the
	// beginning, or the request continues a stored response.
	elsewhere bool
}

const (
	// unknownContext is the context length of a model whose engine reports none, in tokens.
	unknownContext = 1 << 20
	// templateTokens is the maximum number of tokens that a chat template adds to a prompt.
	templateTokens = limits.Believed
)

// tokens returns the largest number of tokens that the prompt and the answers can have. Context is
// the context length of the model, 0 if it is unknown. A token of text has at least one byte.
func (s size) tokens(context int) int64 {
	if context <= 0 {
		context = unknownContext
	}
	prompt, answer := s.body+templateTokens, context
	if s.prompt.Answers == 0 { // such as a query that the engine combines with each document
		prompt *= max(1, s.body)
	}
	if s.body == 0 || s.prompt.Attached || s.elsewhere {
		prompt += context
	}
	if most := s.prompt.MaxTokens; most > 0 {
		answer = min(answer, most)
	}
	return int64(prompt) + int64(answer)*int64(max(1, s.prompt.Answers))
}

// bound returns the largest number of tokens of a request that was sent to an endpoint. The result
// may be called later, without the request.
func (s size) bound(d *dispatcher) func() int64 {
	of, pool := d.server.Fleet, d.target.Pool
	return func() int64 {
		return s.tokens(fleet.Read(of, func(state *endpointstate.State) int { return endpointstate.LongestContext(state, pool) }))
	}
}
