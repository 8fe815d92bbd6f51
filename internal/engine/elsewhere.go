package engine

import (
	"bytes"
	"slices"
)

// MaxWords is how much of an error's body [Elsewhere] and [Missing] need to see: vLLM names every model that it has
// before it says what is wrong.
const MaxWords = 64 << 10

var (
	queueFull = []byte(`"Service Unavailable"`)
	// The second is what a load of an adapter is told that the engine core still hears.
	shuttingDown = [][]byte{[]byte("cannot schedule new futures after shutdown"), []byte("Server shutting down")}
)

// Elsewhere says whether an error means that this engine will not take the request but another may, which is no fault of
// the request: vLLM whose queue is full (503 of type Service Unavailable without Retry-After, --max-num-queued-reqs), or
// that is stopping (500, --shutdown-timeout). Seen on vLLM 0.32.0.
func Elsewhere(status int, retryAfter bool, body []byte) (elsewhere, stopping bool) {
	switch status {
	case 503:
		return !retryAfter && bytes.Contains(body, queueFull), false
	case 500:
		stopping = slices.ContainsFunc(shuttingDown, func(words []byte) bool { return bytes.Contains(body, words) })
	}
	return stopping, stopping
}
