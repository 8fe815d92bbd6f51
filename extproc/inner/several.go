package inner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/errand"
	"github.com/headgate/headgate/extproc/kserve"
)

const (
	// atOnce is how many of a call's models are asked at a time (ModelMesh's MM_MULTI_PARALLELISM).
	atOnce = 4
	// maxMessage bounds a call's message, and all its answers together, maxKept those of all calls.
	maxMessage = 32 << 20
	maxKept    = 512 << 20
)

// several sends a call to each of its models, and answers with what they answer, one after the other in the order of the call: to protobuf that
// is one message with the fields of all. The first error ends the others.
func (s *Server) several(w http.ResponseWriter, r *http.Request, e errand.Errand) {
	budget := budget{all: &s.kept}
	defer budget.giveBack()
	body, err := io.ReadAll(budget.reader(r.Body))
	if err != nil {
		failCall(w, err)
		return
	}
	answers := make([]*answer, len(e.Models))
	group, ctx := errgroup.WithContext(r.Context())
	group.SetLimit(atOnce)
	for i, m := range e.Models {
		group.Go(func() error {
			a, err := s.ask(ctx, r, e, m, body, &budget)
			if isMissing(err) && !e.All {
				return nil
			}
			answers[i] = a
			return err
		})
	}
	if err := group.Wait(); err != nil {
		failCall(w, err)
		return
	}
	answers = slices.DeleteFunc(answers, func(a *answer) bool { return a == nil })
	if len(answers) == 0 {
		failCall(w, status(kserve.NotFound, "none of the requested models were found"))
		return
	}
	var message []byte
	header, trailer := make(http.Header), make(http.Header)
	for _, a := range answers {
		message = append(message, a.message...)
		merge(header, a.header)
		merge(trailer, a.trailer)
	}
	maps.Copy(w.Header(), header)
	w.Header().Set("Content-Type", "application/grpc")
	_, _ = w.Write(kserve.AppendFrame(nil, message)) // if it fails, nobody reads it
	for name, values := range trailer {
		w.Header()[http.TrailerPrefix+name] = values
	}
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
}

// answer is a model's.
type answer struct {
	message         []byte
	header, trailer http.Header
}

// ask sends a call to one of its models. An error that is a [*kserve.Error] is what the call ended with.
func (s *Server) ask(ctx context.Context, r *http.Request, e errand.Errand, m errand.Model, body []byte, budget *budget) (*answer, error) {
	to := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "envoy", Path: r.URL.Path}, Host: r.Host,
		Header: r.Header.Clone(), Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	to.Header.Set(wire.ErrandHeader, s.sentOn(e, m, false))
	to.Header.Del("Grpc-Accept-Encoding") // so that answers can be put one after the other
	for _, h := range kserve.Written(m.Name) {
		to.Header.Set(h.Name, h.Value)
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
	if err != nil {
		return nil, err
	}
	if err := ended(response); err != nil {
		return nil, err
	}
	messages := kserve.NewMessages(response.Header.Get("Grpc-Encoding"), maxMessage)
	messages.Add(text)
	first, ok, err := messages.Next()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, status(kserve.Internal, "A model's answer has no message.")
	}
	if _, more, err := messages.Next(); more || err != nil || messages.Partial() {
		return nil, status(kserve.Unimplemented, "A call for several models has one answer of each.")
	}
	return &answer{first.Bytes, response.Header, response.Trailer}, nil
}

// ended is the status that a call ended with, if it is not OK.
func ended(r *http.Response) error {
	code, words := r.Trailer.Get("Grpc-Status"), r.Trailer.Get("Grpc-Message")
	if code == "" { // it ended before a message
		code, words = r.Header.Get("Grpc-Status"), r.Header.Get("Grpc-Message")
	}
	n, err := strconv.ParseUint(code, 10, 32)
	switch {
	case err != nil:
		return status(kserve.Unavailable, "An endpoint ended a call without a status.")
	case n == 0:
		return nil
	}
	if text, err := url.PathUnescape(words); err == nil {
		words = text
	}
	return status(kserve.Code(n), words)
}

// isMissing says whether an error is extproc's, of a model that there is not.
func isMissing(err error) bool {
	var e *kserve.Error
	return errors.As(err, &e) && e.Code == kserve.NotFound && (e.Reason == "model not found" || e.Reason == "vmodel not found")
}

// merge adds the metadata of an answer to that of others: what is of the protocol, or of one hop, is none.
func merge(to, from http.Header) {
	for name, values := range from {
		if strings.HasPrefix(name, "Grpc-") || strings.HasPrefix(name, "X-Envoy-") || slices.Contains(ofHop, name) {
			continue
		}
		to[name] = append(to[name], values...)
	}
}

// ofHop are headers that say something of one answer's way.
var ofHop = []string{"Content-Type", "Content-Length", "Date", "Server", "Trailer", "X-Request-Id", "Transfer-Encoding", "Connection"}
