package stream

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decode"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
)

// apiError is an error with its reply to the client.
type apiError struct {
	status int
	// Type, Code and Param are fields of OpenAI's errors that programs read. Param may be empty.
	Type, Code, Param string
	// Message is the text that people read. In it, %s stands for the model's name.
	Message string
	// retryAfter is the value of the Retry-After header, in seconds; 0 omits the header.
	retryAfter int
	// accept is the value of the Accept-Encoding header: the content codings that a body may have.
	// It may be empty.
	accept string
	// call is the gRPC code for a call that ends with the error; 0 means the code that corresponds
	// to the HTTP status.
	call kserve.Code
	// final means that a retry does not help. Otherwise clients of OpenAI and Anthropic retry every
	// 5xx.
	final bool
	// limited means that the request exceeds a limit of its route, so that no fallback serves it.
	limited bool
}

func (e *apiError) Error() string { return e.Message }

const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
	rateLimited    = "rate_limit_error"
)

const (
	// retrySoon is the Retry-After of errors that the next scrape may resolve. It is the smallest
	// value of that header.
	retrySoon = 1
	// retryLater is the Retry-After of errors that last longer. It keeps clients that use the same
	// model from retrying at the same time.
	retryLater = 10
)

func invalid(status int, code, param, message string) *apiError {
	return &apiError{status: status, Type: invalidRequest, Code: code, Param: param, Message: message}
}

// invalidCall is like invalid, and also sets the status code with which a gRPC call ends.
func invalidCall(status int, code, message string, call kserve.Code) *apiError {
	return &apiError{status: status, Type: invalidRequest, Code: code, Message: message, call: call}
}

// unsupported returns a 415 error. Accept lists the content codings that a body may have.
func unsupported(accept, message string) *apiError {
	return &apiError{
		status: http.StatusUnsupportedMediaType, Type: invalidRequest, Code: "unsupported_content_encoding", Message: message,
		accept: accept,
	}
}

// unavailable returns a 503 error with a Retry-After header.
func unavailable(code, message string, retryAfter int) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, Type: serverError, Code: code, Message: message, retryAfter: retryAfter}
}

// timedOut returns a 504 error.
func timedOut(code, message string) *apiError {
	return &apiError{status: http.StatusGatewayTimeout, Type: serverError, Code: code, Message: message}
}

// failed returns an error that a retry would not resolve.
func failed(status int, code, message string) *apiError {
	return &apiError{status: status, Type: serverError, Code: code, Message: message, final: true}
}

