package relay

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
)

const (
	// atOnce is how many models of one call are called at the same time, like ModelMesh's
	// MM_MULTI_PARALLELISM.
	atOnce = 4
	// maxMessage limits a call's message, and each response. maxOfOne limits the bytes buffered for
	// one call: the request, its responses and the joined response. maxKept limits the bytes
	// buffered for all calls.
	maxMessage = 32 << 20
	maxOfOne   = 4 * maxMessage
	maxKept    = 1 << 30
)

// several sends a call to each of its models. It concatenates the responses in the order of the
// models; protobuf reads that as one message with the fields of all responses. The first error
// cancels the other calls.
func (s *Server) several(w http.ResponseWriter, r *http.Request, e relaytoken.Request) {
	budget := budget{all: &s.kept}
	defer budget.giveBack()
	body, err := io.ReadAll(budget.reader(r.Body))
	if err != nil {
		s.failCall(w, r, err)
		return
	}
	answers := make([]*answer, len(e.Models))
	group, ctx := errgroup.WithContext(r.Context())
	group.SetLimit(atOnce)
	for i, m := range e.Models {
		group.Go(func() (err error) {
			defer s.caught(&err)
			a, err := s.call(ctx, e, m, r.Host, r.URL.Path, r.Header.Clone(), body, &budget)
			if isMissing(err) && !e.All {
				return nil
			}
			answers[i] = a
			return err
		})
	}
	if err := group.Wait(); err != nil {
		s.failCall(w, r, err)
		return
	}
	answers = slices.DeleteFunc(answers, func(a *answer) bool { return a == nil })
	if len(answers) == 0 {
		s.failCall(w, r, status(kserve.NotFound, "none of the requested models were found"))
		return
	}
	var message []byte
	header, trailer := make(http.Header), make(http.Header)
	for _, a := range answers {
		if err := budget.take(len(a.message)); err != nil {
			s.failCall(w, r, err)
			return
		}
		message = append(message, a.message...)
		merge(header, a.header)
		merge(trailer, a.trailer)
	}
	maps.Copy(w.Header(), header)
	w.Header().Set("Content-Type", "application/grpc")
	_, _ = w.Write(kserve.AppendFrame(nil, message)) // an error means that the client is gone
	for name, values := range trailer {
		w.Header()[http.TrailerPrefix+name] = values
	}
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
}

// isMissing reports whether err is extproc's error for an unknown model.
func isMissing(err error) bool {
	var e *kserve.Error
	return errors.As(err, &e) && e.Code == kserve.NotFound && (e.Reason == "model not found" || e.Reason == "vmodel not found")
}

// merge adds the metadata of one response to the metadata of all. It skips headers of gRPC and
// hop-by-hop headers.
func merge(to, from http.Header) {
	for name, values := range from {
		if strings.HasPrefix(name, "Grpc-") || strings.HasPrefix(name, "X-Envoy-") || slices.Contains(ofHop, name) {
			continue
		}
		to[name] = append(to[name], values...)
	}
}

// ofHop are headers that merge does not copy, most of them hop-by-hop headers.
var ofHop = []string{"Content-Type", "Content-Length", "Date", "Server", "Trailer", "X-Request-Id", "Transfer-Encoding", "Connection"}
