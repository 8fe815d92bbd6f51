// Package outcome describes the outcomes of requests: the failure, the engine's tokens, times and
// load, and whether the result counts against the endpoint. Package accesslog reads outcomes from
// Envoy's records, and package stream from responses (see [Answer]). It is pure.
package outcome

import (
	"slices"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// Failure is the kind of error between Envoy and the engine, or between Envoy and the client.
type Failure string

const (
	// None means that the response was complete, whatever its status.
	None Failure = ""
	// Refused means that the endpoint refused the connection.
	Refused Failure = "refused"
	// Reset means that the endpoint closed the connection before the response was complete.
	Reset Failure = "reset"
	// TimedOut means that the endpoint was silent for longer than Envoy waits.
	TimedOut Failure = "timeout"
	// ClientGone means that the client disconnected.
	ClientGone Failure = "client_gone"
	// NoEndpoint means that Envoy had no endpoint: extproc was unavailable, or named no endpoint.
	NoEndpoint Failure = "no_endpoint"
	// Cut means that the response ended early, for an unknown reason.
	Cut Failure = "cut"
	// Erred means that a response with status 200 contains an error of the endpoint, at its start
	// or after some output.
	Erred Failure = "stream_error"
	// EngineGone means that the endpoint refused connections and became silent during the request,
	// so that extproc ended the request.
	EngineGone Failure = "engine_gone"
	// Other means any response flag of Envoy without a Failure of its own.
	Other Failure = "other"
)

// Progress is a periodic access-log record of a request in flight.
type Progress struct {
	ID       string // id of the decision
	Endpoint string // endpoint that serves the request; may be empty
	Bytes    uint64 // number of bytes received from the endpoint
}

// Outcome is the outcome of one request. An unknown duration is zero.
type Outcome struct {
	Route, Pool, Model string // extproc's decision; empty if extproc forwarded nothing
	Stream             bool   // whether the client requested or got a stream
	ID                 string // id of the decision
	// Endpoint is the endpoint that served the request. If none did, it is the first pick; it is
	// empty if the request was sent to no endpoint.
	Endpoint string
	// Elsewhere are the endpoints that asked for a retry at another endpoint, and Stopping are
	// those that asked for it because they are stopping. Unreached are the picks that refused the
	// connection: those before Endpoint, or all picks if none served.
	Elsewhere, Stopping, Unreached []string
	// Missing are the endpoints that answered that they do not have the model.
	Missing []string
	// Again means that the relay sent the request again, because no endpoint had served it before.
	Again bool

	Status int // 0 if there was no response
	// ErrorType and ErrorCode are those of an error in the response, as the engine states them;
	// empty if there is none.
	ErrorType, ErrorCode string
	// ErrorMessage is the beginning of the error's message, which may quote a prompt; empty if
	// unknown.
	ErrorMessage string
	Call         Call // final status of a gRPC call
	Failure      Failure
	Attempts     int
	// ByExtproc means that extproc itself answered the request, and ByEnvoy that Envoy itself did.
	ByExtproc, ByEnvoy bool

	Began    time.Time     // start of the request; zero if unknown
	Duration time.Duration // duration of the whole request
	// FirstBody is the time from the request's last byte to a stream's first output, or to the
	// first byte of a body that is not a stream.
	FirstBody time.Duration
	// Gateway is the gateway overhead: the time from the request's first byte to the first byte
	// that was sent to the engine, minus the queue time.
	Gateway time.Duration

	Prompt, Completion engine.Value // numbers of tokens
	// Bytes is the size of the prompt. Expected is the predicted time from the request's last byte
	// to the first token. Both are 0 if unknown.
	Bytes    int
	Expected time.Duration
	// QueueTime is the time in extproc's queue. Expected and FirstBody include it.
	QueueTime time.Duration
	// Adapter is where the adapter was predicted to be (storage, host, slot or none) if load times
	// and frontend overhead can be derived from the first token; otherwise it is empty. Loading is
	// the part of Expected for the load and the frontend overhead.
	Adapter string
	Loading time.Duration
	// Among is the number of requests at the endpoint when this request was sent, including itself;
	// it is 0 if the model has tokens. Answered is the time from the last byte that the endpoint
	// received to the last byte that it sent.
	Among      int64
	Answered   time.Duration
	ResponseID string // the engine's id of the response
	// Stored is the id of the stored response that the request asked for, or empty. Without are the
	// endpoints that were tried before the last one and did not have the response. Everybody means
	// that every endpoint that may have the response was picked.
	Stored    string
	Without   []string
	Everybody bool
	// Load is the engine's load report in the response; unknown if there is none.
	Load engine.Load
}

// Found reports whether the endpoint has the stored response.
func (o Outcome) Found() bool { return o.Stored != "" && o.Well() && o.Status < 300 }

// Nowhere reports whether every endpoint that may have the stored response answered that it does
// not have it.
func (o Outcome) Nowhere() bool {
	return o.Stored != "" && o.Everybody && o.Well() && o.Status == 404 && len(o.Unreached)+len(o.Elsewhere)+len(o.Missing) == 0
}

// Suspicious returns the endpoints to scrape at once: those that refused the request, dropped its
// connection, or do not have the model.
func (o Outcome) Suspicious() []string {
	all := slices.Concat(o.Unreached, o.Missing)
	if o.Endpoint != "" && (o.Failure == Refused || o.Failure == Reset) {
		all = append(all, o.Endpoint)
	}
	return all
}

// Faulty reports whether the endpoint failed. A rejected request is no failure, and neither are
// Envoy's own errors, such as too many headers or a response that is too large.
func (o Outcome) Faulty() bool {
	if o.Failure == Erred {
		return true
	}
	fault := o.Status >= 500 && o.Status != 501 || o.Call.Faulty()
	return fault && !slices.Contains(o.Elsewhere, o.Endpoint) && o.Failure == None && !o.ByExtproc && !o.ByEnvoy
}

// atFirst reports whether the request succeeded at the first endpoint that it was sent to.
func (o Outcome) atFirst() bool {
	return o.Well() && o.Status == 200 && o.Attempts <= 1 && len(o.Unreached)+len(o.Elsewhere)+len(o.Missing) == 0
}

// asPredicted reports whether the time to first token can be compared with its prediction: the
// response is a stream that succeeded at its first endpoint.
func (o Outcome) asPredicted() bool {
	return o.Stream && o.FirstBody > 0 && o.Expected > 0 && o.atFirst()
}

// Predicted returns the ratio of actual to predicted time to first token; tells is false if there
// is none. A queued request has none, because both times include its queue time.
func (o Outcome) Predicted() (ratio float64, tells bool) {
	if !o.asPredicted() || o.QueueTime > 0 {
		return 0, false
	}
	return o.FirstBody.Seconds() / o.Expected.Seconds(), true
}

// Loaded returns how much later the first token arrived than predicted without the load and the
// frontend overhead; tells is false if this is unknown.
func (o Outcome) Loaded() (late time.Duration, tells bool) {
	return o.FirstBody - (o.Expected - o.Loading), o.asPredicted() && o.Adapter != ""
}

// Alone returns how long a request without tokens would take if it were alone at the endpoint;
// tells is false if this is unknown. It is known only if the request succeeded at its first pick.
func (o Outcome) Alone() (took time.Duration, tells bool) {
	if o.Among <= 0 || o.Answered <= 0 || !o.atFirst() {
		return 0, false
	}
	if o.Call != NoCall && o.Call != OK {
		return 0, false
	}
	return o.Answered / time.Duration(o.Among), true
}

// Well reports whether the endpoint works: it served the request, or rejected a faulty request.
func (o Outcome) Well() bool {
	return o.Failure == None && o.Status > 0 && o.Status < 500 && !o.Call.Faulty() && !o.ByExtproc && !o.ByEnvoy
}
