package stream

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/processing"
)

// response formats the error as the reply of an API.
func (e apiError) response(of api) *message {
	var body []byte
	switch of {
	case grpc:
		return e.grpc()
	case v2:
		body = encode(map[string]string{"error": e.Message})
	case anthropic:
		body = e.anthropic()
	default:
		body = e.openAI()
	}
	r := immediate(e.status, e.Code, body)
	i := r.Immediate
	if e.retryAfter > 0 {
		i.Set = append(i.Set, header("retry-after", strconv.Itoa(e.retryAfter)))
	}
	if e.accept != "" {
		i.Set = append(i.Set, header("accept-encoding", e.accept))
	}
	if e.final {
		i.Set = append(i.Set, header("x-should-retry", "false"))
	}
	return r
}

// grpc formats the error as a gRPC status. For errors that ModelMesh also returns, it uses
// ModelMesh's text.
func (e apiError) grpc() *message {
	code, words := e.callStatus()
	return &message{Immediate: &processing.Immediate{
		Status: e.status, // Envoy replaces it by 200
		Call:   true, Code: uint32(code),
		Body:    []byte(words),
		Details: wire.ReplyDetails + "_" + e.Code,
	}}
}

// callStatus returns the gRPC status of the error.
func (e apiError) callStatus() (code kserve.Code, words string) {
	code, words = e.call, e.Message
	if code == 0 { // the error has no code of its own
		switch code = codeOf(e.status); e.Code {
		case "model_not_found":
			code, words = kserve.NotFound, "model not found"
		case "model_load_failed", "load_timeout":
			code = kserve.Internal
		case "too_many_waiting":
			words = "Model queue overload"
		}
	}
	return code, words
}

// codeOf returns the gRPC code for an HTTP status.
func codeOf(status int) kserve.Code {
	switch status {
	case http.StatusBadRequest:
		return kserve.InvalidArgument
	case http.StatusNotFound, http.StatusNotImplemented, http.StatusUnsupportedMediaType:
		return kserve.Unimplemented
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		return kserve.ResourceExhausted
	case http.StatusServiceUnavailable:
		return kserve.Unavailable
	case http.StatusGatewayTimeout:
		return kserve.DeadlineExceeded
	}
	return kserve.Internal
}

// statusOf returns the HTTP status for a gRPC code. It treats ResourceExhausted as a message that
// is too large.
func statusOf(code kserve.Code) int {
	if code == kserve.ResourceExhausted {
		return http.StatusRequestEntityTooLarge
	}
	return code.HTTP()
}

func (e apiError) openAI() []byte {
	type fields struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	f := fields{Message: e.Message, Type: e.Type, Code: e.Code}
	if e.Param != "" {
		f.Param = &e.Param
	}
	return encode(map[string]fields{"error": f})
}

// anthropicTypes maps HTTP statuses to the error types that Anthropic's API documents.
var anthropicTypes = map[int]string{
	http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests: "rate_limit_error", http.StatusGatewayTimeout: "timeout_error",
}

func (e apiError) anthropic() []byte {
	type fields struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	kind := anthropicTypes[e.status]
	switch {
	case kind != "":
	case e.status < http.StatusInternalServerError:
		kind = "invalid_request_error"
	case e.retryAfter > 0: // overloaded, for which Anthropic itself uses status 529
		kind = "overloaded_error"
	default:
		kind = "api_error"
	}
	return encode(struct {
		Type  string `json:"type"`
		Error fields `json:"error"`
	}{"error", fields{kind, e.Message}})
}

func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // marshaling strings and numbers never fails
	}
	return body
}

// immediate returns a reply of extproc itself. The argument code becomes its details, which keep
// Envoy from rewriting the body.
func immediate(status int, code string, body []byte) *message {
	return &message{Immediate: &processing.Immediate{
		Status:  status,
		Set:     []processing.Header{header("content-type", "application/json")},
		Body:    body,
		Details: wire.ReplyDetails + "_" + code,
	}}
}

// header returns a header to set.
func header(name, value string) processing.Header { return processing.Header{Name: name, Value: value} }
