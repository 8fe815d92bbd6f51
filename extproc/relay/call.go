package relay

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
)

// answer is a model's response to a unary call: it has one message.
type answer struct {
	message         []byte
	header, trailer http.Header
}

// call makes a unary gRPC call for a model, through the Envoy that the client called. Path is the
// gRPC method, metadata the headers, and frames the framed message. The call may change metadata.
// If the error is a [*kserve.Error], it is the final status of the call.
func (s *Server) call(
	ctx context.Context, e relaytoken.Request, m relaytoken.Model, host, path string, metadata http.Header, frames []byte, budget *budget,
) (*answer, error) {
	metadata.Set(wire.RelayTokenHeader, s.sentOn(e, m, false))
	metadata.Del("Grpc-Accept-Encoding") // the relay reads the response, so it must not be compressed
	for _, name := range kserve.Headers {
		metadata.Del(name)
	}
	for _, h := range kserve.Written(m.Name) {
		metadata.Set(h.Name, h.Value)
	}
	to := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "envoy", Path: path}, Host: host,
		Header: metadata, Body: io.NopCloser(bytes.NewReader(frames)), ContentLength: int64(len(frames)),
		// for a retry, if Envoy has not read the body
		GetBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(frames)), nil },
	}
	response, err := s.envoy(e.Back).RoundTrip(to.WithContext(ctx))
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.Log.Warn("cannot send a call through Envoy", "socket", e.Back, "err", err)
		return nil, status(kserve.Unavailable, "No endpoint could be reached. Try again.")
	}
	defer response.Body.Close()
	text, err := io.ReadAll(budget.reader(response.Body))
	switch {
	case err == nil, ctx.Err() != nil, isStatus(err):
	default:
		err = status(kserve.Unavailable, "An endpoint failed before its answer was complete.")
	}
	if err != nil {
		return nil, err
	}
	if err := ended(response); err != nil {
		return nil, err
	}
	messages := kserve.NewMessages(response.Header.Get("Grpc-Encoding"), maxMessage)
	messages.Add(text)
	first, ok, err := messages.Next()
	if err == nil && len(first.Bytes) > len(text) { // the message was compressed
		err = budget.take(len(first.Bytes))
	}
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, status(kserve.Internal, "A model's answer contains no message.")
	}
	if _, more, err := messages.Next(); more || err != nil || messages.Partial() {
		return nil, errMany
	}
	return &answer{first.Bytes, response.Header, response.Trailer}, nil
}

var errMany = status(kserve.Unimplemented, "In a call for several models, each model must answer with one message.")

// ended returns the final status of a call as an error; nil if the status is OK.
func ended(r *http.Response) error {
	code, words := r.Trailer.Get("Grpc-Status"), r.Trailer.Get("Grpc-Message")
	if code == "" { // without a message, the status is in the headers
		code, words = r.Header.Get("Grpc-Status"), r.Header.Get("Grpc-Message")
	}
	n, err := strconv.ParseUint(code, 10, 32)
	switch {
	case err != nil:
		return status(kserve.Unavailable, "An endpoint ended the call without a status.")
	case n == 0:
		return nil
	}
	if text, err := url.PathUnescape(words); err == nil {
		words = text
	}
	return answered{&kserve.Error{Code: kserve.Code(n), Reason: words}}
}
