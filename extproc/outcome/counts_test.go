package outcome_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// Impossible counts are treated as unknown. Under the names of every API, the prompt count includes
// the whole prompt.
func TestTokensOfAResponse(t *testing.T) {
	known, unknown := engine.Known, engine.Value{}
	for name, c := range map[string]struct {
		counts             outcome.Counts
		prompt, completion engine.Value
	}{
		"none": {outcome.Counts{}, unknown, unknown},
		"OpenAI's": {
			outcome.Counts{Prompt: known(5), Input: outcome.Input{CacheRead: known(3)}, Completion: known(7)},
			known(5),
			known(7),
		},
		"Anthropic's": {
			outcome.Counts{
				Input: outcome.Input{Tokens: known(0)},
				Begun: outcome.Input{Tokens: known(5), CacheRead: known(3), CacheCreation: known(1)}, Completion: known(7),
			},
			known(9),
			known(7),
		},
		"vLLM's messages": {outcome.Counts{
			Begun: outcome.Input{Tokens: known(604)},
			Input: outcome.Input{Tokens: known(92), CacheRead: known(512)},
		}, known(604), unknown},
		"no tokens":        {outcome.Counts{Input: outcome.Input{Tokens: known(0)}, Completion: known(0)}, known(0), known(0)},
		"only a cache":     {outcome.Counts{Input: outcome.Input{CacheRead: known(3)}}, unknown, unknown},
		"huge":             {outcome.Counts{Prompt: known(1e300), Completion: known(1e8 + 1)}, unknown, unknown},
		"a huge sum":       {outcome.Counts{Input: outcome.Input{Tokens: known(1e8), CacheRead: known(1e8)}}, unknown, unknown},
		"negative":         {outcome.Counts{Prompt: known(-1), Completion: known(-0.5)}, unknown, unknown},
		"a part of a word": {outcome.Counts{Prompt: known(0.5), Completion: known(1.5)}, unknown, unknown},
	} {
		if prompt, completion := c.counts.Tokens(); prompt != c.prompt || completion != c.completion {
			t.Errorf("%s: %v and %v, want %v and %v", name, prompt, completion, c.prompt, c.completion)
		}
	}
}

// An error in an answer with status 200 counts against the endpoint, unless it blames the request.
func TestErrorsInAnswers(t *testing.T) {
	for _, c := range []struct {
		kind, code string
		status     int
		before     outcome.Failure
		want       outcome.Failure
		token      bool // whether the time to first token is kept
	}{
		{kind: "", code: "", status: 200, token: true},
		{kind: "", code: "0", status: 200, token: true},
		{kind: "", code: "200", status: 200, token: true},
		{kind: "unknown", status: 200, want: outcome.Erred},
		{kind: "InternalServerError", code: "500", status: 200, want: outcome.Erred},
		{kind: "overloaded_error", status: 200, want: outcome.Erred},
		{kind: "", code: "server_error", status: 200, want: outcome.Erred},
		{kind: "InternalServerError", code: "500", status: 200, before: outcome.ClientGone, want: outcome.Erred},
		{kind: "InternalServerError", code: "500", status: 200, before: outcome.Reset, want: outcome.Reset},
		{kind: "InternalServerError", code: "500", status: 500, token: true},
		{kind: "BadRequestError", code: "400", status: 200},
		{kind: "Bad Request", status: 200},
		{kind: "invalid_request_error", code: "context_length_exceeded", status: 200},
		{kind: "rate_limit_error", status: 200},
	} {
		o := outcome.Outcome{Endpoint: "a", Status: c.status, Failure: c.before, FirstBody: time.Second}
		o.Carries(c.kind, c.code)
		if o.Failure != c.want || (o.FirstBody == time.Second) != c.token || o.Faulty() != (c.want == outcome.Erred || c.status == 500) ||
			len(o.Suspicious()) > 0 != (c.want == outcome.Reset) {
			t.Errorf("%+v: %q after %v, faulty %v", c, o.Failure, o.FirstBody, o.Faulty())
		}
	}
}

