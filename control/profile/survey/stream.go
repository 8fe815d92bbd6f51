package survey

import (
	"bytes"
	"math"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/engine"
)

// Stream is an answer as it came.
type Stream struct {
	// At is when tokens came, in seconds since the request was sent, or, of several streams, since a moment that is the same for all; Tokens
	// how many there were then.
	At     []float64
	Tokens []int
	// Prompt and Answer are how many tokens both had, as the engine counted in the end; 0 as long as it did not say.
	Prompt, Answer int
}

// FirstToken is when the first token came.
func (s *Stream) FirstToken() float64 { return s.At[0] }

// event is how a line of a stream begins that has something to tell.
var event = []byte("data:")

// Take takes a line that came at a time. It reports whether that was the last.
func (s *Stream) Take(line []byte, at float64) (last bool) {
	data, ok := bytes.CutPrefix(line, event)
	if !ok {
		return false
	}
	if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
		return true
	}
	chunk := gjson.ParseBytes(data)
	usage := chunk.Get("usage")
	if n := int(usage.Get("prompt_tokens").Int()); n > 0 {
		s.Prompt = n
	}
	before, now := 0, 0
	if len(s.Tokens) > 0 {
		before = s.Tokens[len(s.Tokens)-1]
	}
	told := usage.Get("completion_tokens")
	choice := chunk.Get("choices.0")
	switch {
	case !choice.Exists():
		s.Answer = int(told.Int())
		return false
	case told.Exists():
		now = int(told.Int())
	case said(choice):
		now = before + 1
	}
	if now > before {
		s.At, s.Tokens = append(s.At, at), append(s.Tokens, now)
	}
	return false
}

// said says whether a choice has text of the model.
func said(choice gjson.Result) bool {
	for _, path := range []string{"text", "delta.content", "delta.reasoning_content", "delta.reasoning"} {
		if choice.Get(path).Str != "" {
			return true
		}
	}
	return false
}

// Whole says whether the stream has tokens, and the engine said how many the prompt had.
func (s *Stream) Whole() bool { return len(s.At) > 0 && s.Prompt > 0 }

// Together is the row of a point whose requests were these streams: how long a step took on average, from the moment when the last of them
// has its first token until the first of them has its last, so that all of them were in each step, and no prompt. It reports false where
// that is less than a quarter of their steps: the engine did not run them together.
//
// The KV cache is taken as of the middle of answers: who began first is ahead by about as much as who began last is behind.
func Together(p Point, streams []Stream) (Row, bool) {
	from, to := 0.0, math.Inf(1)
	for _, s := range streams {
		from, to = max(from, s.At[0]), min(to, s.At[len(s.At)-1])
	}
	var seconds, steps float64
	row := Row{Point: p}
	for _, s := range streams {
		first, last := -1, -1
		for i, at := range s.At {
			if at >= from && first < 0 {
				first = i
			}
			if at <= to {
				last = i
			}
		}
		answer := s.Tokens[len(s.Tokens)-1]
		scale := 1.0 // where chunks were counted, and the engine puts several tokens into one
		if s.Answer > 0 {
			scale, answer = float64(s.Answer)/float64(answer), s.Answer
		}
		row.Prompt += s.Prompt
		row.KV += s.Prompt + answer/2
		if first >= 0 && last > first {
			seconds += s.At[last] - s.At[first]
			steps += scale * float64(s.Tokens[last]-s.Tokens[first])
		}
	}
	row.Prompt = (row.Prompt + len(streams)/2) / len(streams)
	if steps < float64(len(streams)*p.Outputs)/4 || seconds <= 0 {
		return row, false
	}
	row.Seconds = seconds / steps
	return row, true
}

// AtOnce is the row of a point whose prompts were sent at once: how long it took until all had their first tokens.
func AtOnce(p Point, streams []Stream) Row {
	row := Row{Point: p}
	for _, s := range streams {
		row.Seconds = max(row.Seconds, s.At[0])
		row.Prompt += s.Prompt
	}
	row.Prompt = (row.Prompt + len(streams)/2) / len(streams)
	return row
}

// Mixed is the row of a point whose prompt had its first token at a time, after it was sent at another, and beside which these streams went on: how
// long the step took in which it was computed, by how much later tokens came from then on than without it. It reports false where the streams do not
// go on for long enough on either side.
func Mixed(p Point, streams []Stream, prompt int, sent, first float64) (Row, bool) {
	row := Row{Point: p, Prompt: prompt, FirstToken: first - sent}
	var around, without, tokens, steps float64 // seconds and tokens: with the step that has the prompt, and without
	for _, s := range streams {
		from, to := -1, -1
		for i, at := range s.At {
			if at <= sent {
				from = i
			}
			if at > first && to < 0 {
				to = i + afterwards
			}
		}
		if from < 1 || to < 0 || to >= len(s.At)-1 {
			return row, false
		}
		last := len(s.At) - 1
		around, tokens = around+s.At[to]-s.At[from], tokens+float64(s.Tokens[to]-s.Tokens[from])
		without += s.At[from] - s.At[0] + s.At[last] - s.At[to]
		steps += float64(s.Tokens[from] - s.Tokens[0] + s.Tokens[last] - s.Tokens[to])
		row.KV += s.Prompt + s.Tokens[from]
	}
	n := float64(len(streams))
	row.Step = without / steps
	row.Seconds = around/n - (tokens/n-1)*row.Step
	return row, row.Seconds > 0
}

// afterwards is how many tokens later than the first token of a prompt its step is over for others too: an asynchronous engine has launched
// the next ones meanwhile.
const afterwards = 2

// Intake is how much of the time to the first token of the one request between two looks at an engine passed before it was in the queue, in
// seconds: what the engine's own times leave. It is 0 where the engine does not tell, or other requests ended meanwhile.
func Intake(firstToken float64, before, after engine.Totals) float64 {
	left := firstToken
	for _, t := range [][2]engine.Timed{{before.Queue, after.Queue}, {before.Prefill, after.Prefill}} {
		from, known := t[0].Count.Get()
		to, knows := t[1].Count.Get()
		if !known || !knows || to != from+1 {
			return 0
		}
		left -= t[1].Seconds.Or(0) - t[0].Seconds.Or(0)
	}
	return max(0, left)
}
