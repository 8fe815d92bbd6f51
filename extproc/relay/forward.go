package relay

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// forward proxies a request and its response unchanged, and streams both. If the server cannot be
// reached, the client gets an error whose text is words.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, way http.RoundTripper, to *url.URL, host, words string) {
	var proxy httputil.ReverseProxy
	proxy = httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = to.Scheme, to.Host, host
			// Without these lines, httputil.ReverseProxy would remove the query and the headers.
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded"} {
				if values := p.In.Header[name]; values != nil {
					p.Out.Header[name] = values
				}
			}
		},
		Transport: way, FlushInterval: -1, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		// A gRPC call may end with its headers, without a body. A flush could then send the headers
		// before the end of the stream, and gRPC clients treat an empty end after the headers as a
		// server error.
		ModifyResponse: func(answer *http.Response) error {
			if answer.ContentLength == 0 {
				proxy.FlushInterval = 0
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				s.Log.Warn("cannot forward a request", "to", to.Host, "path", r.URL.Path, "err", err)
			}
			s.unavailable(w, r, words)
		},
	}
	proxy.ServeHTTP(w, r)
}
