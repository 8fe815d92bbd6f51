package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decode"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
)

// Errors that arise before a body is read.
var (
	errUnknownPath = errors.New("not an inference request")
	errUnknownV2   = errors.New("not a request of V2 that may pass")
	// errClosedPath is a path that no request may reach through another gateway, which serves what its HTTPRoutes let pass.
	errClosedPath = errors.New("a closed path")
	// errUnwell says that no endpoint of any pool is well.
	errUnwell   = errors.New("no endpoint is well")
	errTooLarge = errors.New("the body is too large")
	// errNoModel is a request of which the data plane shows no body and names no model.
	errNoModel = errors.New("the data plane names no model")
	// errRename is a route that renames where no body can be changed.
	errRename = errors.New("the data plane shows no body in which the model could be renamed")
	// errUnknownAnswer is a request about an answer that nobody remembers.
	errUnknownAnswer = errors.New("nobody knows the answer")
	// errNotHeard is a model that no object admits, before control or the engines of an open pool have said which others there are.
	errNotHeard = errors.New("not all have said which models there are")
	// errNoOffer is a listener of which the objects that are known say nothing.
	errNoOffer = errors.New("the objects name no such listener")
	// errStopping is a request that waited for its model when extproc ended.
	errStopping = errors.New("extproc ends")
	// errNoMethod is a method that may not pass, or that the engine has not.
	errNoMethod = errors.New("the method may not pass")
	// errNoID is a call that names no model.
	errNoID = errors.New("the call names no model")
	// errNoVModel is a name that is no VModel's where it should be one's.
	errNoVModel = errors.New("there is no such VModel")
	// errSeveral is a call for several models, where nobody sends it to each.
	errSeveral = errors.New("the call names several models")
	// errNoneFound is a call for several models of which there is none.
	errNoneFound = errors.New("there is none of the models")
	// errTranscode is a request by REST for engines that take gRPC calls alone, which the inner server makes one of. No client is told.
	errTranscode = errors.New("the engines take calls alone")
	// errErrand is an errand that this process has not sealed.
	errErrand = errors.New("the errand is another's")
	// errCrowded is a call for whose message there is no room.
	errCrowded = errors.New("too many bytes of messages are kept")
	// errAnotherModel is a message of a call that names another model than the first.
	errAnotherModel = errors.New("a message names another model")
	// errHidden is a call whose messages the data plane does not show where they must be read or changed.
	errHidden = errors.New("the data plane shows no messages")
	// errExpired is a request that waited for its model as long as it may.
	errExpired = errors.New("the model was not loaded in time")
	// errBusy is one that waited as long for a copy to take it.
	errBusy = errors.New("no copy of the model took another request in time")
)

// apiError is what a client is told.
type apiError struct {
	status int
	// Type, Code and Param are for programs, in the words of OpenAI's API; Message is for people. Param may be empty.
	Type, Code, Param, Message string
	// retryAfter is in seconds; 0 says nothing of when to try again.
	retryAfter int
	// accept is the content codings that a body may have, as a header says them; empty says nothing of them.
	accept string
	// call is the code of gRPC that a call ends with; 0 is the one that goes with the status.
	call kserve.Code
	// final says that it is of no use to try again. The clients of OpenAI and Anthropic try a 5xx again unless they are told.
	final bool
}

const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
	rateLimited    = "rate_limit_error"
)

// retrySoon is for what the next scrape may mend. It is the least that the header can say.
const retrySoon = 1

// retryLater is for what is not mended by itself soon: a crowd that waits for a model should not come back at once.
const retryLater = 10

func invalid(status int, code, param, message string) apiError {
	return apiError{status: status, Type: invalidRequest, Code: code, Param: param, Message: message}
}

// unsupported is 415, with the content codings that are.
func unsupported(accept, message string) apiError {
	e := invalid(http.StatusUnsupportedMediaType, "unsupported_content_encoding", "", message)
	e.accept = accept
	return e
}

// unavailable is 503 with Retry-After.
func unavailable(code, message string, retryAfter int) apiError {
	return apiError{status: http.StatusServiceUnavailable, Type: serverError, Code: code, Message: message, retryAfter: retryAfter}
}

// failed is an error that stays if the request is tried again.
func failed(status int, code, message string) apiError {
	return apiError{status: status, Type: serverError, Code: code, Message: message, final: true}
}

