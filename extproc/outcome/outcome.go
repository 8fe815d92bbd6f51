// Package outcome says what became of requests: what went wrong, what the answer told of its engine, and what of that is held
// against the endpoint. Who tells it is accesslog, of Envoy's records, and stream, of answers that pass (see [Answer]). It is pure.
package outcome

import (
	"slices"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// Failure is what went wrong between Envoy and the engine, or the client.
type Failure string

const (
	// None is a request that came to its end, whatever its status.
	None Failure = ""
	// Refused is an endpoint that took no connection.
	Refused Failure = "refused"
	// Reset is an endpoint that dropped the connection before its answer was whole.
	Reset Failure = "reset"
	// TimedOut is an endpoint that fell silent for longer than Envoy waits.
	TimedOut Failure = "timeout"
	// ClientGone is a client that went away.
	ClientGone Failure = "client_gone"
	// NoEndpoint is a request that Envoy had nowhere to send: extproc was away, or gave it no endpoint.
	NoEndpoint Failure = "no_endpoint"
	// Cut is an answer that ended before it was whole, where nobody says who ended it.
	Cut Failure = "cut"
	// Erred is an answer of status 200 that carries an error of the endpoint, at once or after some output.
	Erred Failure = "stream_error"
	// Gone is an endpoint that refuses connections and went silent in the middle of the request, which extproc therefore ended.
	Gone Failure = "engine_gone"
	// Other is anything else that Envoy flags.
	Other Failure = "other"
)

// Progress is how far a request has come that goes on, by one of the periodic records of Envoy's access log.
type Progress struct {
	ID       string // of the decision
	Endpoint string // that serves it; empty while none does
	Bytes    uint64 // received from the endpoint
}

// Outcome is what became of one request. A duration that is not known is zero.
type Outcome struct {
	Route, Pool, Model string // as extproc decided; empty for a request that it did not send on
	Stream             bool   // the client asked for one, or got one
	ID                 string // of the decision
	// Endpoint is the one that served, else the first that was picked, else empty; empty too where nothing was sent to any.
	Endpoint string
	// Elsewhere are the endpoints that asked for the request to be tried elsewhere, Stopping those of them that did because
	// they are stopping, Unreached the picks that took no connection: those before Endpoint, or all where none is left.
	Elsewhere, Stopping, Unreached []string
	// Missing are the endpoints that answered that they have no such model.
	Missing []string
	// Again says that the request was sent once more, after no endpoint had served it.
	Again bool

	Status   int  // 0 if no response began
	Call     Call // the status of a gRPC call, which a response of 200 may end with
	Failure  Failure
	Attempts int
	// ByExtproc says that extproc gave the reply itself, ByEnvoy that Envoy did.
	ByExtproc, ByEnvoy bool

	Began    time.Time     // when the request did; zero if that is not known
	Duration time.Duration // the whole request
	// FirstBody is from the request's last byte to the first output of a stream, to the first byte of another body.
	FirstBody time.Duration
	// Gateway is the gateway's own share: from the request's first byte to the first sent to the engine, without the time in
	// which the request was held for its model.
	Gateway time.Duration

	Prompt, Completion engine.Value // tokens
	// Bytes is how long the prompt was, and Expected when its first token was expected, from the request's last byte; 0 where that is not known.
	Bytes    int
	Expected time.Duration
	// Held is for how long the request waited for its model in the gateway. It is part of Expected and of FirstBody.
	Held time.Duration
	// Adapter is where the adapter was of a request whose first token tells of loads and of what is before an engine's queue: storage, host, slot or
	// none; empty of all others. Loading is what of Expected these were to take.
	Adapter string
	Loading time.Duration
	// Among is how many requests the endpoint had when this one was sent, itself among them, if it has no tokens; 0 of all others. Answered is from
	// the last byte that the endpoint got of the request to the last of its answer.
	Among      int64
	Answered   time.Duration
	ResponseID string // what the engine calls its answer
	// Stored is the id of the stored response that the request asked each endpoint for, empty if it did not; Without are the endpoints before the
	// last that did not have it, and Everybody says that all who might have it were picked.
	Stored    string
	Without   []string
	Everybody bool
	// Load is what the engine said of itself with the response, unknown if it said nothing.
	Load engine.Load
}

// Found says whether the endpoint has the stored response that the request asked for.
func (o Outcome) Found() bool { return o.Stored != "" && o.Well() && o.Status < 300 }

// Nowhere says whether each endpoint that might have the stored response answered that it does not.
func (o Outcome) Nowhere() bool {
	return o.Stored != "" && o.Everybody && o.Well() && o.Status == 404 && len(o.Unreached)+len(o.Elsewhere)+len(o.Missing) == 0
}

// Suspicious returns the endpoints to be scraped at once: those that refused or dropped the request, or that have no such model.
func (o Outcome) Suspicious() []string {
	all := slices.Concat(o.Unreached, o.Missing)
	if o.Endpoint != "" && (o.Failure == Refused || o.Failure == Reset) {
		all = append(all, o.Endpoint)
	}
	return all
}

// Faulty says that the endpoint answered with a fault of its own. That it would not take the request is none, nor is what Envoy
// says itself: of a request with too many headers, or an answer that is too large for it.
func (o Outcome) Faulty() bool {
	if o.Failure == Erred {
		return true
	}
	fault := o.Status >= 500 && o.Status != 501 || o.Call.Faulty()
	return fault && !slices.Contains(o.Elsewhere, o.Endpoint) && o.Failure == None && !o.ByExtproc && !o.ByEnvoy
}

// asPredicted reports whether a first token tells how right its prediction was: that of a stream that ended well at its first endpoint.
func (o Outcome) asPredicted() bool {
	return o.Stream && o.FirstBody > 0 && o.Expected > 0 && o.Well() && o.Status == 200 && o.Attempts <= 1 && len(o.Unreached)+len(o.Elsewhere)+len(o.Missing) == 0
}

// Foretold returns the ratio of actual to predicted time to first token. A request that was held for its model gives none: its wait is in both.
func (o Outcome) Foretold() (ratio float64, tells bool) {
	if !o.asPredicted() || o.Held > 0 {
		return 0, false
	}
	return o.FirstBody.Seconds() / o.Expected.Seconds(), true
}

// Loaded returns how much later the first token came than predicted without the load and the time before the engine's queue.
func (o Outcome) Loaded() (late time.Duration, tells bool) {
	return o.FirstBody - (o.Expected - o.Loading), o.asPredicted() && o.Adapter != ""
}

// Alone is how long the endpoint would have taken for the request alone, of one without tokens that went well where it was sent first.
func (o Outcome) Alone() (took time.Duration, tells bool) {
	if o.Among <= 0 || o.Answered <= 0 || !o.Well() || o.Status != 200 || o.Attempts > 1 || len(o.Unreached)+len(o.Elsewhere)+len(o.Missing) > 0 {
		return 0, false
	}
	if o.Call != NoCall && o.Call != OK {
		return 0, false
	}
	return o.Answered / time.Duration(o.Among), true
}

// Well says that the endpoint answered as it should: with what was asked for, or with a fault of the request.
func (o Outcome) Well() bool {
	return o.Failure == None && o.Status > 0 && o.Status < 500 && !o.Call.Faulty() && !o.ByExtproc && !o.ByEnvoy
}
