package llm

import (
	"fmt"
	"net/http"
)

// messages serves POST /v1/messages. In Anthropic's API max_tokens is required, so the text ends
// there.
func (c *call) messages() {
	g, f := c.askMessages()
	if f != nil {
		c.failMessages(f)
		return
	}
	if !c.start(c.failMessages, g.ticket) {
		return
	}
	if g.ask.stream {
		g.stream(&messageStream{g})
		return
	}
	if !c.finish(g.ticket) {
		return
	}
	b := fmt.Appendf(nil, `{"id":%s,"type":"message","role":"assistant","content":[{"type":"text","text":"`, quote("chatcmpl-"+g.id))
	b = g.text(b)
	b = fmt.Appendf(b, `"}],"model":%s,"stop_reason":"max_tokens","usage":%s}`, quote(g.model),
		g.anthropicUsage(len(g.ticket.request.Output)))
	c.json(http.StatusOK, b)
}

func (c *call) askMessages() (*generation, *failure) {
	a, f := c.ask()
	if f == nil {
		f = a.need("messages", a.messages)
	}
	if f == nil && !a.maxTokensSet {
		f = malformed("missing", "body.max_tokens", "Field required", fmt.Sprintf("<dict of %d items>", a.members))
	}
	if f != nil {
		return nil, f
	}
	return c.generate(a, 0, func() (prompt, *failure) { return chatPrompt(a.system, a.messages) })
}

// countTokens serves POST /v1/messages/count_tokens.
func (c *call) countTokens() {
	a, f := c.ask()
	if f == nil {
		f = a.need("messages", a.messages)
	}
	if f == nil {
		_, _, f = c.s.resolve(a.model)
	}
	if f != nil {
		c.failMessages(f)
		return
	}
	p, f := chatPrompt(a.system, a.messages)
	if f != nil {
		c.failMessages(f)
		return
	}
	c.json(http.StatusOK, fmt.Appendf(nil, `{"input_tokens":%d,"context_management":{"original_input_tokens":%[1]d}}`, len(p.tokens)))
}

// failMessages formats an error as Anthropic does, except for errors in the form of the body, which
// vLLM finds earlier.
func (c *call) failMessages(f *failure) {
	if f.kind == "Bad Request" {
		c.fail(f)
		return
	}
	c.json(f.status, f.messagesBody())
}

func (g *generation) anthropicUsage(output int) string {
	return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d}`, len(g.ticket.request.Prompt), output)
}

// messageStream writes Anthropic's events, and at the end the mark that vLLM adds.
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
