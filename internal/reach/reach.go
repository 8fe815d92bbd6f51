// Package reach is how engines are reached over HTTP: with which token, over which TLS, at which address under which
// name. Who looks at engines and who loads models onto them do it in the same way.
package reach

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// dialTimeout bounds one attempt to connect. An engine that is busy still accepts: the kernel does.
const dialTimeout = time.Second

// Access is how engines are reached. The zero Access is plain HTTP without a token.
type Access struct {
	// TLS is how engines are known; nil means plain HTTP. Its ServerName is set for each endpoint.
	TLS *tls.Config
	// Tokens has the bearer token that requests carry, of which each has the one of that moment. It may be nil: there is none.
	Tokens *Tokens
	// Dial opens connections in tests; nil means by the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	ref string // to the token, of Tokens
}

// With is how the engines are reached whose token ref refers to.
func (a Access) With(ref string) Access {
	a.ref = ref
	return a
}

// serverName carries the name of a request's endpoint to the dialer.
type serverName struct{}

// Request makes a request to the endpoint at address, "ip:port". Host is the DNS name that people wrote for it: what its
// certificate is for, and the Host of the request; empty means the address.
func (a Access) Request(ctx context.Context, method, address, host, path string, body io.Reader) (*http.Request, error) {
	scheme := "http"
	if a.TLS != nil {
		scheme = "https"
	}
	ctx = context.WithValue(ctx, serverName{}, host)
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
func (a Access) Transport(idle time.Duration) *http.Transport {
	t := &http.Transport{
		DialContext:         a.DialContext,
		MaxIdleConnsPerHost: 2, // for one who looks: one for the load and one for the models
		IdleConnTimeout:     idle, DisableCompression: true,
	}
	if a.TLS != nil {
		// Connections are kept by address, of which several may have the same name, so that the name does not come
		// from the URL.
		t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			own := a.TLS.Clone()
			own.ServerName, _ = ctx.Value(serverName{}).(string)
			if own.ServerName == "" {
				own.ServerName, _, _ = net.SplitHostPort(address)
			}
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			plain, err := a.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			secure := tls.Client(plain, own)
			if err := secure.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, plain.Close())
			}
			return secure, nil
		}
	}
	return t
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