// describe is the one place that turns an error into what a client is told. Model is the name that the client used, if
// it is known by then. An error that is not on the list is a fault of ours and says nothing of itself.
func describe(err error, model string) apiError {
	var body *openai.Error
	var nameless *unnamed
	var load flow.Failed
	var call *kserve.Error
	var coding *decode.Error
	name := quote(model)
	switch {
	case errors.As(err, &call):
		return apiError{status: statusOf(call.Code), Type: invalidRequest, Code: "invalid_request", Message: call.Reason, call: call.Code}
	case errors.Is(err, errNoMethod):
		return apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "unknown_method", Message: "This gateway serves no such method.", call: kserve.Unimplemented}
	case errors.Is(err, errNoID):
		return apiError{status: http.StatusBadRequest, Type: invalidRequest, Code: "no_model", Message: "must include mm-model-id header", call: kserve.InvalidArgument}
	case errors.Is(err, errNoVModel):
		return apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "model_not_found", Message: "vmodel not found", call: kserve.NotFound}
	case errors.Is(err, errSeveral):
		return apiError{status: http.StatusNotImplemented, Type: invalidRequest, Code: "several_models", Message: "This gateway takes no call for several models.", call: kserve.Unimplemented}
	case errors.Is(err, errNoneFound):
		return apiError{status: http.StatusNotFound, Type: invalidRequest, Code: "model_not_found", Message: "none of the requested models were found", call: kserve.NotFound}
	case errors.Is(err, errErrand):
		return unavailable("not_ready", "The gateway restarted while it handled the request. Try again.", retrySoon)
	case errors.Is(err, errAnotherModel):
		return apiError{status: http.StatusBadRequest, Type: invalidRequest, Code: "another_model", Message: "A message of the call names another model than the first: make a call for each model.", call: kserve.InvalidArgument}
	case errors.Is(err, errCrowded):
		return apiError{status: http.StatusTooManyRequests, Type: rateLimited, Code: "crowded", Message: "The gateway has too many large messages to read. Try again later.", call: kserve.ResourceExhausted}
	case errors.Is(err, errHidden):
		return failed(http.StatusInternalServerError, "messages_hidden", "The gateway has to read the messages of this call, and its ext_proc shows none: its operator can set request_body_mode FULL_DUPLEX_STREAMED for gRPC.")
	case errors.As(err, &nameless):
		return invalid(http.StatusBadRequest, "invalid_request", nameless.body.Param, nameless.message())
	case errors.As(err, &body):
		return invalid(http.StatusBadRequest, "invalid_request", body.Param, body.Reason)
	case errors.As(err, &load):
		return describeLoad(load.Reason, name)
	case errors.Is(err, errUnknownPath):
		return invalid(http.StatusNotFound, "unknown_url", "", "This gateway serves no such method and path. It serves "+served+".")
	case errors.Is(err, errUnknownV2):
		return invalid(http.StatusNotFound, "unknown_url", "", "This gateway serves no such method and path. It serves "+servedV2+".")
	case errors.Is(err, errClosedPath):
		return invalid(http.StatusNotFound, "unknown_url", "", "This gateway serves no such method and path.")
	case errors.Is(err, errEncoded):
		return unsupported("identity", "Send the body without a content encoding.")
	case errors.Is(err, errCoding):
		return unsupported(decode.Accept, "Send the body without a content encoding, or with one of "+decode.Accept+".")
	case errors.As(err, &coding):
		return invalid(http.StatusBadRequest, "invalid_content_encoding", "", coding.Error())
	case errors.Is(err, decode.ErrTooLarge):
		return invalid(http.StatusRequestEntityTooLarge, "request_too_large", "", fmt.Sprintf("Decoded, the body has more than %d MiB.", maxBody>>20))
	case errors.Is(err, errTooLarge):
		return invalid(http.StatusRequestEntityTooLarge, "request_too_large", "", fmt.Sprintf("The body has more than %d MiB.", maxBody>>20))
	case errors.Is(err, errNoModel):
		return invalid(http.StatusBadRequest, "invalid_request", "model", "The body names no model that the gateway can read: send a JSON object with a model of GET /v1/models.")
	case errors.Is(err, errRename):
		return failed(http.StatusInternalServerError, "rename_impossible", fmt.Sprintf("The route of the model %s gives it another name, which this gateway cannot write: its ext_proc shows no bodies. Its operator can let extproc ask for them (--allow-mode-override).", name))
	case errors.Is(err, errUnknownAnswer):
		return invalid(http.StatusNotFound, "response_not_found", "", "The gateway knows of no such response.")
	case errors.Is(err, route.ErrUnknownPool):
		return invalid(http.StatusNotFound, "unknown_url", "", "The request names no model, and the gateway does not say which pool it is for.")
	case errors.Is(err, errNotHeard):
		e := unavailable("not_ready", fmt.Sprintf("The gateway does not know yet whether there is a model %s. Try again.", name), retrySoon)
		e.Param = "model"
		return e
	case errors.Is(err, errNoOffer):
		return unavailable("not_ready", "The gateway does not know yet which models it serves here. Try again.", retrySoon)
	case errors.Is(err, errStopping):
		return unavailable("not_ready", fmt.Sprintf("The gateway restarts, and cannot wait for the model %s to be loaded. Try again.", name), retrySoon)
	case errors.Is(err, errGone):
		return unavailable(wire.EngineGone, "The server ended before it answered. Try again.", retrySoon)
	case errors.Is(err, errUnwell):
		return unavailable("no_endpoint", "No endpoint can answer right now.", retrySoon)
	case errors.Is(err, errExpired):
		return apiError{status: http.StatusGatewayTimeout, Type: serverError, Code: "load_timeout", Message: fmt.Sprintf("The model %s could not be loaded in time. Try again.", name)}
	case errors.Is(err, errBusy):
		return apiError{status: http.StatusGatewayTimeout, Type: serverError, Code: "model_busy", Message: fmt.Sprintf("The model %s had too many requests to take this one in time. Try again.", name)}
	case errors.Is(err, queue.ErrFull), errors.Is(err, pick.ErrFull):
		return apiError{status: http.StatusTooManyRequests, Type: rateLimited, Code: "too_many_waiting", Message: fmt.Sprintf("Too many requests wait for the model %s. Try again later.", name), retryAfter: retryLater}
	case errors.Is(err, pick.ErrSubset):
		return unavailable("no_endpoint", "None of the endpoints that the gateway allows can answer right now. Try again.", retrySoon)
	case errors.Is(err, route.ErrUnknownModel), errors.Is(err, pick.ErrUnlisted), errors.Is(err, flow.ErrUnknown):
		return invalid(http.StatusNotFound, "model_not_found", "model", fmt.Sprintf("The model %s does not exist. GET /v1/models lists those that do.", name))
	case errors.Is(err, pick.ErrNoPool), errors.Is(err, pick.ErrNotAddressable), errors.Is(err, pick.ErrNoneReady):
		if model == "" {
			return unavailable("no_endpoint", "No endpoint can answer right now. Try again.", retrySoon)
		}
		return unavailable("no_endpoint", fmt.Sprintf("No endpoint serves the model %s right now. Try again.", name), retrySoon)
	}
	return apiError{status: http.StatusInternalServerError, Type: serverError, Code: "internal", Message: "The gateway failed."}
}

