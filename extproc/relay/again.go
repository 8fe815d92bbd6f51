package relay

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/internal/objects"
)

// maxDial is the timeout of a dial.
const maxDial = time.Second

// again sends a request through Envoy once more. First it probes the copies that did not serve the
// request, and reports the results to the fleet. So extproc chooses another copy, or queues the
// request if there is none. Until the request is over, it keeps its place in the limit of
// concurrent requests.
func (s *Server) again(w http.ResponseWriter, r *http.Request, e relaytoken.Request) {
	defer s.Hold(e.ID)()
	s.Fleet.Release(e.ID) // otherwise the request would still occupy a place at a copy with a concurrency limit
	missing, stopping := strings.Split(r.Header.Get(wire.MissingHeader), ","), strings.Split(r.Header.Get(wire.StoppingHeader), ",")
	var looks sync.WaitGroup
	for _, c := range e.Tried {
		if slices.Contains(missing, c.At) {
			k := endpointstate.CopyKey{ModelKey: objects.ModelKey{Pool: e.Models[0].Target.Pool, ID: c.Model}, Endpoint: c.Endpoint}
			s.Fleet.Update(fleet.Now, func(s *endpointstate.State, now time.Time) { s.ModelMissing(k, time.Unix(0, e.SentAt), now) })
			continue
		}
		if slices.Contains(stopping, c.At) {
			s.Fleet.Update(fleet.Now, func(s *endpointstate.State, now time.Time) { s.Stopping(c.Endpoint, now) })
			continue
		}
		looks.Go(func() { s.probe(r.Context(), c) })
	}
	looks.Wait()
	r.Header.Del(wire.MissingHeader)
	r.Header.Del(wire.StoppingHeader)
	r.Header.Set(wire.RelayTokenHeader, s.sentOn(e, e.Models[0], true))
	s.forward(w, r, s.envoy(e.Back), &url.URL{Scheme: "http", Host: "envoy"}, r.Host, "No endpoint could be reached. Try again.")
}

// probe dials a copy that did not serve a request, and reports a failed dial to the fleet at once.
// It reports nothing if the dial fails for a local reason.
func (s *Server) probe(ctx context.Context, c relaytoken.Copy) {
	limited, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(limited, "tcp", c.At)
	switch {
	case err == nil:
		_ = conn.Close()
	case ctx.Err() != nil: // the client's request ended
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		s.Fleet.Update(fleet.Now, func(s *endpointstate.State, now time.Time) {
			if !s.Refuses(c.Endpoint) { // many requests may find this at the same time
				s.Refused(c.Endpoint, now)
			}
		})
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		s.Fleet.Update(fleet.Now, func(s *endpointstate.State, now time.Time) { s.RequestRefused(c.Endpoint, now) })
	}
}
