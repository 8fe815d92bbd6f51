package endpointstate

import (
	"math"
	"sync/atomic"
)

// RequestStats are statistics of the requests for one model: prompt bytes per token, and the length
// of answers. It is safe for concurrent use. If two requests end at the same moment, it may count
// only one.
type RequestStats struct {
	perToken, output atomic.Uint64 // means as bits of float64; 0 if there are no samples
	prompts, answers atomic.Int64  // numbers of samples
	lastDenser       atomic.Uint64 // last result of Denser as bits of float64; 0 if none
}

// Defaults for an unknown model. English has about four bytes per token in most vocabularies. The
// output length is the mean of Azure's conversations trace (Patel et al., ISCA 2024).
const (
	usualBytes  = 4
	usualOutput = 200
)

// Bounds of plausible numbers of bytes per token, for any script and for prompts with parts that
// engines do not tokenize.
const (
	leastBytes, mostBytes = 0.5, 4096
	mostOutput            = 1 << 20
)

// memory is the number of latest requests that a mean covers.
const memory = 64

// Learn adds one request: prompt bytes, prompt tokens and output tokens; 0 means unknown.
func (h *RequestStats) Learn(bytes int, prompt, completion float64) {
	if bytes > 0 && prompt > 0 {
		moveMean(&h.perToken, &h.prompts, usualBytes, min(max(float64(bytes)/prompt, leastBytes), mostBytes))
	}
	if completion > 0 {
		moveMean(&h.output, &h.answers, usualOutput, min(completion, mostOutput))
	}
}

// moveMean adds a value to a mean. At first the mean covers all values, and later about the last
// 64.
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

// BytesPerToken returns the mean prompt bytes per token, or the default if h is nil.
func (h *RequestStats) BytesPerToken() float64 {
	if h == nil {
		return usualBytes
	}
	return or(&h.perToken, usualBytes)
}

// Denser returns the mean prompt bytes per token. It also returns whether the mean has changed by
// more than an eighth since Denser last reported a change.
func (h *RequestStats) Denser() (bytesPerToken float64, news bool) {
	is, was := h.BytesPerToken(), h.lastDenser.Load()
	if of := or(&h.lastDenser, usualBytes); is > of*denser || is < of/denser {
		return is, h.lastDenser.CompareAndSwap(was, math.Float64bits(is))
	}
	return is, false
}

const denser = 1.125

// Output returns the mean number of output tokens, or the default if h is nil.
func (h *RequestStats) Output() float64 {
	if h == nil {
		return usualOutput
	}
	return or(&h.output, usualOutput)
}
