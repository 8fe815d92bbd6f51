// Package engineclient is how engines are reached over HTTP: with which token, over which TLS, at which address under which
// name. Who looks at engines and who loads models onto them do it in the same way.
package engineclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
)

// dialTimeout bounds one attempt to connect. An engine that is busy still accepts: the kernel does.
const dialTimeout = time.Second

// Access is how engines are reached. The zero Access is plain HTTP without a token.
type Access struct {
	// TLS is how engines are known of which nobody says it ([Access.Over]); nil means plain HTTP. Its ServerName is set for each endpoint.
	TLS *tls.Config
	// Tokens has the bearer token that requests carry, of which each has the one of that moment. It may be nil: there is none.
	Tokens *Tokens
	// Dial opens connections in tests; nil means by the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	ref  string // to the token, of Tokens
	over v1alpha1.EngineTLS
	h2c  bool
}

// With is how the engines are reached whose token ref refers to.
func (a Access) With(ref string) Access {
	a.ref = ref
	return a
}

// Over is how engines are reached that settings tell of: over TLS as they say, where they are not zero; else by HTTP/2, or as the Access
// says.
func (a Access) Over(settings v1alpha1.EngineTLS, h2c bool) Access {
	a.over, a.h2c = settings, h2c
	return a
}

// Config is how the endpoint at an address is known, under the name that people wrote for it; nil for one that is reached without TLS.
func (a Access) Config(host, address string) (*tls.Config, error) {
	if a.over == (v1alpha1.EngineTLS{}) {
		if a.TLS == nil {
			return nil, nil
		}
		own := a.TLS.Clone()
		if own.ServerName = host; host == "" {
			own.ServerName, _, _ = net.SplitHostPort(address)
		}
		return own, nil
	}
	own := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.over.Hostname, InsecureSkipVerify: a.over.InsecureSkipVerify}
	if a.over.CACertificates != "" {
		own.RootCAs = x509.NewCertPool()
		if !own.RootCAs.AppendCertsFromPEM([]byte(a.over.CACertificates)) {
			return nil, errors.New("spec.engineTLS.caCertificates holds no certificate")
		}
	}
	return own, nil
}

// secure says whether an engine is reached over TLS.
func (a Access) secure() bool { return a.TLS != nil || a.over != (v1alpha1.EngineTLS{}) }

// way carries how a request's endpoint is reached to the dialer, and the name of the endpoint.
type way struct {
	Access
	host string
}

// wayKey is where a request has it.
type wayKey struct{}

// Request makes a request to the endpoint at address, "ip:port". Host is the DNS name that people wrote for it: what its
// certificate is for, and the Host of the request; empty means the address.
func (a Access) Request(ctx context.Context, method, address, host, path string, body io.Reader) (*http.Request, error) {
	scheme := "http"
	if a.secure() {
		scheme = "https"
	}
	ctx = context.WithValue(ctx, wayKey{}, way{a, host})
	r, err := http.NewRequestWithContext(ctx, method, scheme+"://"+address+path, body)
	if err != nil {
		return nil, err
	}
	if host != "" {
		r.Host = net.JoinHostPort(host, r.URL.Port())
	}
	if token := a.Bearer(); token != "" {
		r.Header.Set("Authorization", bearer+token)
	}
	return r, nil
}

// bearer is before the token in a header.
const bearer = "Bearer "

// Sent is the token that a request carries, empty for none.
func Sent(r *http.Request) string { return strings.TrimPrefix(r.Header.Get("Authorization"), bearer) }

// Bearer returns the token for one request, empty for none.
func (a Access) Bearer() string { return a.Tokens.Of(a.ref) }

// DialContext opens a connection without TLS.
func (a Access) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if a.Dial != nil {
		return a.Dial(ctx, network, address)
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
}

// Transport returns a transport for what [Access.Request] makes. It keeps idle connections for at most idle. Compression
// would cost the engine more than it saves the wire.
func (a Access) Transport(idle time.Duration) http.RoundTripper {
	one := func(speaks func(*http.Protocols)) *http.Transport {
		t := &http.Transport{
			DialContext:         a.DialContext,
			DialTLSContext:      dialTLS,
			MaxIdleConnsPerHost: 2, // for one who looks: one for the load and one for the models
			IdleConnTimeout:     idle, DisableCompression: true, Protocols: new(http.Protocols),
		}
		speaks(t.Protocols)
		return t
	}
	return transport{
		one(func(p *http.Protocols) { p.SetHTTP1(true) }),
		one(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }),
	}
}

// transport speaks to each engine what it speaks. Over TLS that is HTTP/1.1.
type transport struct{ http1, http2 *http.Transport }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if w, ok := r.Context().Value(wayKey{}).(way); ok && w.h2c && !w.secure() {
		return t.http2.RoundTrip(r)
	}
	return t.http1.RoundTrip(r)
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t transport) CloseIdleConnections() {
	t.http1.CloseIdleConnections()
	t.http2.CloseIdleConnections()
}

// dialTLS opens a connection as a request of [Access.Request] says. Connections are kept by address, of which several may have the same
// name, so that the name does not come from the URL.
func dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	w, _ := ctx.Value(wayKey{}).(way)
	config, err := w.Config(w.host, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	plain, err := w.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(plain, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	return secure, nil
}

// Stay is the CheckRedirect of clients that read: it follows redirects, which older vLLM answers /metrics with, but never
// away from the endpoint. A Location may have the endpoint's name; the connection is to its address all the same.
func Stay(r *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) > 3 || r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host && r.URL.Host != first.Host {
		return errors.New("redirected away from the endpoint")
	}
	r.URL.Host, r.Host = first.URL.Host, first.Host
	if token := first.Header.Get("Authorization"); token != "" {
		r.Header.Set("Authorization", token) // net/http drops it where the names differ
	}
	return nil
}
