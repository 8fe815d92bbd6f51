package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// failure is an error answer in the words of vLLM.
type failure struct {
	status  int
	kind    string // the member "type" of the body
	message string
	param   string // "" becomes null
}

func (f *failure) Error() string { return f.message }

// Answers of a stopping vLLM: shutdown to requests that need the tokenizer, shuttingDown to a load
// while the core still has requests.
var (
	shutdown     = &failure{http.StatusInternalServerError, "InternalServerError", "cannot schedule new futures after shutdown", ""}
	shuttingDown = &failure{http.StatusInternalServerError, "InternalServerError", "Server shutting down", ""}
)

// busy is the answer if the queue is full.
var busy = &failure{
	http.StatusServiceUnavailable, "Service Unavailable",
	"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", "",
}

// bad returns the failure for a request with invalid values.
func bad(param, format string, args ...any) *failure {
	return &failure{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// badValue is like bad, but its message ends with the parameter and the value.
func badValue(param string, value any, format string, args ...any) *failure {
	return bad(param, "%s (parameter=%s, value=%v)", fmt.Sprintf(format, args...), param, value)
}

// notFound returns the failure for an unknown name.
func notFound(param, format string, args ...any) *failure {
	return &failure{http.StatusNotFound, "NotFoundError", fmt.Sprintf(format, args...), param}
}

// invalidInput returns the failure for an invalid request about adapters.
func invalidInput(format string, args ...any) *failure {
	return &failure{http.StatusBadRequest, "InvalidUserInput", fmt.Sprintf(format, args...), ""}
}

// malformed returns the failure for a malformed body. loc is the location in pydantic's words.
func malformed(kind, loc, msg, input string) *failure {
	return invalid(loc, fmt.Sprintf("{'type': '%s', 'loc': '%s', 'msg': '%s', 'input': '%s'}", kind, loc, msg, input))
}

// invalid returns the failure for a body with a single problem.
func invalid(loc, problem string) *failure {
	return &failure{http.StatusBadRequest, "Bad Request", "1 validation error:\n  " + problem, loc}
}

// body returns the error as JSON.
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

// messagesBody returns the error in the form of /v1/messages.
func (f *failure) messagesBody() []byte {
	return fmt.Appendf(nil, `{"type":"error","error":{"type":%s,"message":%s}}`, quote(f.kind), quote(f.message))
}

// quote returns text as a JSON string in which <, > and & are not escaped.
func quote(text string) []byte {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	// Encoding a string cannot fail.
	_ = e.Encode(text)
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
