package llm

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
)

// responses serves POST /v1/responses. It stores responses if Config.StoreResponses is set.
func (c *call) responses() *failure {
	a, f := c.ask("input")
	if f == nil && c.s.config.StoreResponses && a.previous != "" {
		f = c.s.kept(a.previous)
	}
	if f != nil {
		return f
	}
	g, f := c.generate(a, 0, func() (prompt, *failure) { return responsePrompt(a.values["instructions"], a.values["input"]) })
	if f != nil {
		return f
	}
	g.id = c.newID()
	if c.s.config.StoreResponses {
		c.s.stored.Store("resp_"+g.id, g.model)
	}
	r := response{g: g, item: c.newID()}
	if a.stream {
		return g.stream(&responseStream{response: r})
	}
	if f := c.finish(g.ticket); f != nil {
		return f
	}
	return c.json(http.StatusOK, r.whole(nil, r.status()))
}

// kept returns nil if the response with an id is stored here. Otherwise it returns the failure in
// vLLM's words.
func (s *Server) kept(id string) *failure {
	if _, ok := s.stored.Load(id); !ok {
		return &failure{http.StatusNotFound, "invalid_request_error", "Response with id '" + id + "' not found.", ""}
	}
	return nil
}

// storedResponse serves requests about a stored response: get the response, get its input items,
// cancel it, or delete it.
func (c *call) storedResponse() *failure {
	id, _, _ := strings.Cut(strings.TrimPrefix(c.r.URL.Path, responsesPath), "/")
	if f := c.s.kept(id); f != nil {
		return f
	}
	switch {
	case c.r.Method == http.MethodDelete:
		c.s.stored.Delete(id)
		return c.json(http.StatusOK, fmt.Appendf(nil, `{"id":%s,"object":"response","deleted":true}`, quote(id)))
	case strings.HasSuffix(c.r.URL.Path, "/input_items"):
		return c.json(http.StatusOK, []byte(`{"object":"list","data":[]}`))
	}
	return c.json(http.StatusOK, fmt.Appendf(nil, `{"id":%s,"object":"response","status":"completed"}`, quote(id)))
}

const responsesPath = "/v1/responses/"

// responsePrompt returns the prompt for instructions and input. The input is text, or a list of
// messages.
func responsePrompt(instructions, input gjson.Result) (prompt, *failure) {
	if input.Type != gjson.String {
		return chatPrompt(instructions, input)
	}
	p := prompt{}
	if instructions.Exists() {
		p.tokens = append(p.tokens, roleSystem)
		p.add(instructions.Str)
	}
	p.tokens = append(p.tokens, roleUser)
	p.add(input.Str)
	p.tokens = append(p.tokens, roleAssistant)
	return p, nil
}

// response writes the response object and its parts.
type response struct {
	g    *generation
	item string // id of its only message
}

func (r *response) status() string {
	if r.g.ticket.stops {
		return "completed"
	}
	return "incomplete"
}

// whole writes the complete response object with a status.
func (r *response) whole(b []byte, status string) []byte {
	g := r.g
	ended := status != "in_progress"
	b = fmt.Appendf(b, `{"id":%s,"created_at":%d,"incomplete_details":`, quote("resp_"+g.id), g.created)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	b = fmt.Appendf(b, `,"instructions":null,"metadata":null,"model":%s,"object":"response","output":[`, quote(g.model))
	if ended {
		b = r.message(b, "completed")
	}
	b = fmt.Appendf(b,
		`],"parallel_tool_calls":true,"temperature":%s,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":%d,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"%s","text":null,"top_logprobs":null,"truncation":"disabled","usage":`,
		number(g.ask.temperature), g.ticket.maxTokens, status)
	if ended {
		input, output := len(g.ticket.request.Prompt), len(g.ticket.request.Output)
		b = fmt.Appendf(b,
			`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":%d}`,
			input, output, input+output)
	} else {
		b = append(b, "null"...)
	}
	return append(b,
		`,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}`...)
}

// message writes the only output item. It contains the text if the status is completed.
func (r *response) message(b []byte, status string) []byte {
	b = fmt.Appendf(b, `{"id":"msg_%s","content":[`, r.item)
	if status == "completed" {
		b = r.part(b, true)
	}
	return fmt.Appendf(b, `],"role":"assistant","status":"%s","type":"message","phase":null}`, status)
}

// part writes the only part of the message. It contains the text if full is true.
func (r *response) part(b []byte, full bool) []byte {
	b = append(b, `{"annotations":[],"text":"`...)
	if full {
		b = r.g.text(b)
	}
	return append(b, `","type":"output_text","logprobs":null}`...)
}

// responseStream writes numbered response.* events.
type responseStream struct {
	response
	number int
}

// event writes the beginning of an event. The caller then appends members, each after a comma, and
// calls done.
func (s *responseStream) event(b []byte, kind string) []byte {
	b = fmt.Appendf(b, "event: %[1]s\ndata: "+`{"type":"%[1]s","sequence_number":%[2]d`, kind, s.number)
	s.number++
	return b
}

func done(b []byte) []byte { return append(b, "}\n\n"...) }

// place writes the members of an event that locate it in the response.
func (s *responseStream) place(b []byte) []byte {
	return fmt.Appendf(b, `,"item_id":"msg_%s","output_index":0,"content_index":0`, s.item)
}

func (s *responseStream) open(b []byte) []byte {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		b = done(s.whole(append(s.event(b, kind), `,"response":`...), "in_progress"))
	}
	return b
}

func (s *responseStream) begin(b []byte) []byte {
	b = done(s.message(append(s.event(b, "response.output_item.added"), `,"output_index":0,"item":`...), "in_progress"))
	return done(s.part(append(s.place(s.event(b, "response.content_part.added")), `,"part":`...), false))
}

func (s *responseStream) token(b []byte, i int) []byte {
	b = append(s.place(s.event(b, "response.output_text.delta")), `,"delta":"`...)
	return done(append(appendText(b, s.g.ticket.request.Output[i]), `","logprobs":[]`...))
}

func (s *responseStream) end(b []byte) []byte {
	b = append(s.place(s.event(b, "response.output_text.done")), `,"text":"`...)
	b = done(append(s.g.text(b), `","logprobs":[]`...))
	b = done(s.part(append(s.place(s.event(b, "response.content_part.done")), `,"part":`...), true))
	b = done(s.message(append(s.event(b, "response.output_item.done"), `,"output_index":0,"item":`...), "completed"))
	return done(s.whole(append(s.event(b, "response."+s.status()), `,"response":`...), s.status()))
}
