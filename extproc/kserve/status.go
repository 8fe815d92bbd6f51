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

// The codes of this package's errors. https://grpc.io/docs/guides/status-codes says what each means.
const (
	InvalidArgument   Code = 3
	DeadlineExceeded  Code = 4
	NotFound          Code = 5
	ResourceExhausted Code = 8
	Unimplemented     Code = 12
	Internal          Code = 13
	Unavailable       Code = 14
)

// Error is why a call cannot be served, in words for the client. It quotes nothing of a message.
type Error struct {
	// Code is the status that the call ends with.
	Code Code
	// Reason is a sentence that says what is wrong.
	Reason string
}

func (e *Error) Error() string { return e.Reason }

func fault(code Code, reason string) error { return &Error{code, reason} }
