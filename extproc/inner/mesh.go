package inner

import (
	"crypto/subtle"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/kserve"
)

// Mesh is the way to control for clients of ModelMesh's API, who call the port that they send requests to.
type Mesh struct {
	// Token is what they must send: control trusts whoever is on its machine, as extproc may be.
	Token func() string
	// Control takes HTTP/2.
	Control http.RoundTripper
}

// manage sends a call of ModelMesh's API on to control, with the token that its client sent.
func (s *Server) manage(w http.ResponseWriter, r *http.Request) {
	if method, ok := kserve.MethodOf(r.URL.Path); !ok || !kserve.Manages(method) {
		failCall(w, status(kserve.Unimplemented, "This gateway serves no such method."))
		return
	}
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token := s.Mesh.Token(); !ok || token == "" || subtle.ConstantTimeCompare([]byte(bearer), []byte(token)) != 1 {
		failCall(w, status(unauthenticated, "Send the metadata authorization: Bearer TOKEN, with the token for ModelMesh's API."))
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", "control", wire.ControlName
			if t, ok := s.Mesh.Control.(*http.Transport); ok && !t.Protocols.HTTP2() {
				p.Out.URL.Scheme = "http"
			}
			p.Out.Header.Del(wire.ErrandHeader)
		},
		Transport: s.Mesh.Control, FlushInterval: -1, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				s.Log.Warn("cannot reach control for a client of ModelMesh", "err", err)
			}
			failCall(w, status(kserve.Unavailable, "The gateway cannot reach control. Try again."))
		},
	}
	proxy.ServeHTTP(w, r)
}

// unauthenticated is a status code of gRPC.
const unauthenticated kserve.Code = 16
