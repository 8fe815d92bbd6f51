// Package kserve turns a call of KServe's V2, or of any gRPC service, into what Headgate needs of it: whether it may pass, and the id of the
// model that its headers, its path or its messages name, and the path or the message with another one. It knows no message's definition, only
// the path of numbers that leads to the field. It is pure.
//
// The engine reads the same bytes with a parser of its own. Wherever two parsers could read two different models out of one message,
// the message is refused, for else a client could be let in for one model and be served by another. (ModelMesh takes the first of
// two such fields, and protobuf's parsers the last.)
package kserve

// Code is a status code of gRPC, as in its trailer grpc-status.
type Code uint32

// The codes. https://grpc.io/docs/guides/status-codes says what each means.
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

// statuses are the HTTP statuses that codes are where a call becomes a request by REST (google/rpc/code.proto, which ModelMesh's REST proxy
// follows too).
var statuses = [...]int{
	OK: 200, Canceled: 499, Unknown: 500, InvalidArgument: 400, DeadlineExceeded: 504, NotFound: 404, AlreadyExists: 409, PermissionDenied: 403,
	ResourceExhausted: 429, FailedPrecondition: 400, Aborted: 409, OutOfRange: 400, Unimplemented: 501, Internal: 500, Unavailable: 503, DataLoss: 500,
	Unauthenticated: 401,
}

// HTTP is the HTTP status of a code; 500 of one that gRPC does not have.
func (c Code) HTTP() int {
	if int(c) < len(statuses) {
		return statuses[c]
	}
	return statuses[Internal]
}

// Error is why a call cannot be served, in words for the client. It quotes nothing of a message.
type Error struct {
	// Code is the status that the call ends with.
	Code Code
	// Reason is a sentence that says what is wrong.
	Reason string
}

func (e *Error) Error() string { return e.Reason }

func fault(code Code, reason string) error { return &Error{code, reason} }
