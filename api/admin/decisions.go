package admin

import "time"

// DecisionsResult is the result of a query of kind [Decisions]: the decisions about requests with
// an id, the latest first. Clients may choose ids, so several requests may have the same. A request
// that extproc's relay sent through Envoy again has two decisions.
type DecisionsResult struct {
	Decisions []Decision `json:"decisions"`
	// More means that there are more decisions with this id, which were left out.
	More bool `json:"more,omitempty"`
	// Kept is the number of decisions that extproc has in memory now, of any id.
	Kept int `json:"kept"`
}

// Decision is the decision about a request, and the request's outcome.
type Decision struct {
	Time    time.Time `json:"time"`
	Request string    `json:"request"`
	Plan
	// Again means that the relay sent the request again, because no endpoint had served it.
	Again   bool    `json:"again,omitempty"`
	Waited  float64 `json:"waited,omitempty"` // seconds in extproc's queue
	WaitFor string  `json:"waitFor,omitempty"`
	// Reason is what it waited for as a word: endpoint, copy, room, turn or control.
	Reason string `json:"reason,omitempty"`
	// Band is the priority of the route.
	Band    int32    `json:"band,omitempty"`
	Outcome *Outcome `json:"outcome,omitempty"`
}

// Plan is what extproc decides about a request.
type Plan struct {
	Route  string `json:"route,omitempty"`
	Pool   string `json:"pool,omitempty"`
	Model  string `json:"model,omitempty"`  // the client's name of the model
	VModel string `json:"vmodel,omitempty"` // the VModel that this name means
	Target string `json:"target,omitempty"` // the engine's name of the model
	Policy string `json:"policy,omitempty"`
	// Fallback is the fallback of the route that serves the request: the name of a pool, or
	// baseModel; empty if none serves it.
	Fallback string `json:"fallback,omitempty"`
	// Instead is the rule that decided in place of the policy, and why; empty if the policy
	// decided.
	Instead string `json:"instead,omitempty"`
	// PromptTokens and OutputTokens are what the policy expected.
	PromptTokens int `json:"promptTokens,omitempty"`
	OutputTokens int `json:"outputTokens,omitempty"`
	// Picks are the endpoints that Envoy may try, in order.
	Picks []Candidate `json:"picks,omitempty"`
	// Relay means that extproc's relay is the last pick: it sends the request again if no endpoint
	// serves it.
	Relay bool `json:"relay,omitempty"`
	// RunnerUp is the policy's second choice, if it is not among the picks.
	RunnerUp *Candidate `json:"runnerUp,omitempty"`
	// Error is why extproc does not send the request anywhere.
	Error *Error `json:"error,omitempty"`
}

// Error is an error of extproc, as the client gets it.
type Error struct {
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// Candidate is an endpoint as the policy saw it when it decided.
type Candidate struct {
	Endpoint string `json:"endpoint"`
	State    string `json:"state"`
	Reason   string `json:"reason,omitempty"` // why the policy put it at its rank
	// Excluded is why the endpoint is no candidate; empty if it is one.
	Excluded string `json:"excluded,omitempty"`
	// NoRoom is why the engine could not start the request at once; empty if it could, and in
	// [DecisionsResult]. A candidate without room is only for retries.
	NoRoom string `json:"noRoom,omitempty"`
	// Seconds is the predicted time to first token; absent if there is no prediction.
	Seconds *float64 `json:"seconds,omitempty"`
	// Requests is the number of other requests at the endpoint.
	Requests int64 `json:"requests"`
	// AdapterRequests is the number of them for the same adapter, and Adapters the number of
	// adapters with requests. They are absent for a base model.
	AdapterRequests *int64 `json:"adapterRequests,omitempty"`
	Adapters        *int64 `json:"adapters,omitempty"`
	// Terms are the terms of policy latency; absent if there is no prediction.
	Terms *Terms `json:"terms,omitempty"`
}

// Terms are the terms of policy latency for an endpoint. Times are in seconds. Own and Others are
// shares of the requests' objectives; the policy takes the endpoint with the least sum of both.
type Terms struct {
	FrontendOverhead float64 `json:"frontendOverhead"`
	Queue            float64 `json:"queue"`
	Room             float64 `json:"room"`
	Load             float64 `json:"load"`
	Prefill          float64 `json:"prefill"`
	Delay            float64 `json:"delay"`
	Step             float64 `json:"step"`
	Longer           float64 `json:"longer"`
	Own              float64 `json:"own"`
	Others           float64 `json:"others"`
	Adapter          string  `json:"adapter"` // where the adapter was: storage, host or slot
}

// Outcome is what became of a request.
type Outcome struct {
	// Status is the HTTP status that the client got; 0 if no answer began. Call is the final status
	// of a gRPC call.
	Status int    `json:"status"`
	Call   string `json:"call,omitempty"`
	// Failed is who caused the request to fail: client, gateway, engine, or unknown; empty if it
	// did not fail. Why says more, such as refused, reset or timeout.
	Failed   string `json:"failed,omitempty"`
	Why      string `json:"why,omitempty"`
	Error    *Error `json:"error,omitempty"`    // extproc's own answer
	Endpoint string `json:"endpoint,omitempty"` // the endpoint that served it, or was tried last
	Attempts int    `json:"attempts,omitempty"`
	// Tried are the endpoints that were tried before, with what each did.
	Tried []Tried `json:"tried,omitempty"`
	// FirstByte is the time from the last byte of the request to the first token of a stream, or to
	// the first byte of another answer. Duration is that of the whole request. Both are in seconds.
	FirstByte        float64 `json:"firstByte,omitempty"`
	Duration         float64 `json:"duration,omitempty"`
	PromptTokens     int     `json:"promptTokens,omitempty"`
	CompletionTokens int     `json:"completionTokens,omitempty"`
}

// Tried is an endpoint that did not serve a request.
type Tried struct {
	Endpoint string `json:"endpoint"`
	Did      string `json:"did"`
}
