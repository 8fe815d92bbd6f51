package outcome_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
)

// The first token is the first output of the stream, in the format of each API. Events are one
// second apart.
func TestFirstOutputOfAStream(t *testing.T) {
	const (
		role = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
		chat = `{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`
	)
	for name, c := range map[string]struct {
		events []string
		want   time.Duration
	}{
		"a chat":             {[]string{chat, chat}, 1},
		"a completion":       {[]string{`{"choices":[{"text":"a"}]}`}, 1},
		"reasoning":          {[]string{`{"choices":[{"delta":{"content":null,"reasoning_content":"a"}}]}`, chat}, 1},
		"a tool":             {[]string{`{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, chat}, 1},
		"an end":             {[]string{`{"choices":[{"delta":{},"finish_reason":"stop"}]}`}, 1},
		"usage before":       {[]string{`{"choices":[],"usage":{"prompt_tokens":1}}`, chat}, 2},
		"a role long before": {[]string{role, chat}, 0}, // an engine sends the role at once, or before a tool call that a parser delays
		"a role alone":       {[]string{role, "[DONE]"}, 0},
		"a response": {[]string{
			`{"response":{},"type":"response.created"}`, `{"type":"response.in_progress"}`,
			`{"type":"response.output_text.delta","delta":"a"}`,
		}, 3},
		"messages": {[]string{
			`{"type":"message_start"}`, `{"type":"content_block_start"}`, `{"type":"ping"}`,
			`{"type":"content_block_delta"}`,
		}, 4},
		"an unknown event": {[]string{`{"token":"a"}`}, 1},
		"no JSON":          {[]string{"a"}, 1},
		"comments":         {nil, 0},
		"a huge event":     {[]string{`{"choices":[],"x":"` + strings.Repeat("x", 70_000) + `"}`, chat}, 2},
	} {
		var a outcome.Answer
		a.Headers(200, "text/event-stream", "", "")
		for i, e := range append([]string{""}, c.events...) {
			text := "data: " + e + "\n\n"
			if i == 0 {
				text = ": keep-alive\n\n"
			}
			a.Body([]byte(text[:len(text)/2]), time.Unix(int64(i), 0))
			a.Body([]byte(text[len(text)/2:]), time.Unix(int64(i), 0))
		}
		var o outcome.Outcome
		if a.Fill(&o, time.Unix(0, 0)); o.FirstBody != c.want*time.Second {
			t.Errorf("%s: after %v, want %v", name, o.FirstBody, c.want*time.Second)
		}
	}
}

// A choice without output marks the time of the first token if output follows within milliseconds.
func TestChoiceWithoutOutput(t *testing.T) {
	for _, c := range []struct{ output, opened, want time.Duration }{
		{1000, 995, 1000}, {1000, 1000, 1000}, {1000, 990, 1000}, {1000, 980, 0}, {5, 0, 5},
	} {
		if got := outcome.FirstOutput(c.output*time.Millisecond, c.opened*time.Millisecond); got != c.want*time.Millisecond {
			t.Errorf("output after %d ms, opened after %d: %v", c.output, c.opened, got)
		}
	}
}
