package inner

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/errand"
	"github.com/headgate/headgate/extproc/fleet/belief"
	"github.com/headgate/headgate/internal/objects"
)

// maxDial is how long a look may take.
const maxDial = time.Second

// again sends a request through Envoy once more. What is found out of the copies that did not serve it is in force before, so that it is not
// decided as it was, but waits for its model where none is left.
func (s *Server) again(w http.ResponseWriter, r *http.Request, e errand.Errand) {
	s.Fleet.Release(e.ID) // else it would wait for a place that it has itself, where its copy takes only so many requests
	missing, stopping := strings.Split(r.Header.Get(wire.MissingHeader), ","), strings.Split(r.Header.Get(wire.StoppingHeader), ",")
	var looks sync.WaitGroup
	for _, c := range e.Tried {
		if slices.Contains(missing, c.At) {
			s.Fleet.Lacks(belief.CopyKey{ModelKey: objects.ModelKey{Pool: e.Models[0].Target.Pool, ID: c.Model}, Endpoint: c.Endpoint})
			continue
		}
		if slices.Contains(stopping, c.At) {
			s.Fleet.Stops(c.Endpoint)
			continue
		}
		looks.Go(func() { s.look(r.Context(), c) })
	}
	looks.Wait()
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "envoy", p.In.Host
			p.Out.URL.RawQuery = p.In.URL.RawQuery                                                                   // of which Rewrite takes away what it cannot read
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded"} { // which Rewrite takes away
				if values := p.In.Header[name]; values != nil {
					p.Out.Header[name] = values
				}
			}
			p.Out.Header.Del(wire.MissingHeader)
			p.Out.Header.Del(wire.StoppingHeader)
			p.Out.Header.Set(wire.ErrandHeader, s.sentOn(e, e.Models[0], true))
		},
		Transport: s.envoy(e.Back), FlushInterval: -1, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				s.Log.Warn("cannot send a request through Envoy once more", "socket", e.Back, "err", err)
			}
			fail(w, r, http.StatusServiceUnavailable, unavailable, "No endpoint could be reached. Try again.")
		},
	}
	proxy.ServeHTTP(w, r)
}

// look finds out whether anybody listens where a copy did not serve a request, and tells the fleet at once where nobody does. A look that fails
// for what is wrong here tells nothing.
func (s *Server) look(ctx context.Context, c errand.Copy) {
	limited, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(limited, "tcp", c.At)
	switch {
	case err == nil:
		_ = conn.Close()
	case ctx.Err() != nil: // it is the request that has gone
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		s.Fleet.Gone(c.Endpoint)
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		s.Fleet.Doubt(c.Endpoint)
	}
}
