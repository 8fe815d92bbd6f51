package llm

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/sim"
)

// fingerprint is the system_fingerprint of answers.
const fingerprint = "vllm-0.32.0-headgate-sim"

// completionTokens is the default output length of /v1/completions.
const completionTokens = 16

// generation is a text that is being generated: the request to the engine, and what the answer
// needs.
type generation struct {
	c       *call
	ask     ask
	ticket  *ticket
	model   string // model name in the answer
	id      string // id of the answer without the prefix for its kind
	created int64  // Unix time in seconds
}

// prompt has the tokens of a prompt and the length of its text.
type prompt struct {
	tokens     []uint32
	characters int
}

// add appends a text to the prompt.
func (p *prompt) add(text string) {
	p.tokens = appendTokens(p.tokens, text)
	p.characters += characters(text)
}

// addContent appends the content of a message: text, or a list of parts.
func (p *prompt) addContent(content gjson.Result) *failure {
	switch {
	case content.Type == gjson.String:
		p.add(content.Str)
	case content.IsArray():
		content.ForEach(func(_, part gjson.Result) bool {
			if text := part.Get("text"); text.Type == gjson.String {
				p.add(text.Str)
			} else {
				p.tokens = append(p.tokens, partOther)
			}
			return true
		})
	case content.Type != gjson.Null:
		return malformed("string_type", "body.messages.content", "Input should be a valid string", describe(content))
	}
	return nil
}

// addMessages appends the messages of a conversation. An assistant's message becomes its role token
// and its text. A prompt for an answer ends with the role token, so this prompt plus its answer is
// a prefix of the next prompt.
func (p *prompt) addMessages(messages gjson.Result) (f *failure) {
	messages.ForEach(func(_, m gjson.Result) bool {
		if !m.IsObject() || m.Get("role").Type != gjson.String {
			f = malformed("missing", "body.messages.role", "Field required", describe(m))
			return false
		}
		p.tokens = append(p.tokens, roleToken(m.Get("role").Str))
		f = p.addContent(m.Get("content"))
		return f == nil
	})
	return f
}

