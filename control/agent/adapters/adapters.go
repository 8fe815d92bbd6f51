// Package adapters serves the management port of an agent beside vLLM or SGLang. It answers the
// engine's own calls to load and unload LoRA adapters. If the path of an adapter is a URI, it
// fetches the files first, and then calls the engine with their path on this machine.
//
// The list of models, the metrics page and the tokenizer of the engine pass unchanged. Every other
// path is 404: the engine's other paths are not for management, and some of them generate text
// without a key.
package adapters

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/headgate/headgate/control/agent/relay"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/control/keylock"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

const (
	// maxBody is the maximum size of a call's body in bytes. It has a name, a path and settings.
	maxBody = 1 << 20
	// maxAnswer is the maximum size of the engine's answer to a call in bytes. SGLang's has a list
	// of all adapters.
	maxAnswer = 16 << 20
	// listTimeout limits one read of the engine's list of models.
	listTimeout = 5 * time.Second
)

// Files are the files of adapters on this machine. Its methods must be safe for concurrent use.
type Files interface {
	// Fetch fetches the files of an adapter, and returns the path of its folder. An error is a
	// [fetch.Error], or that of ctx.
	Fetch(ctx context.Context, name string, source storage.Source) (path string, err error)
	// Release removes the files of an adapter that the engine does not have. An adapter without
	// files is no error.
	Release(name string) error
	// Names returns the adapters that have files here, also those of an earlier process.
	Names() []string
}

// Config configures a Server. Token and Key may be nil; all other fields are required.
type Config struct {
	// Kind is engine.VLLM or engine.SGLang.
	Kind engine.Kind
	// Engine is where the engine listens.
	Engine relay.Endpoint
	Files  Files
	// Resolve returns where the files of an adapter are. It returns false for a path that the
	// engine reads itself. Its error is shown to the caller.
	Resolve func(storage.Request) (storage.Source, bool, error)
	// Token returns the bearer token that callers must send; nil or empty for none.
	Token func() string
	// Key returns the engine's API key; if nil or empty, the engine gets the caller's token.
	Key func() string
	Log *slog.Logger
}

// Server is the handler of the management port. Make one with [New], and call [Server.Run] too.
type Server struct {
	config Config
	paths  map[string]route
	client *http.Client
	locks  keylock.Locks // of adapters: one call for an adapter runs at a time
}

// route is a path that the agent serves.
type route struct {
	method string
	serve  func(*Server, http.ResponseWriter, *http.Request)
}

// New returns a Server. It fails for a kind of engine that loads no adapters.
func New(c Config) (*Server, error) {
	s := &Server{config: c}
	transport := c.Engine.Transport()
	s.client = &http.Client{Transport: transport, CheckRedirect: relay.Stay}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "engine", p.In.Host
			s.authorize(p.Out)
		},
		Transport:    transport,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { s.unreached(err).write(w, c.Kind) },
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	pass := func(_ *Server, w http.ResponseWriter, r *http.Request) { proxy.ServeHTTP(w, r) }
	s.paths = map[string]route{
		"/v1/models": {http.MethodGet, pass},
		"/metrics":   {http.MethodGet, pass},
		"/metrics/":  {http.MethodGet, pass}, // older vLLMs redirect to it
		"/tokenize":  {http.MethodPost, pass},
	}
	load, unload := route{http.MethodPost, (*Server).load}, route{http.MethodPost, (*Server).unload}
	switch c.Kind {
	case engine.VLLM:
		s.paths["/v1/load_lora_adapter"], s.paths["/v1/unload_lora_adapter"] = load, unload
	case engine.SGLang:
		s.paths["/load_lora_adapter"], s.paths["/unload_lora_adapter"] = load, unload
	default:
		return nil, fmt.Errorf("engines of the kind %q load no adapters by HTTP", c.Kind)
	}
	return s, nil
}

// ServeHTTP answers one call. A load or an unload that has reached the engine continues after its
// caller has disconnected.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route, ok := s.paths[r.URL.Path]
	switch {
	case !ok || r.URL.RawPath != "":
		failure{http.StatusNotFound, "NotFoundError", "the agent serves no such path of the engine"}.write(w, s.config.Kind)
	case r.Method != route.method:
		w.Header().Set("Allow", route.method)
		failure{http.StatusMethodNotAllowed, "Method Not Allowed", "use " + route.method}.write(w, s.config.Kind)
	case !s.permits(r):
		failure{http.StatusUnauthorized, "Unauthorized", "the agent requires the token of its --token-file"}.write(w, s.config.Kind)
	default:
		route.serve(s, w, r)
	}
}

// permits reports whether a call has the token.
func (s *Server) permits(r *http.Request) bool {
	token := value(s.config.Token)
	return token == "" || engineclient.Shows(r.Header.Get("Authorization"), token)
}

// authorize sets the engine's key, if it has one of its own.
func (s *Server) authorize(r *http.Request) {
	if key := value(s.config.Key); key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
}

// value returns the result of a function that may be nil.
func value(f func() string) string {
	if f == nil {
		return ""
	}
	return f()
}

// answer is an engine's answer to a call.
type answer struct {
	status int
	media  string
	body   []byte
}

func (a answer) write(w http.ResponseWriter) {
	if a.media != "" {
		w.Header().Set("Content-Type", a.media)
	} else {
		w.Header()["Content-Type"] = nil // vLLM sends none; net/http would guess
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the caller may have left
}

// call calls the engine with a body, and the credentials of the caller's request.
func (s *Server) call(ctx context.Context, by *http.Request, method, path string, body []byte) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if by == nil {
		if token := value(s.config.Token); token != "" { // usually the engine's own, too
			r.Header.Set("Authorization", "Bearer "+token)
		}
	} else {
		r.Host = by.Host
		for _, name := range []string{"Authorization", "Content-Type"} {
			if value := by.Header.Get(name); value != "" {
				r.Header.Set(name, value)
			}
		}
	}
	s.authorize(r)
	is, err := s.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer is.Body.Close()
	text, err := io.ReadAll(io.LimitReader(is.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = errors.New("the engine's answer is too long")
	}
	return answer{is.StatusCode, is.Header.Get("Content-Type"), text}, err
}

// list returns the adapters that the engine lists.
func (s *Server) list(ctx context.Context, by *http.Request) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	is, err := s.call(ctx, by, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	if is.status != http.StatusOK {
		return nil, fmt.Errorf("the engine answers GET /v1/models with %d", is.status)
	}
	models, err := engine.ReadModels(is.body)
	return models.Adapters, err
}
