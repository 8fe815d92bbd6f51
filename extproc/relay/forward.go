package relay

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// forward sends a request on as it is, to a server that a way reaches, and its answer back as it comes. Its client is told words where the way is
// closed.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, way http.RoundTripper, to *url.URL, host, words string) {
	var proxy httputil.ReverseProxy
	proxy = httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = to.Scheme, to.Host, host
			// What follows Rewrite takes away.
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded"} {
				if values := p.In.Header[name]; values != nil {
					p.Out.Header[name] = values
				}
			}
		},
		Transport: way, FlushInterval: -1, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		// An answer without a body, as that of a call which ends with its headers, must end with them here too: a flush may come between, and
		// clients of gRPC take the empty end after it for a fault of the server.
		ModifyResponse: func(answer *http.Response) error {
			if answer.ContentLength == 0 {
				proxy.FlushInterval = 0
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				s.Log.Warn("cannot send a request on", "to", to.Host, "path", r.URL.Path, "err", err)
			}
			s.unavailable(w, r, words)
		},
	}
	proxy.ServeHTTP(w, r)
}