// describeLoad says why a model cannot be loaded, by control's reason: the kind of it, and neither paths nor an engine's words.
func describeLoad(reason, name string) apiError {
	switch reason {
	case wire.NoEndpoint:
		return unavailable("no_endpoint", fmt.Sprintf("No server that could load the model %s can be reached right now. Try again.", name), retrySoon)
	case wire.NoRoom:
		return unavailable("no_room", fmt.Sprintf("There is no room to load the model %s right now. Try again later.", name), retryLater)
	}
	why := map[string]string{
		wire.RankTooLarge: ": its rank is larger than the servers take",
		wire.FilesMissing: ": the servers find no files of it",
		wire.NoLabels:     ": no server has what its kind needs",
		wire.TooLarge:     ": it is larger than any server holds",
		wire.CannotLoad:   ": its servers load no such models while they run",
	}[reason]
	return failed(http.StatusServiceUnavailable, "model_load_failed", fmt.Sprintf("The model %s could not be loaded%s.", name, why))
}

// served is what a client may ask for, in words.
var served = strings.Join(openai.Served(), ", ")

// servedV2 is the same of KServe's V2 by REST.
var servedV2 = strings.Join(kserve.Served(), ", ")

// maxQuoted bounds what a reply quotes of a client's model name, in bytes.
const maxQuoted = 128

func quote(model string) string {
	if len(model) > maxQuoted {
		model = model[:maxQuoted] + "…"
	}
	return "'" + model + "'"
}

// response is the reply with the error, in the shape of an API.
func (e apiError) response(of api) *extprocv3.ProcessingResponse {
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
	headers := r.GetImmediateResponse().GetHeaders()
	if e.retryAfter > 0 {
		headers.SetHeaders = append(headers.SetHeaders, header("retry-after", strconv.Itoa(e.retryAfter)))
	}
	if e.accept != "" {
		headers.SetHeaders = append(headers.SetHeaders, header("accept-encoding", e.accept))
	}
	if e.final {
		headers.SetHeaders = append(headers.SetHeaders, header("x-should-retry", "false"))
	}
	return r
}

// grpc ends a call with a status. What clients of ModelMesh know has its words.
func (e apiError) grpc() *extprocv3.ProcessingResponse {
	code, words := e.callStatus()
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:     &typev3.HttpStatus{Code: typev3.StatusCode(e.status)}, // Envoy sends 200
			GrpcStatus: &extprocv3.GrpcStatus{Status: uint32(code)},
			Body:       []byte(words),
			Details:    wire.ReplyDetails + "_" + e.Code,
		},
	}}
}

// callStatus is what a call ends with.
func (e apiError) callStatus() (code kserve.Code, words string) {
	code, words = e.call, e.Message
	if code == 0 { // else it is said with the error
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

// codeOf is the code of gRPC that goes with an HTTP status.
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

// statusOf is the HTTP status of an error of a call that extproc itself finds. There it is a message that exhausts: it is too large.
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

// anthropicTypes are the types of errors that Anthropic's API documents, by their status.
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
	case e.retryAfter > 0: // Anthropic's own status for it is 529
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
		panic(err) // strings and numbers always marshal
	}
	return body
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
