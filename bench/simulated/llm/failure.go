package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// failure is an answer that is an error, in the words of vLLM.
type failure struct {
	status  int
	kind    string // "type" on the wire
	message string
	param   string // "" is null
}

func (f *failure) Error() string { return f.message }

// What a vLLM that is stopping says: to whatever has text to be tokenized, and to a load while the core has requests.
var (
	shutdown     = &failure{http.StatusInternalServerError, "InternalServerError", "cannot schedule new futures after shutdown", ""}
	shuttingDown = &failure{http.StatusInternalServerError, "InternalServerError", "Server shutting down", ""}
)

// busy is what a full queue says.
var busy = &failure{
	http.StatusServiceUnavailable, "Service Unavailable",
	"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", "",
}

// bad is a request whose values make no sense together.
func bad(param, format string, args ...any) *failure {
	return &failure{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// badValue is bad in the form that names the parameter again at the end.
func badValue(param string, value any, format string, args ...any) *failure {
	return bad(param, "%s (parameter=%s, value=%v)", fmt.Sprintf(format, args...), param, value)
}

// notFound is a name that nothing is known by.
func notFound(param, format string, args ...any) *failure {
	return &failure{http.StatusNotFound, "NotFoundError", fmt.Sprintf(format, args...), param}
}

// invalidInput is a request about adapters that cannot be.
func invalidInput(format string, args ...any) *failure {
	return &failure{http.StatusBadRequest, "InvalidUserInput", fmt.Sprintf(format, args...), ""}
}

// malformed is a body that does not have the form of its type, with what pydantic would say of the place.
func malformed(kind, loc, msg, input string) *failure {
	return invalid(loc, fmt.Sprintf("{'type': '%s', 'loc': '%s', 'msg': '%s', 'input': '%s'}", kind, loc, msg, input))
}

// invalid is a body with the one problem.
func invalid(loc, problem string) *failure {
	return &failure{http.StatusBadRequest, "Bad Request", "1 validation error:\n  " + problem, loc}
}

// body is the error as JSON.
func (f *failure) body() []byte {
	b := append([]byte(`{"error":{"message":`), quote(f.message)...)
	b = append(append(b, `,"type":`...), quote(f.kind)...)
	b = append(b, `,"param":`...)
	if f.param == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, quote(f.param)...)
	}
	return fmt.Appendf(b, `,"code":%d}}`, f.status)
}

// messagesBody is the error as /v1/messages words it.
func (f *failure) messagesBody() []byte {
	return fmt.Appendf(nil, `{"type":"error","error":{"type":%s,"message":%s}}`, quote(f.kind), quote(f.message))
}

// quote is text as JSON, with <, > and & as they are.
func quote(text string) []byte {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	// A string always encodes.
	_ = e.Encode(text)
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