// A data plane that sends answers to extproc also shows their errors, however these are cut into
// chunks.
func TestErrorsInAnswersThatAreShown(t *testing.T) {
	for body, want := range map[string]outcome.Failure{
		"data: {\"error\":{\"message\":\"x\",\"type\":\"InternalServerError\",\"code\":500}}\n\ndata: [DONE]\n\n":         outcome.Erred,
		"data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"error\":\"x\"}\n\n":                                           outcome.Erred,
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n":        outcome.Erred,
		"event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"x\"}\n\n":                        outcome.Erred,
		"data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}\n\n":                   outcome.Erred,
		"data: {\"error\":{\"message\":\"x\",\"type\":\"BadRequestError\",\"code\":400}}\n\n":                             outcome.None,
		"data: {\"error\":null,\"code\":null,\"choices\":[{\"text\":\"a \\\"error\\\": {\",\"error\":{\"code\":1}}]}\n\n": outcome.None,
	} {
		for cut := range len(body) + 1 {
			if o := read("text/event-stream", body, cut); o.Failure != want {
				t.Fatalf("%q cut at %d is %q, want %q", body, cut, o.Failure, want)
			}
		}
	}
	for media, want := range map[string]outcome.Failure{
		"application/json": outcome.Erred, "application/json; charset=utf-8": outcome.Erred, "": outcome.Erred,
		"application/vnd.api+json": outcome.Erred, "text/plain": outcome.None,
	} {
		if o := read(media, `{"error":{"message":"x","code":"oops"}}`, 7); o.Failure != want {
			t.Errorf("of %q the error is %q, want %q", media, o.Failure, want)
		}
	}
}

// The message of an error is read from answers and streams. An old vLLM has an error's fields at
// the top of its answer.
func TestMessagesOfErrors(t *testing.T) {
	const fields = `"message":"a \"prompt\"","type":"InternalServerError","param":null,"code":500}`
	nested, flat := `{"error":{`+fields+`}`, `{"object":"error",`+fields
	for name, c := range map[string]struct {
		status      int
		media, body string
	}{
		"stream":                 {200, "text/event-stream", "data: {\"choices\":[]}\n\ndata: " + nested + "\n\ndata: [DONE]\n\n"},
		"status 500":             {500, "application/json", nested},
		"status 500 of old vLLM": {500, "application/json", flat},
	} {
		var a outcome.Answer
		a.Headers(c.status, c.media, "", "")
		a.Body([]byte(c.body), time.Unix(1, 0))
		o := outcome.Outcome{Endpoint: "a"}
		a.Fill(&o, time.Unix(0, 0))
		if o.ErrorMessage != `a "prompt"` || o.ErrorType != "InternalServerError" || o.ErrorCode != "500" || !o.Faulty() {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if got := outcome.MessageOf("a text"); got != "a text" {
		t.Errorf("the message of a text is %q", got)
	}
	var long outcome.Outcome
	if long.Says(strings.Repeat("ä", 400)); len(long.ErrorMessage) != 512 {
		t.Errorf("a long message is cut to %d bytes", len(long.ErrorMessage))
	}
}

// The first event of a stream of messages contains the prompt's token count.
func TestStreamOfMessagesHasPromptTokens(t *testing.T) {
	o := read("text/event-stream",
		"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":3}}}\n\n"+
			"data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":0,\"output_tokens\":15}}\n\n", 9)
	if o.Prompt != engine.Known(28) || o.Completion != engine.Known(15) {
		t.Errorf("%v and %v tokens", o.Prompt, o.Completion)
	}
	o = read("text/event-stream",
		"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":604,\"output_tokens\":0}}}\n\n"+
			"data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":92,\"cache_read_input_tokens\":512,\"output_tokens\":15}}\n\n", 9)
	if o.Prompt != engine.Known(604) {
		t.Errorf("vLLM: %v tokens", o.Prompt)
	}
	o = read("text/event-stream", "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n", 9)
	if _, known := o.Completion.Get(); o.Prompt != engine.Known(25) || known {
		t.Errorf("cut before its usage: %v and %v tokens", o.Prompt, o.Completion)
	}
}
