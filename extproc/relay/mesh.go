package relay

import (
	"net/http"
	"net/url"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/internal/engineclient"
)

// Mesh forwards calls of ModelMesh's management API to control. ModelMesh clients send these calls
// to the port for inference.
type Mesh struct {
	// Token returns the token that clients must send. Control itself trusts all callers on the same
	// host, such as extproc, and so cannot check clients.
	Token func() string
	// Control sends requests to control over HTTP/2.
	Control http.RoundTripper
}

// manage forwards a call of ModelMesh's API to control if it has the token.
func (s *Server) manage(w http.ResponseWriter, r *http.Request) {
	if method, ok := kserve.MethodOf(r.URL.Path); !ok || !kserve.Manages(method) {
		s.failCall(w, r, status(kserve.Unimplemented, "This gateway serves no such method."))
		return
	}
	if !engineclient.Shows(r.Header.Get("Authorization"), s.Mesh.Token()) {
		s.failCall(w, r, status(kserve.Unauthenticated,
			"Send the metadata authorization: Bearer TOKEN, with the token for ModelMesh's API."))
		return
	}
	to := &url.URL{Scheme: "https", Host: "control"}
	if t, ok := s.Mesh.Control.(*http.Transport); ok && !t.Protocols.HTTP2() {
		to.Scheme = "http"
	}
	r.Header.Del(wire.RelayTokenHeader)
	s.forward(w, r, s.Mesh.Control, to, wire.ControlName, "The gateway cannot reach control. Try again.")
}
