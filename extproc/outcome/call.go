package outcome

// Call is the status that a gRPC call ended with: a code of gRPC and one more, or [NoCall].
type Call uint8

// NoCall is the status of what is no gRPC call, or ended without a status.
const NoCall Call = 0

// OK is a call that ended well.
const OK Call = 1

// CallOf is the status of a code of gRPC.
func CallOf(code uint8) Call { return Call(code) + 1 }

// Code is the code, and whether there is one.
func (c Call) Code() (code uint8, ok bool) { return uint8(c) - 1, c != NoCall }

// callNames are the codes of gRPC, as its own documents name them (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md).
var callNames = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
	"FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// String is the code's name, empty where there is none.
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

// Faulty says whether the code is a fault of the engine, as those who count errors of servers have it (OpenTelemetry's semantic conventions
// for gRPC), but for UNIMPLEMENTED, which a client brings about by what it calls, and DEADLINE_EXCEEDED, which it has set.
func (c Call) Faulty() bool {
	switch c.String() {
	case "UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS":
		return true
	}
	return false
}
