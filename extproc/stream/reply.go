package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
)

// Errors that arise before a body is read.
var (
	errUnknownPath = errors.New("not an inference request")
	errEncoded     = errors.New("the body has a content encoding")
	errTooLarge    = errors.New("the body is too large")
	// errNoModel is a request of which the data plane shows no body and names no model.
	errNoModel = errors.New("the data plane names no model")
	// errRename is a route that renames where no body can be changed.
	errRename = errors.New("the data plane shows no body in which the model could be renamed")
	// errUnknownAnswer is a request about an answer that nobody remembers.
	errUnknownAnswer = errors.New("nobody knows the answer")
	// errNotHeard is a model that no object admits, before control has said which others there are.
	errNotHeard = errors.New("control has not said which models are registered")
	// errStopping is a request that waited for its model when extproc ended.
	errStopping = errors.New("extproc ends")
	// errExpired is a request that waited for its model as long as it may.
	errExpired = errors.New("the model was not loaded in time")
)

// apiError is what a client is told, in the shape of OpenAI's API.
type apiError struct {
	status int
	// Type, Code and Param are for programs, Message is for people. Param may be empty.
	Type, Code, Param, Message string
	// retryAfter is in seconds; 0 means that trying again will not help.
	retryAfter int
}

const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
	rateLimited    = "rate_limit_error"
)

// retrySoon is for what the next scrape may mend. It is the least that the header can say.
const retrySoon = 1

// retryLater is for what is not mended by itself soon: a model that could not be loaded anywhere is not tried again for
// minutes, and a crowd that waits for one should not come back at once.
const retryLater = 10

// describe is the one place that turns an error into what a client is told. Model is the name that the client used, if
// it is known by then. An error that is not on the list is a fault of ours and says nothing of itself.
func describe(err error, model string) apiError {
	var body *openai.Error
	switch {
	case errors.As(err, &body):
		return apiError{status: http.StatusBadRequest, Type: invalidRequest, Code: "invalid_request", Param: body.Param, Message: body.Reason}
	case errors.Is(err, errUnknownPath):
		return apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "unknown_url", Message: "This gateway serves no such method and path."}
	case errors.Is(err, errEncoded):
		return apiError{status: http.StatusUnsupportedMediaType, Type: invalidRequest, Code: "unsupported_content_encoding", Message: "Send the body without a content encoding."}
	case errors.Is(err, errTooLarge):
		return apiError{status: http.StatusRequestEntityTooLarge, Type: invalidRequest, Code: "request_too_large", Message: fmt.Sprintf("The body has more than %d MiB.", maxBody>>20)}
	case errors.Is(err, errNoModel):
		return apiError{status: http.StatusBadRequest, Type: invalidRequest, Code: "invalid_request", Param: "model", Message: "The body names no model that the gateway can read: send a JSON object with a model of GET /v1/models."}
	case errors.Is(err, errRename):
		return apiError{status: http.StatusInternalServerError, Type: serverError, Code: "rename_impossible", Message: fmt.Sprintf("The route of the model %s gives it another name, which this gateway cannot write: its ext_proc shows no bodies. Its operator can let extproc ask for them (--allow-mode-override).", quote(model))}
	case errors.Is(err, errUnknownAnswer):
		return apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "response_not_found", Message: "The gateway knows of no such response."}
	case errors.Is(err, route.ErrUnknownPool):
		return apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "unknown_url", Message: "The request names no model, and the gateway does not say which pool it is for."}
	case errors.Is(err, errNotHeard):
		return apiError{status: http.StatusServiceUnavailable, Type: serverError, Code: "not_ready", Param: "model", Message: fmt.Sprintf("The gateway does not know yet whether there is a model %s. Try again.", quote(model)), retryAfter: retrySoon}
	case errors.Is(err, errStopping):
		return apiError{status: http.StatusServiceUnavailable, Type: serverError, Code: "not_ready", Param: "model", Message: fmt.Sprintf("The gateway restarts, and cannot wait for the model %s to be loaded. Try again.", quote(model)), retryAfter: retrySoon}
	case errors.Is(err, errExpired):
		return apiError{status: http.StatusGatewayTimeout, Type: serverError, Code: "load_timeout", Message: fmt.Sprintf("The model %s could not be loaded in time. Try again.", quote(model))}
	case errors.Is(err, flow.ErrFailed):
		return apiError{status: http.StatusServiceUnavailable, Type: serverError, Code: "model_load_failed", Message: fmt.Sprintf("The model %s could not be loaded. Try again later.", quote(model)), retryAfter: retryLater}
	case errors.Is(err, queue.ErrFull):
		return apiError{status: http.StatusTooManyRequests, Type: rateLimited, Code: "too_many_waiting", Message: fmt.Sprintf("Too many requests wait for the model %s to be loaded. Try again later.", quote(model)), retryAfter: retryLater}
	case errors.Is(err, pick.ErrSubset):
		return apiError{status: http.StatusServiceUnavailable, Type: serverError, Code: "no_endpoint", Message: "None of the endpoints that the gateway allows can answer right now. Try again.", retryAfter: retrySoon}
	case errors.Is(err, route.ErrUnknownModel), errors.Is(err, pick.ErrUnlisted), errors.Is(err, flow.ErrUnknown):
		return apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "model_not_found", Param: "model", Message: fmt.Sprintf("The model %s does not exist. GET /v1/models lists those that do.", quote(model))}
	case errors.Is(err, pick.ErrNoPool), errors.Is(err, pick.ErrNotAddressable), errors.Is(err, pick.ErrNoneReady):
		message := "No endpoint can answer right now. Try again."
		if model != "" {
			message = fmt.Sprintf("No endpoint serves the model %s right now. Try again.", quote(model))
		}
		return apiError{status: http.StatusServiceUnavailable, Type: serverError, Code: "no_endpoint", Message: message, retryAfter: retrySoon}
	}
	return apiError{status: http.StatusInternalServerError, Type: serverError, Code: "internal", Message: "The gateway failed."}
}

// maxQuoted bounds what a reply quotes of a client's model name, in bytes.
const maxQuoted = 128

func quote(model string) string {
	if len(model) > maxQuoted {
		model = model[:maxQuoted] + "…"
	}
	return "'" + model + "'"
}

// response is the reply with the error.
func (e apiError) response() *extprocv3.ProcessingResponse {
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
	body, err := json.Marshal(map[string]fields{"error": f})
	if err != nil {
		panic(err) // strings always marshal
	}
	r := immediate(e.status, e.Code, body)
	if e.retryAfter > 0 {
		r.GetImmediateResponse().Headers.SetHeaders = append(r.GetImmediateResponse().Headers.SetHeaders,
			header("retry-after", strconv.Itoa(e.retryAfter)))
	}
	return r
}

// immediate is a reply that extproc gives itself. Its details keep Envoy from rewriting the body.
func immediate(status int, code string, body []byte) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(status)},
			Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{header("content-type", "application/json")}},
			Body:    body,
			Details: wire.ReplyDetails + "_" + code,
		},
	}}
}

// header sets a header. Envoy takes the value from raw_value.
func header(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
