package relay

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"

	"github.com/headgate/headgate/extproc/kserve"
)

// status returns an error that is the final status of a call.
func status(code kserve.Code, reason string) error { return &kserve.Error{Code: code, Reason: reason} }

// isStatus reports whether an error is the final status of a call.
func isStatus(err error) bool {
	var e *kserve.Error
	return errors.As(err, &e)
}

// answered is the final status of a call that the relay made. Metrics of extproc or of the engine,
// which returned the status, already count it.
type answered struct{ status *kserve.Error }

func (a answered) Error() string { return a.status.Reason }
func (a answered) Unwrap() error { return a.status }

// kinds maps the statuses of refused calls to error codes for metrics. For any other status the
// code is internal.
var kinds = map[kserve.Code]string{
	kserve.InvalidArgument: "invalid_request", kserve.NotFound: "model_not_found", kserve.ResourceExhausted: "request_too_large",
	kserve.Unimplemented: "unknown_method", kserve.Unavailable: "no_endpoint", kserve.Unauthenticated: "unauthenticated",
}

// refusal returns the status that the client gets for an error. It counts the error if the relay
// itself found it and the client is still there.
func (s *Server) refusal(r *http.Request, err error) *kserve.Error {
	e := &kserve.Error{Code: kserve.Internal, Reason: "The gateway failed."}
	errors.As(err, &e)
	if r.Context().Err() == nil && !errors.As(err, new(answered)) {
		kind := kinds[e.Code]
		if kind == "" {
			kind = "internal"
		}
		s.Replied(e.Code.HTTP(), kind)
	}
	return e
}

// unavailable replies to a request that cannot be forwarded now.
func (s *Server) unavailable(w http.ResponseWriter, r *http.Request, reason string) {
	if isCall(r) {
		s.failCall(w, r, status(kserve.Unavailable, reason))
		return
	}
	e := s.refusal(r, status(kserve.Unavailable, reason))
	text, err := json.Marshal(map[string]map[string]string{"error": {"message": e.Reason, "type": "server_error", "code": kinds[e.Code]}})
	if err != nil {
		panic(err) // marshaling strings never fails
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write(text)
}

// failCall ends a call with the status of an error and without a message.
func (s *Server) failCall(w http.ResponseWriter, r *http.Request, err error) {
	e := s.refusal(r, err)
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.FormatUint(uint64(e.Code), 10))
	h.Set("Grpc-Message", url.PathEscape(e.Reason))
	w.WriteHeader(http.StatusOK)
}

// caught recovers from a panic in a goroutine of a request, and stores it as an error. So only this
// request fails.
func (s *Server) caught(err *error) {
	if fault := recover(); fault != nil {
		s.Log.Error("panic while serving a request", "fault", fault, "stack", string(debug.Stack()))
		*err = status(kserve.Internal, "The gateway failed.")
	}
}
