// Package kserve reads and changes gRPC calls of inference as they are on the wire: messages in their frames, and the field of a
// message that names the model. It knows no message's definition, only the path of numbers that leads to the field.
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
	ResourceExhausted Code = 8
	Unimplemented     Code = 12
	Internal          Code = 13
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
