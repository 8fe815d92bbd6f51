package outcome

// Call is the final status of a gRPC call: the gRPC code plus one, or [NoCall].
type Call uint8

// NoCall is the status of a request that is no gRPC call, or that ended without a status.
const NoCall Call = 0

// OK is the status of a successful call.
const OK Call = 1

// CallOf returns the status for a gRPC code.
func CallOf(code uint8) Call { return Call(code) + 1 }

// Code returns the gRPC code; ok is false if there is none.
func (c Call) Code() (code uint8, ok bool) { return uint8(c) - 1, c != NoCall }

// callNames are the names of gRPC's codes
// (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md).
var callNames = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED",
	"FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// String returns the code's name; empty for [NoCall].
func (c Call) String() string {
	code, ok := c.Code()
	switch {
	case !ok:
		return ""
	case int(code) < len(callNames):
		return callNames[code]
	}
	return "OTHER"
}

// Faulty reports whether the code is a server error, as OpenTelemetry's semantic conventions for
// gRPC define it. UNIMPLEMENTED and DEADLINE_EXCEEDED are not faulty here, because the client
// causes them.
func (c Call) Faulty() bool {
	switch c.String() {
	case "UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS":
		return true
	}
	return false
}
