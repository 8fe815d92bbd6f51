package inner

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"

	"github.com/headgate/headgate/extproc/kserve"
)

// status is what a call ends with.
func status(code kserve.Code, reason string) error { return &kserve.Error{Code: code, Reason: reason} }

// isStatus says whether an error is what a call ends with.
func isStatus(err error) bool {
	var e *kserve.Error
	return errors.As(err, &e)
}

// unavailable answers a request that cannot be sent on now.
func unavailable(w http.ResponseWriter, r *http.Request, reason string) {
	if isCall(r) {
		failCall(w, status(kserve.Unavailable, reason))
		return
	}
	text, err := json.Marshal(map[string]map[string]string{"error": {"message": reason, "type": "server_error", "code": "no_endpoint"}})
	if err != nil {
		panic(err) // strings always marshal
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write(text)
}

// failCall ends a call with what an error says, without a message.
func failCall(w http.ResponseWriter, err error) {
	e := &kserve.Error{Code: kserve.Internal, Reason: "The gateway failed."}
	errors.As(err, &e)
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.FormatUint(uint64(e.Code), 10))
	h.Set("Grpc-Message", url.PathEscape(e.Reason))
	w.WriteHeader(http.StatusOK)
}

// caught makes an error of a fault in one of a request's goroutines: it costs that request only.
func (s *Server) caught(err *error) {
	if fault := recover(); fault != nil {
		s.Log.Error("panic in a request", "fault", fault, "stack", string(debug.Stack()))
		*err = status(kserve.Internal, "The gateway failed.")
	}
}
