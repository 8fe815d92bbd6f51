package adapters

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/internal/engine"
)

// failure is an error answer of the agent itself.
type failure struct {
	status  int
	kind    string // vLLM's name of the error
	message string
}

func (f failure) Error() string { return f.message }

// write answers with the failure as an engine of the kind does: vLLM with an object error, SGLang
// with the field error_message.
func (f failure) write(w http.ResponseWriter, kind engine.Kind) {
	type detail struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	var body any = struct {
		Error detail `json:"error"`
	}{detail{f.message, f.kind, nil, f.status}}
	if kind == engine.SGLang {
		body = struct {
			Success bool              `json:"success"`
			Message string            `json:"error_message"`
			Loaded  map[string]string `json:"loaded_adapters"`
		}{false, f.message, map[string]string{}}
	}
	text, err := json.Marshal(body)
	if err != nil {
		text = nil // never: texts always encode
	}
	w.Header().Set("Content-Type", "application/json")
	if f.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(text) // the caller may have left
}

// retryAfter is when a caller may retry after a temporary failure, in seconds.
const retryAfter = 1

// unreached returns the failure of a call to the engine. If the connection failed, control may
// retry. Otherwise the outcome is unknown.
func (s *Server) unreached(err error) failure {
	if of, is := errors.AsType[*url.Error](err); is {
		err = of.Err
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return failure{http.StatusServiceUnavailable, "Service Unavailable", "the engine accepts no connections: " + dial.Err.Error()}
	}
	return failure{http.StatusBadGateway, "Bad Gateway", "the engine did not answer: " + err.Error()}
}

// notFound begins the message about an adapter without files, as vLLM's own. Control reads the
// reason from it ([engine.ReadLoadFault]).
const notFound = "No adapter found for "

// unfetched returns the failure for an adapter whose files were not fetched. control retries after
// 503, but not after 4xx. It does not use 400 and 403, which have other meanings for control.
func unfetched(name string, err error) failure {
	var of *fetch.Error
	if !errors.As(err, &of) {
		return failure{http.StatusInternalServerError, "InternalServerError", "the agent cannot fetch the files: " + err.Error()}
	}
	switch of.Reason {
	case fetch.NotFound, fetch.Empty:
		return failure{http.StatusNotFound, "NotFoundError", notFound + quote(name) + ": " + of.Message}
	case fetch.Busy, fetch.Changed, fetch.Full:
		return failure{http.StatusServiceUnavailable, "Service Unavailable", of.Message}
	case fetch.Invalid:
		return failure{http.StatusUnprocessableEntity, "Unprocessable Entity", of.Message}
	}
	return failure{http.StatusFailedDependency, "Failed Dependency", of.Message}
}

// quote quotes a name as vLLM does.
func quote(name string) string { return "'" + name + "'" }
