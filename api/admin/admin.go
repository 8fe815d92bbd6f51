// Package admin contains the JSON that extproc and control answer to queries about the state of
// extprocs. Both answer on loopback only, at the port of their metrics. extproc answers for itself;
// control asks all extprocs that are connected to it.
package admin

import "encoding/json"

// The kinds of queries.
const (
	// Endpoints asks for the state of all endpoints: GET /endpoints.
	Endpoints = "endpoints"
	// Decisions asks for the decisions about the requests with an id: GET /decisions?id=ID. The
	// body of the query is a [DecisionsQuery].
	Decisions = "decisions"
	// Explain asks how a request would be decided: POST /explain. The body of the query is an
	// [ExplainQuery].
	Explain = "explain"
)

const (
	// MaxBody is the maximum size of a query's body, in bytes.
	MaxBody = 8 << 20
	// MaxResult is the maximum size of one extproc's result, in bytes.
	MaxResult = 3 << 20
)

// Answers is the answer to a query.
type Answers struct {
	// Extprocs has one Answer for each extproc that was asked, sorted by name. It is empty if no
	// extproc is connected to the control that was asked.
	Extprocs []Answer `json:"extprocs"`
}

// Answer is the answer of one extproc.
type Answer struct {
	// Extproc is the name of the extproc: "host/process id". In a cluster, the host is its pod.
	Extproc string `json:"extproc"`
	Version string `json:"version,omitempty"`
	// Error says in one sentence why there is no result; empty if there is one.
	Error string `json:"error,omitempty"`
	// Result depends on the kind of the query.
	Result json.RawMessage `json:"result,omitempty"`
}

// DecisionsQuery selects decisions.
type DecisionsQuery struct {
	// ID is the id of a request (its header x-request-id).
	ID string `json:"id"`
}
