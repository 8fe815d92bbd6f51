package admin

import "time"

// MaxEndpoints is the maximum number of endpoints in an [EndpointsResult], and MaxAdapters the
// maximum number of adapters of each. MaxRejected is the maximum number of faults of object files.
const (
	MaxEndpoints = 3000
	MaxAdapters  = 64
	MaxRejected  = 10
)

// EndpointsResult is the result of a query of kind [Endpoints]: the endpoints as one extproc sees
// them.
type EndpointsResult struct {
	At    time.Time `json:"at"`
	Pools []Pool    `json:"pools"`
	// Endpoints are sorted by pool and address. An endpoint in several pools is listed once for
	// each. Omitted is the number of endpoints beyond [MaxEndpoints].
	Endpoints []Endpoint `json:"endpoints"`
	Omitted   int        `json:"omitted,omitempty"`
	// Rejected are the faults of the object files that this extproc has rejected, with file and
	// line, at most [MaxRejected]. RejectedFiles is the number of all rejected files. The extproc
	// uses the last valid version of each.
	Rejected      []string `json:"rejected,omitempty"`
	RejectedFiles int      `json:"rejectedFiles,omitempty"`
	// ControlLost reports that control, to which the extproc should be connected, has been silent
	// for too long: requests that need a load fail.
	ControlLost bool `json:"controlLost,omitempty"`
}

// Pool is the state of an InferencePool.
type Pool struct {
	Name   string `json:"name"`
	Policy string `json:"policy"`
	// Waiting explains why policy latency falls back to policy proposal; empty if it does not, and
	// with other policies.
	Waiting string `json:"waiting,omitempty"`
	// FailOpen: most endpoints look unhealthy, so that all that are not out get requests.
	FailOpen bool `json:"failOpen,omitempty"`
	// HoldsWhileEmpty: requests wait while the pool has no endpoint that may get them.
	HoldsWhileEmpty bool `json:"holdsWhileEmpty,omitempty"`
	// Held are the requests that wait in this extproc, by band and reason; empty if none waits.
	Held []Held `json:"held,omitempty"`
}

// Held counts requests of one priority band that wait in an extproc for the same reason.
type Held struct {
	Band int32 `json:"band,omitempty"`
	// Reason is endpoint, copy, room or turn, as in the metric headgate_pool_held_requests.
	Reason   string `json:"reason"`
	Requests int    `json:"requests"`
	// OldestSeconds is how long the first of them has waited.
	OldestSeconds float64 `json:"oldestSeconds"`
}

// Endpoint is the state of an endpoint as a member of one pool.
type Endpoint struct {
	Pool    string `json:"pool"`
	Address string `json:"address"`
	// Pod is the endpoint's pod, as NAMESPACE/NAME, or its EndpointList if Listed is true.
	Pod    string `json:"pod,omitempty"`
	Listed bool   `json:"listed,omitempty"`
	Engine string `json:"engine,omitempty"`
	// State is healthy, suspect, stale, migrating, lost or out. Since is when it began. Reason is
	// why, as one word; empty if the endpoint is healthy.
	State  string    `json:"state"`
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// LastError is the endpoint's latest error; nil if there was none.
	LastError *EndpointError `json:"lastError,omitempty"`
	// InFlight is the number of this extproc's requests at the endpoint. Running, Waiting and KVUse
	// are as the engine last reported: requests in its batch and in its queue, and the share of its
	// KV cache in use, 0 to 1. They are nil if unknown.
	InFlight int64    `json:"inFlight"`
	Running  *float64 `json:"running,omitempty"`
	Waiting  *float64 `json:"waiting,omitempty"`
	KVUse    *float64 `json:"kvUse,omitempty"`
	// Slots is the number of adapter slots on the GPU; 0 if unknown. ActiveAdapters is the number
	// of adapters with requests.
	Slots          int64 `json:"slots,omitempty"`
	ActiveAdapters int64 `json:"activeAdapters,omitempty"`
	// FirstTokenSeconds is the predicted time to first token of a request for the base model, with
	// [ExamplePrompt] tokens; nil if the endpoint can get no request.
	FirstTokenSeconds *float64 `json:"firstTokenSeconds,omitempty"`
	// Base are the names of the base model. Adapters are the first [MaxAdapters] adapters, those
	// with requests first; AdapterCount is the number of all.
	Base         []string  `json:"base,omitempty"`
	Adapters     []Adapter `json:"adapters,omitempty"`
	AdapterCount int       `json:"adapterCount,omitempty"`
}

// ExamplePrompt is the number of prompt tokens of the request for which
// [Endpoint.FirstTokenSeconds] is predicted.
const ExamplePrompt = 256

// Adapter is an adapter that an endpoint serves.
type Adapter struct {
	Name string `json:"name"`
	// Place is where extproc expects the weights: slot, host or storage.
	Place    string `json:"place"`
	InFlight int64  `json:"inFlight,omitempty"`
}

// EndpointError is an error of an endpoint, without its message.
type EndpointError struct {
	At time.Time `json:"at"`
	// Kind is refused, reset, timeout, engine_gone, error (5xx), stream_error, full or stopping for
	// requests; scrape_refused, scrape_timeout or scrape_error for scrapes.
	Kind string `json:"kind"`
	// Status is the HTTP status; 0 if there was no answer. Type and Code are from the error in the
	// answer.
	Status int    `json:"status,omitempty"`
	Type   string `json:"type,omitempty"`
	Code   string `json:"code,omitempty"`
}
