package engine

import (
	"bytes"
	"slices"
)

// MaxWords is how many bytes of an error's body [Elsewhere] and [Missing] need: vLLM lists all its
// models before it says what is wrong.
const MaxWords = 64 << 10

var (
	queueFull = []byte(`"Service Unavailable"`)
	// shuttingDown are two messages. The second one is the response to an adapter load that the
	// engine core still receives.
	shuttingDown = [][]byte{[]byte("cannot schedule new futures after shutdown"), []byte("Server shutting down")}
)

// Elsewhere reports whether an error means that this engine rejects the request but another may
// accept it, so that the request is not at fault: a vLLM with a full queue (503 of type Service
// Unavailable without Retry-After, --max-num-queued-reqs), or one that is stopping (500,
// --shutdown-timeout). Observed with vLLM 0.32.0.
func Elsewhere(status int, retryAfter bool, body []byte) (elsewhere, stopping bool) {
	switch status {
	case 503:
		return !retryAfter && bytes.Contains(body, queueFull), false
	case 500:
		stopping = slices.ContainsFunc(shuttingDown, func(words []byte) bool { return bytes.Contains(body, words) })
	}
	return stopping, stopping
}
