package outcome

import (
	"math"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/engine"
)

// Counts is the token counts that an answer states, by the names that APIs have for them.
type Counts struct {
	Prompt, Completion engine.Value
	Input              Input // of OpenAI's responses and Anthropic's messages
	Begun              Input // what the first event of a stream of messages states
}

// Input is the prompt tokens that one usage object of Anthropic's messages states. Tokens leaves out those that were read from a cache or written
// to it where the object counts these apart.
type Input struct{ Tokens, CacheRead, CacheCreation engine.Value }

// whole returns the tokens of the whole prompt, if they are known.
func (i Input) whole() engine.Value {
	n, ok := bounded(i.Tokens).Get()
	if !ok {
		return engine.Value{}
	}
	return bounded(engine.Known(n + bounded(i.CacheRead).Or(0) + bounded(i.CacheCreation).Or(0)))
}

// maxTokens bounds each count: no context is as long, and a counter that adds more would lose what it has.
const maxTokens = 1e8

// Tokens returns the tokens of the whole prompt and of the completion. A count that no engine can mean is unknown.
// A stream of messages may state its prompt twice: vLLM counts the cache in its first event, and apart from the rest in its last one.
func (c Counts) Tokens() (prompt, completion engine.Value) {
	prompt = bounded(c.Prompt)
	if _, ok := prompt.Get(); !ok {
		prompt = larger(c.Input.whole(), c.Begun.whole())
	}
	return prompt, bounded(c.Completion)
}

func bounded(v engine.Value) engine.Value {
	if n, ok := v.Get(); !ok || !(n >= 0 && n <= maxTokens) || n != math.Trunc(n) {
		return engine.Value{}
	}
	return v
}

func larger(a, b engine.Value) engine.Value {
	if b.Or(-1) > a.Or(-1) {
		return b
	}
	return a
}

// Carries notes the error that an answer has at its top, by its type and its code, of which each may be empty; both are where it has none.
// In an answer of status 200 it is a failure of the endpoint unless the request is to blame, and either way the answer tells of no first token.
func (o *Outcome) Carries(kind, code string) {
	status, err := strconv.Atoi(code)
	if kind == "" && (code == "" || err == nil && status < 400) || o.Status != 200 {
		return
	}
	o.FirstBody = 0
	blamed := status >= 400 && status < 500 // the request
	if err != nil {
		blamed = clientError(kind) || clientError(code)
	}
	if !blamed && (o.Failure == None || o.Failure == ClientGone) {
		o.Failure = Erred
	}
}

// clientErrors are parts of types and codes by which engines blame the request, in lower case and without _ and spaces: those of OpenAI,
// Anthropic, vLLM and SGLang.
var clientErrors = []string{
	"invalidrequest", "badrequest", "invaliduserinput", "invalidprompt", "validation", "unprocessable", "contextlength", "toolarge", "toolong",
	"authentication", "permission", "notfound", "ratelimit", "contentfilter", "contentpolicy",
}

func clientError(text string) bool {
	text = strings.NewReplacer("_", "", " ", "").Replace(strings.ToLower(text))
	for _, part := range clientErrors {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
