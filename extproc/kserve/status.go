// Package kserve parses what Headgate needs from a request of KServe's V2 API, or from a call of
// any gRPC service: whether it may pass, and the id of the model that its headers, its path or its
// messages name. The package also writes another id into the path or the messages. It uses no
// message definitions, only the path of field numbers. It is pure.
//
// The engine parses the same bytes with a parser of its own. If two parsers could read different
// models from one message, kserve rejects the message. Otherwise a client could be admitted for one
// model and served by another. (If such a field occurs twice, ModelMesh uses the first, and
// protobuf's parsers use the last.)
package kserve

// Code is a gRPC status code, as in the trailer grpc-status.
type Code uint32

// gRPC's status codes. See https://grpc.io/docs/guides/status-codes.
const (
	OK Code = iota
	Canceled
	Unknown
	InvalidArgument
	DeadlineExceeded
	NotFound
	AlreadyExists
	PermissionDenied
	ResourceExhausted
	FailedPrecondition
	Aborted
	OutOfRange
	Unimplemented
	Internal
	Unavailable
	DataLoss
	Unauthenticated
)

// statuses maps codes to HTTP statuses for REST, as google/rpc/code.proto and ModelMesh's REST
// proxy do.
var statuses = [...]int{
	OK: 200, Canceled: 499, Unknown: 500, InvalidArgument: 400, DeadlineExceeded: 504,
	NotFound: 404, AlreadyExists: 409, PermissionDenied: 403,
	ResourceExhausted: 429, FailedPrecondition: 400, Aborted: 409, OutOfRange: 400,
	Unimplemented: 501, Internal: 500, Unavailable: 503, DataLoss: 500,
	Unauthenticated: 401,
}

// HTTP returns the HTTP status for a code, and 500 for an unknown code.
func (c Code) HTTP() int {
	if int(c) < len(statuses) {
		return statuses[c]
	}
	return statuses[Internal]
}

// Error means that a call cannot be served. Its text is for the client, and quotes nothing of a
// message.
type Error struct {
	// Code is the final status of the call.
	Code Code
	// Reason is a sentence that explains the error.
	Reason string
}

func (e *Error) Error() string { return e.Reason }

func fault(code Code, reason string) error { return &Error{code, reason} }
