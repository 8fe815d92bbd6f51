package llm

import (
	"fmt"
	"net/http"
)

// messages serves POST /v1/messages. Anthropic's API requires max_tokens, and the generated text
// always has that length.
func (c *call) messages() *failure {
	a, f := c.ask("messages")
	if f == nil && !a.maxTokensSet {
		f = a.missing("max_tokens")
	}
	if f != nil {
		return f
	}
	g, f := c.generate(a, 0, func() (prompt, *failure) { return chatPrompt(a.values["system"], a.values["messages"]) })
	if f != nil {
		return f
	}
	if a.stream {
		return g.stream(&messageStream{g})
	}
	if f := c.finish(g.ticket); f != nil {
		return f
	}
	b := fmt.Appendf(nil, `{"id":%s,"type":"message","role":"assistant","content":[{"type":"text","text":"`, quote("chatcmpl-"+g.id))
	b = g.text(b)
	b = fmt.Appendf(b, `"}],"model":%s,"stop_reason":"max_tokens","usage":%s}`, quote(g.model),
		g.anthropicUsage(len(g.ticket.request.Output)))
	return c.json(http.StatusOK, b)
}

// countTokens serves POST /v1/messages/count_tokens.
func (c *call) countTokens() *failure {
	a, f := c.ask("messages")
	if f == nil {
		_, _, f = c.s.resolve(a.model)
	}
	if f != nil {
		return f
	}
	p, f := chatPrompt(a.values["system"], a.values["messages"])
	if f != nil {
		return f
	}
	return c.json(http.StatusOK,
		fmt.Appendf(nil, `{"input_tokens":%d,"context_management":{"original_input_tokens":%[1]d}}`, len(p.tokens)))
}

func (g *generation) anthropicUsage(output int) string {
	return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d}`, len(g.ticket.request.Prompt), output)
}

// messageStream writes Anthropic's stream events, and vLLM's additional end mark.
type messageStream struct{ g *generation }

func (*messageStream) open(b []byte) []byte { return b }

func (s *messageStream) begin(b []byte) []byte {
	b = fmt.Appendf(b, "event: message_start\ndata: "+
		`{"type":"message_start","message":{"id":%s,"type":"message","role":"assistant","content":[],"model":%s,"stop_reason":null,"stop_sequence":null,"usage":%s}}`+"\n\n",
		quote("chatcmpl-"+s.g.id), quote(s.g.model), s.g.anthropicUsage(0))
	return append(b, "event: content_block_start\ndata: "+
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`+"\n\n"...)
}

func (s *messageStream) token(b []byte, i int) []byte {
	b = append(b, "event: content_block_delta\ndata: "+`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"`...)
	b = appendText(b, s.g.ticket.request.Output[i])
	return append(b, `"}}`+"\n\n"...)
}

func (s *messageStream) end(b []byte) []byte {
	b = append(b, "event: content_block_stop\ndata: "+`{"type":"content_block_stop","index":0}`+"\n\n"...)
	b = fmt.Appendf(b, "event: message_delta\ndata: "+`{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":%s}`+"\n\n",
		s.g.anthropicUsage(len(s.g.ticket.request.Output)))
	return append(b, "event: message_stop\ndata: "+`{"type":"message_stop"}`+"\n\ndata: [DONE]\n\n"...)
}