// chatPrompt returns the prompt for the next answer of a conversation. system is a separate system
// prompt, if there is one.
func chatPrompt(system, messages gjson.Result) (prompt, *failure) {
	p := prompt{tokens: make([]uint32, 0, len(messages.Raw)/3+8)}
	if system.Exists() {
		p.tokens = append(p.tokens, roleSystem)
		if f := p.addContent(system); f != nil {
			return p, f
		}
	}
	before := len(p.tokens)
	if f := p.addMessages(messages); f != nil {
		return p, f
	}
	if len(p.tokens) == before {
		return p, bad("", "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	p.tokens = append(p.tokens, roleAssistant)
	return p, nil
}

// generate prepares a generation and submits it to the engine. See prepare for the parameters.
func (c *call) generate(a ask, otherwise int, render func() (prompt, *failure)) (*generation, *failure) {
	g, f := c.prepare(a, otherwise, render)
	if f == nil {
		f = c.submit(g.ticket)
	}
	return g, f
}

// prepare returns a generation that is not submitted yet. render returns its prompt, and is called
// after the model is resolved. otherwise is the default output length; 0 means that the model
// decides when to end.
func (c *call) prepare(a ask, otherwise int, render func() (prompt, *failure)) (*generation, *failure) {
	model, adapter, f := c.s.resolve(a.model)
	if f != nil {
		return nil, f
	}
	p, f := render()
	if f != nil {
		return nil, f
	}
	if f := c.s.check(a, p); f != nil {
		return nil, f
	}
	room := c.s.config.MaxModelLen - len(p.tokens)
	speech := newSpeech(c.s.config.Seed, model, p.tokens)
	limit, stops := room, false
	switch natural := speech.length(); {
	case a.maxTokensSet:
		limit = a.maxTokens
	case otherwise > 0:
		limit = min(room, otherwise)
	case !a.ignoreEOS && natural < room:
		limit, stops = natural, true
	}
	t := &ticket{
		request:   sim.Request{Adapter: adapter, Prompt: p.tokens, Output: speech.tokens(limit)},
		streams:   a.stream,
		maxTokens: limit,
	}
	if stops {
		t.maxTokens = room
	}
	t.stops = stops || a.complete
	return &generation{c: c, ask: a, ticket: t, model: model, id: c.requestID(), created: unixNow()}, nil
}

// check validates the values of a request and the length of its prompt.
func (s *Server) check(a ask, p prompt) *failure {
	longest := s.config.MaxModelLen
	switch {
	case a.maxTokensSet && a.maxTokens < 1:
		return badValue("max_tokens", a.maxTokens, "max_tokens must be at least 1, got %d.", a.maxTokens)
	case a.maxTokensSet && a.maxTokens > longest:
		return badValue("max_tokens", a.maxTokens,
			"max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", a.maxTokens, longest)
	case a.temperature < 0:
		t := number(a.temperature)
		return badValue("temperature", t, "temperature must be non-negative, got %s.", t)
	case a.n > 1 && a.temperature == 0:
		return bad("", "n must be 1 when using greedy sampling, got %d.", a.n)
	case a.n != 1:
		return bad("n", "the simulated engine makes one choice, got n=%d", a.n)
	case p.characters > tokenBytes*longest:
		return badValue("input_text", p.characters,
			"This model's maximum context length is %d tokens. However, your prompt contains %d characters (more than %d characters, which is the upper bound for %[1]d input tokens). Please reduce the length of the input prompt.",
			longest, p.characters, tokenBytes*longest)
	}
	output := max(1, a.maxTokens)
	if total := len(p.tokens) + output; total > longest {
		return badValue("input_tokens", len(p.tokens),
			"This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains at least %d input tokens, for a total of at least %d tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
			longest, output, len(p.tokens), total)
	}
	return nil
}

// submit submits the tickets of the call to the engine.
func (c *call) submit(tickets ...*ticket) *failure {
	if overhead := seconds(c.s.config.Profile.FrontendOverhead); overhead > 0 {
		select { // if the client disconnects, the driver notices it below
		case <-time.After(overhead):
		case <-c.r.Context().Done():
		}
	}
	refused, ok := c.s.driver.submit(c.r.Context(), tickets...)
	switch {
	case !ok:
		return abandoned
	case refused != nil:
		f := bad("", "%v", refused)
		errors.As(refused, &f)
		return f
	}
	return nil
}

// finish waits until all tickets have their complete output.
func (c *call) finish(tickets ...*ticket) *failure {
	for _, t := range tickets {
		if _, why := c.s.driver.wait(c.r.Context(), t, 0, nil); why == gone {
			c.s.driver.cancel(tickets...)
			return abandoned
		}
	}
	return nil
}

// reason returns the finish reason of the text.
func (g *generation) reason() string {
	if g.ticket.stops {
		return "stop"
	}
	return "length"
}

// text appends the generated text to b.
func (g *generation) text(b []byte) []byte {
	for _, token := range g.ticket.request.Output {
		b = appendText(b, token)
	}
	return b
}

// invocations serves the only inference path of SageMaker. The members of the body decide which API
// handles it.
func (c *call) invocations() *failure {
	root, f := c.read()
	if f != nil {
		return f
	}
	c.r.Body = io.NopCloser(strings.NewReader(root.Raw))
	switch {
	case root.Get("messages").Exists():
		return c.chat()
	case root.Get("prompt").Exists():
		return c.completions()
	case root.Get("input").Exists():
		return c.embeddings()
	case root.Get("documents").Exists():
		return c.rerank()
	}
	return &failure{http.StatusBadRequest, "Bad Request", "Cannot find suitable handler for request", ""}
}
