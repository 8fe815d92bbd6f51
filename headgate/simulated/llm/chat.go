package llm

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"
)

// chat serves POST /v1/chat/completions.
func (c *call) chat() *failure {
	a, f := c.ask("messages")
	if f != nil {
		return f
	}
	g, f := c.generate(a, 0, func() (prompt, *failure) { return chatPrompt(gjson.Result{}, a.values["messages"]) })
	if f != nil {
		return f
	}
	if a.stream {
		return g.stream(&chatStream{g: g, head: g.head("chatcmpl-", "chat.completion.chunk")})
	}
	if f := c.finish(g.ticket); f != nil {
		return f
	}
	b := g.head("chatcmpl-", "chat.completion")
	b = append(b, `,"choices":[{"index":0,"message":{"role":"assistant","content":"`...)
	b = g.text(b)
	b = append(b, `","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"`...)
	b = append(b, g.reason()...)
	b = append(b, `","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"`+
		fingerprint+`"`...)
	b = g.usage(b, len(g.ticket.request.Output))
	b = append(b, `,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
	c.reportLoad()
	return c.json(http.StatusOK, b)
}

// completions serves POST /v1/completions.
func (c *call) completions() *failure {
	a, f := c.ask("prompt")
	if f != nil {
		return f
	}
	g, f := c.generate(a, completionTokens, func() (prompt, *failure) { return onePrompt(a.values["prompt"]) })
	if f != nil {
		return f
	}
	if a.stream {
		return g.stream(&completionStream{g: g, head: g.head("cmpl-", "text_completion")})
	}
	if f := c.finish(g.ticket); f != nil {
		return f
	}
	b := g.head("cmpl-", "text_completion")
	b = append(b, `,"choices":[{"index":0,"text":"`...)
	b = g.text(b)
	b = append(b, `","logprobs":null,"finish_reason":"`...)
	b = append(b, g.reason()...)
	b = append(b, `","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"`+
		fingerprint+`"`...)
	b = g.usage(b, len(g.ticket.request.Output))
	b = append(b, `,"prompt_tokens_details":null,"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
	c.reportLoad()
	return c.json(http.StatusOK, b)
}

// head returns the beginning of the JSON of an answer or chunk, up to the model.
func (g *generation) head(prefix, object string) []byte {
	b := append(make([]byte, 0, 1024+tokenBytes*len(g.ticket.request.Output)), `{"id":`...)
	b = append(append(b, quote(prefix+g.id)...), `,"object":"`...)
	b = append(append(b, object...), `","created":`...)
	b = strconv.AppendInt(b, g.created, 10)
	b = append(b, `,"model":`...)
	return append(b, quote(g.model)...)
}

// usage appends the usage after the first output tokens, without its closing brace, which the
// caller appends.
func (g *generation) usage(b []byte, output int) []byte {
	prompt := int64(len(g.ticket.request.Prompt))
	b = strconv.AppendInt(append(b, `,"usage":{"prompt_tokens":`...), prompt, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), prompt+int64(output), 10)
	return strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(output), 10)
}

// sofar appends the usage up to this chunk if the client requested it.
func (g *generation) sofar(b []byte, output int) []byte {
	if !g.ask.includeUsage || !g.ask.everyUsage {
		return b
	}
	return append(g.usage(b, output), `,"completion_tokens_details":null}`...)
}

// last reports whether token i is the last one of the output.
func (g *generation) last(i int) bool { return i == len(g.ticket.request.Output)-1 }

// total appends a chunk with the total usage if the client requested it, and then the end mark.
func (g *generation) total(b, head []byte) []byte {
	if g.ask.includeUsage {
		b = append(append(append(b, "data: "...), head...), `,"choices":[]`...)
		b = g.usage(b, len(g.ticket.request.Output))
		b = append(b, `},"system_fingerprint":"`+fingerprint+`"}`+"\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// print closes a chunk. It adds the fingerprint to the last chunk, unless a chunk with the usage
// follows.
func (g *generation) print(b []byte, last bool) []byte {
	if last && !g.ask.includeUsage {
		b = append(b, `,"system_fingerprint":"`+fingerprint+`"`...)
	}
	return append(b, "}\n\n"...)
}

// chatStream writes chat.completion.chunk objects.
type chatStream struct {
	g    *generation
	head []byte
}

func (*chatStream) open(b []byte) []byte { return b }

func (s *chatStream) begin(b []byte) []byte {
	b = append(append(b, "data: "...), s.head...)
	b = append(b, `,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	return append(s.g.sofar(b, 0), `,"prompt_token_ids":null,"prompt_text":null}`+"\n\n"...)
}

func (s *chatStream) token(b []byte, i int) []byte {
	b = append(append(b, "data: "...), s.head...)
	b = append(b, `,"choices":[{"index":0,"delta":{"content":"`...)
	b = appendText(b, s.g.ticket.request.Output[i])
	b = append(b, `"},"logprobs":null,"finish_reason":`...)
	if s.g.last(i) {
		b = append(append(append(b, '"'), s.g.reason()...), `","stop_reason":null`...)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"token_ids":null}]`...)
	return s.g.print(s.g.sofar(b, i+1), s.g.last(i))
}

func (s *chatStream) end(b []byte) []byte { return s.g.total(b, s.head) }

// completionStream writes text_completion objects. Unlike in a chat, the first chunk has the first
// token.
type completionStream struct {
	g    *generation
	head []byte
}

func (*completionStream) open(b []byte) []byte { return b }

func (s *completionStream) begin(b []byte) []byte { return b }

func (s *completionStream) token(b []byte, i int) []byte {
	b = append(append(b, "data: "...), s.head...)
	b = append(b, `,"choices":[{"index":0,"text":"`...)
	b = appendText(b, s.g.ticket.request.Output[i])
	b = append(b, `","logprobs":null,"finish_reason":`...)
	if s.g.last(i) {
		b = append(append(append(b, '"'), s.g.reason()...), '"')
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]`...)
	return s.g.print(s.g.sofar(b, i+1), s.g.last(i))
}

func (s *completionStream) end(b []byte) []byte { return s.g.total(b, s.head) }

// onePrompt parses the prompt of a completion: text, token ids, or a list with one such prompt.
func onePrompt(v gjson.Result) (prompt, *failure) {
	prompts, f := prompts("prompt", v)
	if f != nil {
		return prompt{}, f
	}
	if len(prompts) != 1 {
		return prompt{}, bad("prompt", "the simulated engine completes one prompt at a time, got %d", len(prompts))
	}
	if len(prompts[0].tokens) == 0 {
		return prompt{}, bad("prompt", "The decoder prompt cannot be empty")
	}
	return prompts[0], nil
}

// prompts parses one prompt, which is text or token ids, or a list of prompts.
func prompts(name string, v gjson.Result) ([]prompt, *failure) {
	wrong := func(v gjson.Result) *failure {
		return malformed("string_type", "body."+name, "Input should be a valid string", describe(v))
	}
	if v.Type == gjson.String {
		var p prompt
		p.add(v.Str)
		return []prompt{p}, nil
	}
	if !v.IsArray() {
		return nil, wrong(v)
	}
	var all []prompt
	var ids prompt
	var f *failure
	v.ForEach(func(_, item gjson.Result) bool {
		switch {
		case item.Type == gjson.Number:
			ids.tokens = append(ids.tokens, uint32(item.Uint()))
		case item.Type == gjson.String || item.IsArray():
			var some []prompt
			if some, f = prompts(fmt.Sprintf("%s.%d", name, len(all)), item); f == nil {
				all = append(all, some...)
			}
		default:
			f = wrong(item)
		}
		return f == nil
	})
	if len(ids.tokens) > 0 {
		all = append(all, ids)
	}
	return all, f
}
