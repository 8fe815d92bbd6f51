// Package engineclient calls engines over HTTP: with their token, their TLS settings and their
// hostname. Scraping and loading use the same client.
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

// dialTimeout limits one connection attempt. A busy engine still accepts connections, since the
// kernel does.
const dialTimeout = time.Second

// Access is how engines are called. The zero Access is plain HTTP without a token.
type Access struct {
	// TLS is for engines without settings of their own ([Access.Over]); nil means plain HTTP.
	// ServerName is set per endpoint.
	TLS *tls.Config
	// Tokens has the bearer tokens; each request reads the current one. It may be nil for none.
	Tokens *Tokens
	// Dial opens connections in tests; nil means the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	ref  string // reference to the token in Tokens
	over v1alpha1.EngineTLS
	h2c  bool
}

// With returns the Access for engines whose token ref refers to.
func (a Access) With(ref string) Access {
	a.ref = ref
	return a
}

// Over returns the Access for engines with settings: over TLS if they are not zero, otherwise over
// HTTP/2 if h2c is true, otherwise unchanged.
func (a Access) Over(settings v1alpha1.EngineTLS, h2c bool) Access {
	a.over, a.h2c = settings, h2c
	return a
}

// Config returns the TLS configuration for an endpoint with its configured hostname; nil without
// TLS.
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

// Secure reports whether an engine is called over TLS.
func (a Access) Secure() bool { return a.TLS != nil || a.over != (v1alpha1.EngineTLS{}) }

// way passes a request's Access and hostname to the dialer.
type way struct {
	Access
	host string
}

// wayKey is the context key of way.
type wayKey struct{}

// Request makes a request to the endpoint at address, "ip:port". Host is its configured DNS name,
// which its certificate must match and which is the request's Host; empty means the address.
func (a Access) Request(ctx context.Context, method, address, host, path string, body io.Reader) (*http.Request, error) {
	scheme := "http"
	if a.Secure() {
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

// bearer precedes the token in a header.
const bearer = "Bearer "

// Sent returns the token of a request, empty for none.
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

// Transport returns a transport for requests made by [Access.Request]. It keeps idle connections
// for at most idle. Compression is off, since it would cost the engine more than it saves.
func (a Access) Transport(idle time.Duration) http.RoundTripper {
	one := func(speaks func(*http.Protocols)) *http.Transport {
		t := &http.Transport{
			DialContext:         a.DialContext,
			DialTLSContext:      dialTLS,
			MaxIdleConnsPerHost: 2, // for a scraper: one for the load and one for the models
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

// transport uses each engine's protocol: HTTP/1.1 or HTTP/2, and HTTP/1.1 over TLS.
type transport struct{ http1, http2 *http.Transport }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if w, ok := r.Context().Value(wayKey{}).(way); ok && w.h2c && !w.Secure() {
		return t.http2.RoundTrip(r)
	}
	return t.http1.RoundTrip(r)
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t transport) CloseIdleConnections() {
	t.http1.CloseIdleConnections()
	t.http2.CloseIdleConnections()
}

// dialTLS opens a connection for a request made by [Access.Request]. Connections are pooled by
// address, and several addresses may have the same hostname, so the hostname does not come from the
// URL.
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

// Stay is the CheckRedirect of scrapers: it follows redirects, with which older vLLM answers
// /metrics, but never away from the endpoint. A Location may have the endpoint's hostname; the
// connection still goes to its address.
func Stay(r *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) > 3 || r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host && r.URL.Host != first.Host {
		return errors.New("redirected away from the endpoint")
	}
	r.URL.Host, r.Host = first.URL.Host, first.Host
	if token := first.Header.Get("Authorization"); token != "" {
		r.Header.Set("Authorization", token) // net/http drops it if the names differ
	}
	return nil
}
