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
	// atOnce is how many models of a call are called at a time (ModelMesh's MM_MULTI_PARALLELISM).
	atOnce = 4
	// maxMessage bounds a call's message, and each response. maxOfOne bounds what is kept for one
	// request: its responses and what is made of them. maxKept bounds what is kept for all.
	maxMessage = 32 << 20
	maxOfOne   = 4 * maxMessage
	maxKept    = 1 << 30
)

// several sends a call to each of its models, and concatenates the responses in the order of the
// call. To protobuf that is one message with the fields of all. The first error cancels the others.
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
	_, _ = w.Write(kserve.AppendFrame(nil, message)) // on an error the client is gone
	for name, values := range trailer {
		w.Header()[http.TrailerPrefix+name] = values
	}
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
}

// isMissing reports whether extproc returned the error for an unknown model.
func isMissing(err error) bool {
	var e *kserve.Error
	return errors.As(err, &e) && e.Code == kserve.NotFound && (e.Reason == "model not found" || e.Reason == "vmodel not found")
}

// merge adds the metadata of a response to that of others, without headers of the protocol or of
// one hop.
func merge(to, from http.Header) {
	for name, values := range from {
		if strings.HasPrefix(name, "Grpc-") || strings.HasPrefix(name, "X-Envoy-") || slices.Contains(ofHop, name) {
			continue
		}
		to[name] = append(to[name], values...)
	}
}

// ofHop are hop-by-hop headers.
var ofHop = []string{"Content-Type", "Content-Length", "Date", "Server", "Trailer", "X-Request-Id", "Transfer-Encoding", "Connection"}