// Errors that are sent to clients as they are.
var (
	errUnknownPath = invalid(http.StatusNotFound, "unknown_url", "", "This gateway serves no such method and path. It serves "+
		strings.Join(openai.Served(), ", ")+".")
	errUnknownV2 = invalid(http.StatusNotFound, "unknown_url", "", "This gateway serves no such method and path. It serves "+
		strings.Join(kserve.Served(), ", ")+".")
	// errClosedPath is for a path that is closed to clients, even if HTTPRoutes of another gateway
	// allow it.
	errClosedPath = invalid(http.StatusNotFound, "unknown_url", "", "This gateway serves no such method and path.")
	// errNoPool is for a request that names no model, from a gateway that names no pool.
	errNoPool = invalid(http.StatusNotFound, "unknown_url", "",
		"The request names no model, and the gateway names no pool.")
	errTooLarge = invalid(http.StatusRequestEntityTooLarge, "request_too_large", "",
		fmt.Sprintf("The body exceeds %d MiB.", maxBody>>20))
	// errDecodedTooLarge is for a body that is too large once it is decoded.
	errDecodedTooLarge = invalid(http.StatusRequestEntityTooLarge, "request_too_large", "",
		fmt.Sprintf("The decoded body exceeds %d MiB.", maxBody>>20))
	// errEncoded is for a compressed body behind another gateway. There extproc cannot replace the
	// body by a decoded one.
	errEncoded = unsupported("identity", "Send the body without a content encoding.")
	errCoding  = unsupported(decode.Accept, "Send the body without a content encoding, or with one of "+decode.Accept+".")
	// errNoModel is for a request without a model outside its body, if the data plane does not send
	// the body to extproc.
	errNoModel = invalid(http.StatusBadRequest, "invalid_request", "model",
		"The gateway cannot find the model in the body: send a JSON object with a model of GET /v1/models.")
	// errRename is for a request whose model must be renamed in the body, where extproc cannot
	// change the body.
	errRename = failed(http.StatusInternalServerError, "rename_impossible",
		"The route of the model %s renames it, which this gateway cannot do: its ext_proc sends no bodies. The operator can let extproc request them (--allow-mode-override).")
	// errUnknownModel is for a model that does not exist.
	errUnknownModel = invalid(http.StatusNotFound, "model_not_found", "model",
		"The model %s does not exist. GET /v1/models lists those that do.")
	// errUnknownAnswer is for a stored response that no endpoint has.
	errUnknownAnswer = invalid(http.StatusNotFound, "response_not_found", "", "The gateway has no such response.")
	// errNotHeard is for a model that no object admits, while it may still be in a list that
	// extproc does not have yet: control's, or that of an engine in an open pool.
	errNotHeard = &apiError{
		status: http.StatusServiceUnavailable, Type: serverError, Code: "not_ready", Param: "model",
		Message: "The gateway is not ready: it does not know yet whether it has a model %s. Try again.", retryAfter: retrySoon,
	}
	// errNoOffer is for a listener that is not in the objects: not yet, or not any more.
	errNoOffer = unavailable("not_ready", "The gateway is not ready: it has no list of models yet. Try again.", retrySoon)
	// errStopping is for a request that still waits for its model when extproc stops.
	errStopping = unavailable("not_ready", "The gateway is restarting and cannot wait for the model %s to be loaded. Try again.", retrySoon)
	// errRelayToken is for a request from the relay whose token this process cannot decrypt.
	errRelayToken = unavailable("not_ready", "The gateway restarted while it handled the request. Try again.", retrySoon)
	// errGone is for a request whose endpoint refuses connections and sends no more bytes.
	errGone = unavailable(wire.EngineGone, "The server stopped before it answered. Try again.", retrySoon)
	// errUnwell is the reply to a health check when no endpoint of any pool is healthy.
	errUnwell = unavailable("no_endpoint", "No endpoint can serve the request right now.", retrySoon)
	// errNoEndpoint is for a request that names no model. For a request that names one, see
	// errNotServed.
	errNoEndpoint = unavailable("no_endpoint", "No endpoint can serve the request right now. Try again.", retrySoon)
	errNotServed  = unavailable("no_endpoint", "No endpoint serves the model %s right now. Try again.", retrySoon)
	// errSubset is for a request whose data plane allows only some endpoints, of which none can
	// serve.
	errSubset = unavailable("no_endpoint", "No endpoint that the gateway allows can serve the request right now. Try again.", retrySoon)
	// errControlLost is for a request whose model would have to be loaded, while control is silent.
	errControlLost = unavailable("control_unavailable",
		"The model %s is not loaded, and the gateway's controller (control) does not answer. Try again later.", retryLater)
	// errExpired is for a request whose model was not loaded in time.
	errExpired = timedOut("load_timeout", "The model %s could not be loaded in time. Try again.")
	// errBusy is for a request whose model had no copy with room in time.
	errBusy = timedOut("model_busy", "The model %s was too busy to serve the request in time. Try again.")
	errFull = &apiError{
		status: http.StatusTooManyRequests, Type: rateLimited, Code: "too_many_waiting",
		Message: "Too many requests are queued for the model %s. Try again later.", retryAfter: retryLater,
	}
	// errCrowded is for a body or message that does not fit into the memory for buffered bodies.
	errCrowded = &apiError{
		status: http.StatusTooManyRequests, Type: rateLimited, Code: "crowded",
		Message: "The gateway is out of memory for large messages. Try again later.", call: kserve.ResourceExhausted,
	}

	// errNoMethod is for a gRPC method that clients may not call or that the engine does not have.
	errNoMethod = invalidCall(http.StatusNotFound, "unknown_method", "This gateway serves no such method.", kserve.Unimplemented)
	errNoID     = invalidCall(http.StatusBadRequest, "no_model", "must include mm-model-id header", kserve.InvalidArgument)
	// errNoVModel is for a name that must be a VModel's name but is not.
	errNoVModel = invalidCall(http.StatusNotFound, "model_not_found", "vmodel not found", kserve.NotFound)
	// errSeveral is for a call for several models where there is no relay to split the call.
	errSeveral = invalidCall(http.StatusNotImplemented, "several_models", "This gateway does not support calls for several models.",
		kserve.Unimplemented)
	// errNoneFound is for a call for several models if none of them exists.
	errNoneFound    = invalidCall(http.StatusNotFound, "model_not_found", "none of the requested models were found", kserve.NotFound)
	errAnotherModel = invalidCall(http.StatusBadRequest, "another_model",
		"A message names another model than the first message of the call: make one call for each model.", kserve.InvalidArgument)
	// errHidden is for a call whose messages must be read or changed, if the data plane does not
	// send them to extproc.
	errHidden = failed(http.StatusInternalServerError, "messages_hidden",
		"The gateway must read the messages of this call, but its ext_proc sends none: the operator can set request_body_mode FULL_DUPLEX_STREAMED for gRPC.")

	errInternal = &apiError{status: http.StatusInternalServerError, Type: serverError, Code: "internal", Message: "The gateway failed."}
)

