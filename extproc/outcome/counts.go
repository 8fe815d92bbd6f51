package outcome

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/engine"
)

// Counts are the token counts in a response, under the names that the APIs use.
type Counts struct {
	Prompt, Completion engine.Value
	Input              Input // counts in OpenAI's responses API and in Anthropic's messages API
	Begun              Input // counts in the first event of a stream of messages
}

// Input contains the prompt tokens that one usage object of Anthropic's messages API states. Tokens
// excludes tokens that were read from a cache or written to it, if the object counts these
// separately.
type Input struct{ Tokens, CacheRead, CacheCreation engine.Value }

// whole returns the number of tokens of the whole prompt, if the counts are known.
func (i Input) whole() engine.Value {
	n, ok := bounded(i.Tokens).Get()
	if !ok {
		return engine.Value{}
	}
	return bounded(engine.Known(n + bounded(i.CacheRead).Or(0) + bounded(i.CacheCreation).Or(0)))
}

// maxTokens is the largest possible count. No context is that long, and a counter to which more is
// added would lose precision.
const maxTokens = 1e8

// Tokens returns the tokens of the whole prompt and of the completion. An impossible count is
// treated as unknown. A stream of messages may state its prompt twice: vLLM includes cached tokens
// in the first event, and counts them separately in the last event.
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

// Carries applies the error at the top of a response with status 200, by its type and code; both
// are empty if there is none. The error is a failure of the endpoint, unless it blames the request.
// In either case the outcome gets no time to first token. Errors with other statuses are ignored.
func (o *Outcome) Carries(kind, code string) {
	o.ErrorType, o.ErrorCode = identifier(kind), identifier(code)
	if kind == "" && code == "" {
		return
	}
	status, err := strconv.Atoi(code)
	if kind == "" && err == nil && status < 400 || o.Status != 200 {
		return
	}
	o.FirstBody = 0
	blamed := status >= 400 && status < 500 // whether the request is at fault
	if err != nil {
		blamed = clientError(kind) || clientError(code)
	}
	if !blamed && (o.Failure == None || o.Failure == ClientGone) {
		o.Failure = Erred
	}
}

// maxMessage is the maximum size of an error's message, in bytes.
const maxMessage = 512

// Says stores the beginning of the error's message.
func (o *Outcome) Says(message string) {
	o.ErrorMessage = strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
}

// MessageOf returns the message of an error, which is a JSON object or plain text. Plain text is
// itself the message.
func MessageOf(whole string) string {
	if object := gjson.Parse(whole); object.IsObject() {
		return object.Get("message").Str
	}
	return whole
}

// flat reads an error with its fields at the top level, as old versions of vLLM send it. The text
// is the beginning of the body. The results are empty if it is no such error.
func flat(text []byte) (kind, code, message string) {
	all := gjson.ParseBytes(text)
	if all.Get("object").Str != "error" {
		return "", "", ""
	}
	return cmp.Or(all.Get("type").Str, UnknownError), all.Get("code").String(), all.Get("message").Str
}

// maxIdentifier is the maximum length of an error's type or code.
const maxIdentifier = 64

// identifier returns s if it is an identifier, as error types and codes are, and otherwise "other".
// Free text may quote a prompt.
func identifier(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.'
	}
	if len(s) > maxIdentifier || strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return "other"
	}
	return s
}

// clientErrors are parts of error types and codes that blame the request, in lower case and without
// "_" and spaces. They are from OpenAI, Anthropic, vLLM and SGLang.
var clientErrors = []string{
	"invalidrequest", "badrequest", "invaliduserinput", "invalidprompt", "validation", "unprocessable", "contextlength", "toolarge",
	"toolong",
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
