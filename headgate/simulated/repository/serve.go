package repository

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/engine"
)

const (
	storedPath = "/v2/repository/models/"
	modelsPath = "/v2/models/"
)

// Handler serves the HTTP API of the engine's kind. MLServer decodes model names in paths; Triton
// does not.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if local, ok := q.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			w.Header().Set(llm.ServedHeader, local.String())
		}
		path, _, _ := strings.Cut(q.RequestURI, "?")
		call := q.Method + " " + path
		s.set(func() { s.asked[call]++ })
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		answer := make(chan reply, 1)
		go func() { // the call continues if the client disconnects
			if s.config.Kind == engine.TorchServe {
				answer <- s.serveTorch(q.Method, q.RequestURI)
				return
			}
			answer <- s.serve(q.Method, path, body)
		}()
		select {
		case r := <-answer:
			say(w, r)
		case <-q.Context().Done():
		}
	})
}

func (s *Server) serve(method, path string, body []byte) reply {
	triton := s.config.Kind == engine.Triton
	nowhere := reply{http.StatusNotFound, map[string]string{"detail": "Not Found"}}
	if triton {
		nowhere = failure(http.StatusNotFound, "Not Found")
	}
	get, post := method == http.MethodGet, method == http.MethodPost
	switch {
	case get && path == "/v2":
		return reply{http.StatusOK, map[string]any{"name": string(s.config.Kind), "version": "simulated", "extensions": []string{}}}
	case get && (path == engine.LivePath || path == "/v2/health/ready"):
		return reply{http.StatusOK, nil}
	case post && path == engine.IndexPath && !triton && len(body) == 0:
		return reply{
			http.StatusUnprocessableEntity,
			map[string]any{"detail": []any{map[string]any{"type": "missing", "loc": []string{"body"}, "msg": "Field required"}}},
		}
	case post && path == engine.IndexPath:
		return reply{http.StatusOK, s.index()}
	}
	rest, stored := strings.CutPrefix(path, storedPath)
	if !stored {
		var served bool
		if rest, served = strings.CutPrefix(path, modelsPath); !served {
			return nowhere
		}
	}
	name, verb, _ := strings.Cut(rest, "/")
	if !triton {
		decoded, err := url.PathUnescape(name)
		if err != nil || strings.Contains(decoded, "/") {
			return nowhere
		}
		name = decoded
	}
	switch {
	case post && stored && (verb == "load" || verb == "unload") && s.config.Fixed && triton:
		return failure(http.StatusServiceUnavailable, "explicit model load / unload is not allowed if polling is enabled")
	case post && stored && verb == "load":
		return s.load(name)
	case post && stored && verb == "unload":
		return s.unload(name)
	case get && !stored && verb == "ready":
		return s.ready(name)
	case post && !stored && verb == "infer":
		return s.infer(name, "")
	}
	if version, versioned := strings.CutPrefix(verb, "versions/"); versioned && post && !stored {
		if version, infers := strings.CutSuffix(version, "/infer"); infers {
			return s.infer(name, version)
		}
	}
	return nowhere
}

func (s *Server) ready(name string) reply {
	stage, _ := s.stage(name)
	switch {
	case stage == engine.Serving:
		return reply{http.StatusOK, nil}
	case s.config.Kind == engine.Triton:
		return failure(http.StatusBadRequest, "Model version not ready")
	case stage == engine.Coming:
		return reply{http.StatusBadRequest, nil}
	}
	return failure(http.StatusNotFound, "Model %s not found", name)
}

// infer returns an answer without outputs. version is empty if the request names none. Models have
// version 1 in Triton, and no version in MLServer.
func (s *Server) infer(name, version string) reply {
	switch stage, known := s.stage(name); {
	case stage == engine.Serving && (version == "" || version == "1" && s.config.Kind == engine.Triton):
		return reply{http.StatusOK, map[string]any{"model_name": name, "model_version": "1", "outputs": []any{}}}
	case s.config.Kind == engine.MLServer && version != "":
		return failure(http.StatusNotFound, "Model %s with version %s not found", name, version)
	case s.config.Kind == engine.MLServer:
		return failure(http.StatusNotFound, "Model %s not found", name)
	case known && version != "":
		return failure(http.StatusNotFound, "Request for unknown model: '%s' version %s is not found", name, version)
	case known:
		return failure(http.StatusNotFound, "Request for unknown model: '%s' has no available versions", name)
	}
	return failure(http.StatusNotFound, "Request for unknown model: '%s' is not found", name)
}

// say writes an answer. It ignores errors, because they mean that the client has disconnected.
func say(w http.ResponseWriter, r reply) {
	var body []byte
	switch of := r.body.(type) {
	case nil:
	case string:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(of)
	default:
		w.Header().Set("Content-Type", "application/json")
		var err error
		if body, err = json.Marshal(of); err != nil {
			panic(fmt.Sprintf("an answer does not encode: %v", err))
		}
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(body)
}
