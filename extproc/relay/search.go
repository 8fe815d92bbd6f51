package relay

import (
	"bytes"
	"io"
	"net/http"
	"net/url"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
)

// search asks one pool after the other for a stored response, until a pool has it.
func (s *Server) search(w http.ResponseWriter, r *http.Request, e relaytoken.Request) {
	budget := budget{all: &s.kept}
	defer budget.giveBack()
	body, err := io.ReadAll(budget.reader(r.Body))
	if err != nil {
		s.unavailable(w, r, "The gateway could not read the request. Try again.")
		return
	}
	r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, 0, nil
	s.forward(w, r, &searching{s, e, body}, &url.URL{Scheme: "http", Host: "envoy"}, r.Host, "No endpoint could be reached. Try again.")
}

// searching is a transport that asks the pools of one request.
type searching struct {
	server *Server
	of     relaytoken.Request
	body   []byte
}

// RoundTrip asks the pools in order, and returns the first successful response. It continues after
// any error, because an engine of another kind may reject the request. If all pools fail, it
// returns the first error other than 404. If all errors are 404, it returns the first.
func (t *searching) RoundTrip(r *http.Request) (*http.Response, error) {
	var without *http.Response
	for _, m := range t.of.Models {
		answer, err := t.server.envoy(t.of.Back).RoundTrip(t.request(r, m))
		if err != nil {
			drop(without)
			return nil, err
		}
		switch {
		case answer.StatusCode < http.StatusBadRequest:
			drop(without)
			return answer, nil
		case without == nil || without.StatusCode == http.StatusNotFound && answer.StatusCode != http.StatusNotFound:
			drop(without)
			without = answer
		default:
			drop(answer)
		}
	}
	return without, nil
}

// request returns the request to send to a pool.
func (t *searching) request(r *http.Request, m relaytoken.Model) *http.Request {
	to := r.Clone(r.Context())
	to.Header.Set(wire.RelayTokenHeader, t.server.sentOn(t.of, m, true))
	to.Body, to.ContentLength = http.NoBody, int64(len(t.body))
	if len(t.body) > 0 {
		// for a retry, if Envoy has not read the body
		to.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(t.body)), nil }
		to.Body, _ = to.GetBody()
	}
	return to
}

// maxDropped limits how many bytes of a discarded response are read. If none were read, Envoy would
// count the request as canceled.
const maxDropped = 64 << 10

// drop discards a response, which may be nil.
func drop(answer *http.Response) {
	if answer != nil {
		_, _ = io.CopyN(io.Discard, answer.Body, maxDropped)
		_ = answer.Body.Close()
	}
}
