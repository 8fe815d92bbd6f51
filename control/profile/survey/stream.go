package survey

import (
	"bytes"
	"math"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/engine"
)

// Stream is a streamed answer.
type Stream struct {
	// At has the arrival times of chunks with tokens, in seconds since the request was sent; for
	// several streams, since a common start. Tokens has the total number of tokens at each of these
	// times.
	At     []float64
	Tokens []int
	// Prompt and Answer are the engine's counts of prompt and output tokens; 0 until it reports
	// them.
	Prompt, Answer int
}

// FirstToken returns the time of the first token.
func (s *Stream) FirstToken() float64 { return s.At[0] }

// event is the prefix of lines that carry data.
var event = []byte("data:")

// Take parses a line of the stream; at is the line's arrival time. It reports whether it was the
// last line.
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

// said reports whether a choice of a chunk contains text.
func said(choice gjson.Result) bool {
	for _, path := range []string{"text", "delta.content", "delta.reasoning_content", "delta.reasoning"} {
		if choice.Get(path).Str != "" {
			return true
		}
	}
	return false
}

// Whole reports whether the stream has at least one token and the prompt's token count.
func (s *Stream) Whole() bool { return len(s.At) > 0 && s.Prompt > 0 }

// Together returns the row of decode steps whose requests had these streams. Its Seconds are the
// mean step time between the first token of the last stream and the last token of the first stream
// to end. In that time, each step computes all of the requests and no prompt. Together returns
// false if less than a quarter of the steps were in that time: the engine did not run the requests
// together.
//
// KV is the number of cached tokens in the middle of the outputs. Requests that began earlier are
// ahead by about as much as later ones are behind.
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
		scale := 1.0 // number of output tokens per chunk: an engine may send several in one
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

// AtOnce returns the row of several prompts that were sent at once. Its Seconds are the time until
// all of them had their first tokens.
func AtOnce(p Point, streams []Stream) Row {
	row := Row{Point: p}
	for _, s := range streams {
		row.Seconds = max(row.Seconds, s.At[0])
		row.Prompt += s.Prompt
	}
	row.Prompt = (row.Prompt + len(streams)/2) / len(streams)
	return row
}

// Mixed returns the row of a prompt that was sent beside these streams. sent is when the prompt was
// sent, and first is when its first token arrived. The time of the step with the prompt is computed
// from how late the tokens of the streams arrived. Mixed returns false if the streams have too few
// tokens before or after the prompt.
func Mixed(p Point, streams []Stream, prompt int, sent, first float64) (Row, bool) {
	row := Row{Point: p, Prompt: prompt, FirstToken: first - sent}
	var around, without, tokens, steps float64 // around, tokens: seconds and count while the prompt ran; without, steps: before and after
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

// afterwards is how many tokens of other streams, after the prompt's first token, may still be
// delayed by the prompt: an asynchronous engine has already launched further steps.
const afterwards = 2

// FrontendOverhead returns the frontend overhead in seconds of the only request that ended between
// two scrapes of an engine: the time to first token minus the queue and prefill times that the
// engine reports. It returns 0 if the engine does not report these times, or if other requests
// ended.
func FrontendOverhead(firstToken float64, before, after engine.Totals) float64 {
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