// Internal errors, which are never sent to clients.
var (
	// errTranscode is for a REST request whose engines accept only gRPC. The relay then converts it
	// to a call.
	errTranscode = errors.New("the engines take only gRPC calls")
	// errOver is for a request that ended while extproc was handling it.
	errOver = errors.New("the request is over")
)

// describe returns the reply for an error. Model is the client's name of the model, or empty. An
// error for which no reply is defined is a bug, so its text is not shown to the client.
func describe(err error, model string) apiError {
	var body *openai.Error
	var nameless *unnamed
	var call *kserve.Error
	var coding *decode.Error
	switch { // errors whose text depends on the request
	case errors.As(err, &call):
		return *invalidCall(statusOf(call.Code), "invalid_request", call.Reason, call.Code)
	case errors.As(err, &nameless):
		return *invalid(http.StatusBadRequest, "invalid_request", nameless.body.Param, nameless.message())
	case errors.As(err, &body):
		return *invalid(http.StatusBadRequest, "invalid_request", body.Param, body.Reason)
	case errors.As(err, &coding):
		return *invalid(http.StatusBadRequest, "invalid_content_encoding", "", coding.Error())
	}
	e := *replyTo(err, model != "")
	e.Message = strings.ReplaceAll(e.Message, "%s", quote(model))
	return e
}

// replyTo maps an error of any package to an error of this package.
func replyTo(err error, named bool) *apiError {
	var own *apiError
	var load flow.Failed
	var late flow.Late
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &load):
		return describeLoad(load.Reason)
	case errors.As(err, &late):
		return lateReply(late)
	case errors.Is(err, flow.ErrControlLost):
		return errControlLost
	case errors.Is(err, decode.ErrTooLarge):
		return errDecodedTooLarge
	case errors.Is(err, route.ErrUnknownPool):
		return errNoPool
	case errors.Is(err, flow.ErrFull), errors.Is(err, pick.ErrFull):
		return errFull
	case errors.Is(err, pick.ErrSubset):
		return errSubset
	case errors.Is(err, route.ErrUnknownModel), errors.Is(err, pick.ErrUnlisted), errors.Is(err, flow.ErrUnknown):
		return errUnknownModel
	case errors.Is(err, pick.ErrNoPool), errors.Is(err, pick.ErrNotAddressable), errors.Is(err, pick.ErrNoneReady),
		errors.Is(err, pick.ErrNoRoom), errors.Is(err, errTurn):
		if !named {
			return errNoEndpoint
		}
		return errNotServed
	}
	return errInternal
}

// describeLoad returns the reply for control's reason why a model cannot be loaded. The reply
// contains no file paths and no text of the engine.
func describeLoad(reason string) *apiError {
	switch reason {
	case wire.NoEndpoint:
		return unavailable("no_endpoint", "No server that can load the model %s is reachable right now. Try again.", retrySoon)
	case wire.NoRoom:
		return unavailable("no_room", "The servers have no room to load the model %s right now. Try again later.", retryLater)
	}
	why := map[string]string{
		wire.RankTooLarge: ": its rank exceeds the limit of the servers",
		wire.FilesMissing: ": the servers cannot find its files",
		wire.NoLabels:     ": no server has the labels that it requires",
		wire.TooLarge:     ": it is too large for every server",
		wire.CannotLoad:   ": its servers cannot load models at run time",
	}[reason]
	return failed(http.StatusServiceUnavailable, "model_load_failed", "The model %s could not be loaded"+why+".")
}

// maxQuoted limits how many bytes of the client's model name a reply repeats.
const maxQuoted = 128

func quote(model string) string {
	if len(model) > maxQuoted {
		model = model[:maxQuoted] + "…"
	}
	return "'" + model + "'"
}
