package admin

// ExplainQuery is a request that extproc decides without sending it: a dry run.
type ExplainQuery struct {
	Method  string      `json:"method,omitempty"` // POST if it is empty
	Path    string      `json:"path,omitempty"`   // /v1/chat/completions if it is empty
	Headers [][2]string `json:"headers,omitempty"`
	Body    []byte      `json:"body,omitempty"`
	// Listener is the listener of a Gateway at which the request arrives, and Pool the pool
	// ("namespace/name") that its HTTPRoute names. Both are empty for the standalone data plane.
	Listener string `json:"listener,omitempty"`
	Pool     string `json:"pool,omitempty"`
}

// ExplainResult is the result of a query of kind [Explain].
type ExplainResult struct {
	Plan
	// Waits is what the request would wait for; empty if it would be sent or rejected at once.
	Waits string `json:"waits,omitempty"`
	// Answer means that extproc itself would answer the request, without an error.
	Answer bool `json:"answer,omitempty"`
	// Candidates are all endpoints of the pool: first the candidates in the policy's order, and
	// then the endpoints that are none.
	Candidates []Candidate `json:"candidates,omitempty"`
}
