package relay

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/transcode"
)

// transcode sends a V2 REST request as a gRPC call, and replies to the client in REST.
func (s *Server) transcode(w http.ResponseWriter, r *http.Request, e relaytoken.Request) {
	budget := budget{all: &s.kept}
	defer budget.giveBack()
	asked, a, err := s.transcoded(r, e, &budget)
	if r.Context().Err() != nil {
		return // an error means that the client is gone
	}
	if err != nil {
		is := s.refusal(r, err)
		respond(w, transcode.Failed(is.Code, is.Reason))
		return
	}
	answer := asked.Answer(a.message)
	if err := budget.take(len(answer.Body)); err != nil {
		is := s.refusal(r, err)
		answer = transcode.Failed(is.Code, is.Reason)
	}
	respond(w, answer)
}

// transcoded converts the REST request to a gRPC call, and makes the call.
func (s *Server) transcoded(r *http.Request, e relaytoken.Request, budget *budget) (asked transcode.Request, a *answer, err error) {
	from, err := inflated(r, budget)
	if err != nil {
		return asked, nil, err
	}
	body, err := io.ReadAll(from)
	if err != nil {
		if gzipped(r) && r.Context().Err() == nil && !isStatus(err) {
			err = status(kserve.InvalidArgument, "The body is not valid in its content encoding.")
		}
		return asked, nil, err
	}
	if asked, err = transcode.Read(kserve.Find(r.Method, r.RequestURI), r.Header.Get(transcode.HeaderLength), body); err != nil {
		return asked, nil, err
	}
	if len(asked.Message) > maxMessage {
		return asked, nil, status(kserve.ResourceExhausted, "As a gRPC message, the request exceeds 32 MiB.")
	}
	if err := budget.take(2 * len(asked.Message)); err != nil { // for the message and for its framed copy
		return asked, nil, err
	}
	frame := kserve.AppendFrame(nil, asked.Message)
	a, err = s.call(r.Context(), e, e.Models[0], r.Host, "/"+asked.Method, metadataOf(r.Header), frame, budget)
	if errors.Is(err, errMany) {
		err = status(kserve.Internal, "The model's answer has more than one message.")
	}
	return asked, a, err
}

// gzipped reports whether a body is compressed by gzip.
func gzipped(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip")
}

// inflated returns a reader of the decompressed body.
func inflated(r *http.Request, budget *budget) (io.Reader, error) {
	switch encoding := r.Header.Get("Content-Encoding"); {
	case encoding == "", strings.EqualFold(encoding, "identity"):
		return budget.reader(r.Body), nil
	case gzipped(r):
		is, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, status(kserve.InvalidArgument, "The body is not valid in its content encoding.")
		}
		return budget.reader(is), nil
	}
	return nil, status(kserve.InvalidArgument, "Send the body without a content encoding, or with gzip.")
}

// ofREST are headers of the REST request or of its connection. They are not sent with the gRPC
// call.
var ofREST = []string{"Content-Encoding", "Content-Length", "Accept", "Accept-Encoding", "Expect", "Connection", transcode.HeaderLength}

// metadataOf returns the headers to send with the gRPC call.
func metadataOf(header http.Header) http.Header {
	metadata := header.Clone()
	for _, name := range ofREST {
		metadata.Del(name)
	}
	metadata.Set("Content-Type", "application/grpc")
	metadata.Set("Te", "trailers")
	return metadata
}

// respond writes a REST response.
func respond(w http.ResponseWriter, is transcode.Response) {
	h := w.Header()
	h.Set("Content-Type", is.ContentType())
	h.Set("Content-Length", strconv.Itoa(len(is.Body)))
	if is.HeaderLength > 0 {
		h.Set(transcode.HeaderLength, strconv.Itoa(is.HeaderLength))
	}
	w.WriteHeader(is.Status)
	_, _ = w.Write(is.Body) // an error means that the client is gone
}
