package outcome

import (
	"bytes"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// vagueness bounds the time between an event that may have come with the first token and the first
// output. If output comes later, the time of the first token is unknown.
const vagueness = 10 * time.Millisecond

// FirstOutput returns the time of a stream's first token. It compares the first output with the
// first event that may have come with the first token, and returns 0 if they are far apart. Some
// engines send an empty choice before they read the prompt. Others send it with the first token,
// and output may follow much later: vLLM's parsers hold back a tool call.
func FirstOutput(output, opened time.Duration) time.Duration {
	if output-opened > vagueness {
		return 0
	}
	return output
}

// output reports whether the data of a server-sent event has output: a part of a text, or the end
// of one. Vague means a choice without output. Data of an unknown form counts as output. envoy.yaml
// has the same rules for Headgate's own Envoys.
func output(data []byte) (has, vague bool) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || string(data) == "[DONE]" {
		return false, false
	}
	if choices := gjson.GetBytes(data, "choices"); choices.Exists() {
		for _, choice := range choices.Array() {
			vague = true
			if chosen(choice) {
				return true, false
			}
		}
		return false, vague
	}
	switch kind := gjson.GetBytes(data, "type").String(); {
	case strings.HasPrefix(kind, "response."): // OpenAI's responses
		for _, opening := range [...]string{".created", ".queued", ".in_progress", ".added"} {
			if strings.HasSuffix(kind, opening) {
				return false, false
			}
		}
	case kind == "message_start", kind == "content_block_start", kind == "ping": // Anthropic's messages
		return false, false
	}
	return true, false
}

// chosen reports whether a choice of OpenAI's chat or completions has output.
func chosen(choice gjson.Result) bool {
	if choice.Get("finish_reason").String() != "" || choice.Get("text").String() != "" {
		return true
	}
	has := false
	choice.Get("delta").ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.Str == "content", key.Str == "refusal", strings.HasPrefix(key.Str, "reasoning"):
			has = value.Type == gjson.String && value.Str != ""
		case key.Str == "tool_calls":
			has = value.IsArray() && value.Get("#").Int() > 0
		}
		return !has
	})
	return has
}
