package endpointstate

import (
	"math"
	"sync/atomic"
)

// RequestStats is what requests for one model are like: how many bytes of a prompt make a token, and how long answers are. It learns from each that
// ends. It is safe for concurrent use; of two that end at once one may be forgotten.
type RequestStats struct {
	perToken, output atomic.Uint64 // float64 bits; 0 is nothing yet
	prompts, answers atomic.Int64  // of which it has learned
	told             atomic.Uint64 // the bytes per token that Denser told last, float64 bits; 0 is none
}

// What is assumed of a model that nothing is known of: English takes some four bytes a token in most vocabularies, and an answer is as long as
// in the mean of Azure's conversations (Patel et al., ISCA 2024).
const (
	usualBytes  = 4
	usualOutput = 200
)

// Bounds of what is believed: prompts in any script, with what engines make no tokens of among them.
const (
	leastBytes, mostBytes = 0.5, 4096
	mostOutput            = 1 << 20
)

// memory is of how many requests a mean is, once there are as many.
const memory = 64

// Learn takes what one request was like: bytes of its prompt, its tokens, and those of its answer; 0 is what nobody knows.
func (h *RequestStats) Learn(bytes int, prompt, completion float64) {
	if bytes > 0 && prompt > 0 {
		moveMean(&h.perToken, &h.prompts, usualBytes, min(max(float64(bytes)/prompt, leastBytes), mostBytes))
	}
	if completion > 0 {
		moveMean(&h.output, &h.answers, usualOutput, min(completion, mostOutput))
	}
}

// moveMean moves a mean towards a value: that of all so far, of the last where there are many.
func moveMean(mean *atomic.Uint64, seen *atomic.Int64, usual, value float64) {
	n := min(seen.Add(1), memory)
	was := or(mean, usual)
	mean.Store(math.Float64bits(was + (value-was)/float64(n)))
}

func or(mean *atomic.Uint64, usual float64) float64 {
	if bits := mean.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return usual
}

// BytesPerToken is how many bytes of a prompt make a token. H may be nil.
func (h *RequestStats) BytesPerToken() float64 {
	if h == nil {
		return usualBytes
	}
	return or(&h.perToken, usualBytes)
}

// Denser is how many bytes make a token, and whether that has changed by more than an eighth since it last said so.
func (h *RequestStats) Denser() (bytesPerToken float64, news bool) {
	is, was := h.BytesPerToken(), h.told.Load()
	if of := or(&h.told, usualBytes); is > of*denser || is < of/denser {
		return is, h.told.CompareAndSwap(was, math.Float64bits(is))
	}
	return is, false
}

const denser = 1.125

// Output is how many tokens an answer has in the mean. H may be nil.
func (h *RequestStats) Output() float64 {
	if h == nil {
		return usualOutput
	}
	return or(&h.output, usualOutput)
}
