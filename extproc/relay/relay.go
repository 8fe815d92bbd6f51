// Package relay is a server inside extproc that Envoy uses as an endpoint. It handles requests that
// need more than one chosen endpoint:
//
//   - If no endpoint has served a request, the relay sends it through Envoy again.
//   - It sends a call for several models to each of them.
//   - It sends a request for a stored response to each pool that may have the response.
//   - It converts a REST request to a gRPC call if the engine accepts only gRPC.
//   - It forwards calls of ModelMesh's API to control.
//
// The relay makes no decisions and stores no state. Each request has an encrypted token that
// contains the relay's task (see package relaytoken). When the request passes through Envoy again,
// extproc decides it again.
package relay

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
)

// Config configures a Server.
type Config struct {
	// Folder contains the sockets of the Envoys. Each token names one of them.
	Folder string
	// Tokens decrypts the tokens.
	Tokens *relaytoken.Sealer
	// Fleet receives a report about each copy that did not serve a request.
	Fleet *fleet.Fleet
	// Hold keeps the place of a request in its route's limit of concurrent requests until release
	// is called; nil if there are no limits. ID is the id of the decision in the request's token.
	Hold func(id string) (release func())
	// Mesh forwards ModelMesh's API to control; if nil, these calls are refused.
	Mesh *Mesh
	// Replied counts refused requests by HTTP status and error code; nil disables counting.
	Replied func(status int, code string)
	Log     *slog.Logger
}

// Server is the relay. It is safe for concurrent use. Make one with [New].
type Server struct {
	Config
	kept atomic.Int64 // bytes buffered for calls for several models, with their responses

	mu     sync.Mutex                 // guards envoys
	envoys map[string]*http.Transport // key: socket
}

// New returns a Server.
func New(c Config) *Server {
	if c.Replied == nil {
		c.Replied = func(int, string) {}
	}
	if c.Hold == nil {
		c.Hold = func(string) func() { return func() {} }
	}
	return &Server{Config: c, envoys: make(map[string]*http.Transport)}
}

// headerTimeout limits how long an Envoy may take to send the headers of a request to the relay.
const headerTimeout = 5 * time.Second

// idleTimeout is how long the relay keeps an unused connection to an Envoy. A replaced Envoy waits
// until the relay has closed its connections. So the relay sends no request on a connection that
// Envoy is closing.
const idleTimeout = time.Second

// Serve serves on a listener until ctx ends, and then closes the listener. Requests in flight may
// continue for patience.
func (s *Server) Serve(ctx context.Context, l net.Listener, patience time.Duration) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1024}, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if server.Shutdown(late) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-ended
	return nil
}

// ServeHTTP performs the task in the request's token.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(wire.FinalHeader, "1")
	e, ok := s.Tokens.Open(r.Header.Get(wire.RelayTokenHeader))
	switch {
	case ok && e.Kind == relaytoken.Again:
		s.again(w, r, e)
	case ok && e.Kind == relaytoken.Several && isCall(r):
		s.several(w, r, e)
	case ok && e.Kind == relaytoken.Transcode:
		s.transcode(w, r, e)
	case ok && e.Kind == relaytoken.Search:
		s.search(w, r, e)
	case ok && e.Kind == relaytoken.Manage && s.Mesh != nil:
		s.manage(w, r)
	default:
		s.unavailable(w, r, "The gateway restarted while it handled the request. Try again.")
	}
}

// envoy returns a transport to the Envoy that listens at a socket. It uses HTTP/2 for all requests,
// because gRPC requires it.
func (s *Server) envoy(socket string) *http.Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.envoys[socket]
	if t == nil {
		t = &http.Transport{
			Protocols: new(http.Protocols), DisableCompression: true, IdleConnTimeout: idleTimeout,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.Folder, socket))
			},
		}
		t.Protocols.SetUnencryptedHTTP2(true)
		s.envoys[socket] = t
	}
	return t
}

// sentOn returns the token for a request that the relay sends through Envoy.
func (s *Server) sentOn(e relaytoken.Request, m relaytoken.Model, last bool) string {
	return s.Tokens.Seal(relaytoken.Request{
		Kind: relaytoken.Sent, Back: e.Back, Listener: e.Listener, Given: e.Given,
		Models: []relaytoken.Model{m}, Most: e.Most, Last: last, Fallback: e.Fallback,
	})
}

// isCall reports whether a request is a gRPC call. The relay gets no other RPC protocol.
func isCall(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// NewTokens returns a Sealer with the key in a file. It creates the file if it does not exist. So
// when one extproc process replaces another, it can decrypt the other's tokens. If file is empty,
// the key is random.
func NewTokens(file string) (*relaytoken.Sealer, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // rand.Read never fails
	if file != "" {
		var err error
		if key, err = kept(file, key); err != nil {
			return nil, err
		}
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("%s contains no key: remove it: %w", file, err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return relaytoken.NewSealer(aead), err
}

// kept returns the content of a file. If the file does not exist, kept creates it atomically with
// text.
func kept(file string, text []byte) ([]byte, error) {
	if was, err := os.ReadFile(file); !errors.Is(err, fs.ErrNotExist) {
		return was, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	made, err := os.CreateTemp(filepath.Dir(file), ".") // CreateTemp makes a file that only this user can read
	if err != nil {
		return nil, err
	}
	defer os.Remove(made.Name())
	if _, err = made.Write(text); err != nil {
		return nil, errors.Join(err, made.Close())
	}
	if err := errors.Join(made.Close(), os.Link(made.Name(), file)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(file)
}
