package outcome

import (
	"bytes"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// vagueness is the maximum time between an event that may have contained the first token and the
// first output. If output arrives later than that, the time of the first token is unknown.
const vagueness = 10 * time.Millisecond

// FirstOutput returns the time of a stream's first token. Output is the time of the first output,
// and opened that of the first event that may have contained the first token. If they are far
// apart, it returns 0. Some engines send an empty choice before they process the prompt. Others
// send it with the first token, and output may follow much later: vLLM's parsers delay a tool call.
func FirstOutput(output, opened time.Duration) time.Duration {
	if output-opened > vagueness {
		return 0
	}
	return output
}

// output reports whether the data of a server-sent event has output: a part of a text, or the end
// of a text. Vague reports a choice without output. Data in an unknown format is treated as output.
// envoy.yaml contains the same rules for Headgate's own Envoys.
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
	case strings.HasPrefix(kind, "response."): // events of OpenAI's responses API
		for _, opening := range [...]string{".created", ".queued", ".in_progress", ".added"} {
			if strings.HasSuffix(kind, opening) {
				return false, false
			}
		}
	case kind == "message_start", kind == "content_block_start", kind == "ping": // events of Anthropic's messages API
		return false, false
	}
	return true, false
}

// chosen reports whether a choice of OpenAI's chat or completions API has output.
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
