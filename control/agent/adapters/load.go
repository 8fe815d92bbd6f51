package adapters

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/internal/engine"
)

// configFile is the file that each LoRA adapter has, at the top of its folder.
const configFile = "adapter_config.json"

// request is the body of a load or an unload. The agent passes all other fields unchanged.
type request struct {
	raw    []byte
	fields map[string]json.RawMessage // nil if the body is no object

	name, path, storage string // empty if absent or no text
	inPlace             bool
}

// readRequest parses a body. It accepts a body that is not a JSON object, so that the engine
// answers with its own error.
func readRequest(body []byte) request {
	r := request{raw: body}
	if json.Unmarshal(body, &r.fields) != nil {
		return request{raw: body}
	}
	for name, to := range map[string]any{"lora_name": &r.name, "lora_path": &r.path, "storage": &r.storage, "load_inplace": &r.inPlace} {
		_ = json.Unmarshal(r.fields[name], to) // absent, or the engine refuses it
	}
	return r
}

// body returns the body for the engine: without the field storage, which is for the agent, and with
// another path unless that is empty.
func (r request) body(path string) []byte {
	_, own := r.fields["storage"]
	if !own && path == "" {
		return r.raw
	}
	delete(r.fields, "storage")
	if path != "" {
		r.fields["lora_path"], _ = json.Marshal(path) // a text always encodes
	}
	text, err := json.Marshal(r.fields)
	if err != nil {
		return r.raw // never: the fields were parsed from JSON
	}
	return text
}

// read reads the body of a call. If it returns false, it has answered the call.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (request, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		failure{http.StatusRequestEntityTooLarge, "Request Entity Too Large", "the body of the call cannot be read: " + err.Error()}.
			write(w, s.config.Kind)
		return request{}, false
	}
	return readRequest(body), true
}

// load serves a load.
func (s *Server) load(w http.ResponseWriter, r *http.Request) {
	q, ok := s.read(w, r)
	if !ok {
		return
	}
	is, err := s.loadAdapter(r, q)
	s.finish(w, r, is, err)
}

// finish answers a call with the engine's answer, or with a failure.
func (s *Server) finish(w http.ResponseWriter, r *http.Request, is answer, err error) {
	own, ok := err.(failure) //nolint:errorlint // the agent's own are not wrapped
	switch {
	case err == nil:
		is.write(w)
	case ok:
		own.write(w, s.config.Kind)
	case r.Context().Err() == nil:
		s.unreached(err).write(w, s.config.Kind)
	}
}

// loadAdapter fetches the files of an adapter and calls the engine. An error is a failure, or that
// of a call to the engine or of the caller's context.
func (s *Server) loadAdapter(r *http.Request, q request) (answer, error) {
	ctx := r.Context()
	if q.name == "" {
		return s.call(ctx, r, http.MethodPost, r.URL.Path, q.body(""))
	}
	if err := engine.CheckName(q.name); err != nil {
		return answer{}, failure{http.StatusBadRequest, "InvalidUserInput", "the adapter cannot have this name: " + err.Error()}
	}
	source, remote, err := s.config.Resolve(storage.Request{ID: q.name, Path: q.path, Key: q.storage})
	if err != nil {
		return answer{}, failure{http.StatusUnprocessableEntity, "Unprocessable Entity", err.Error()}
	}
	end, err := s.locks.Lock(ctx, q.name)
	if err != nil {
		return answer{}, err
	}
	defer end()
	local := ""
	if remote {
		// The engine may read the files of an adapter again while it lists the adapter. So they are
		// not replaced, and the engine answers that it has the adapter.
		listed, err := s.list(ctx, r)
		if err != nil {
			return answer{}, err
		}
		if q.inPlace || !slices.Contains(listed, q.name) {
			if local, err = s.fetch(ctx, q.name, source); err != nil {
				return answer{}, err
			}
		}
	}
	// An engine that has received the call completes it, even if the caller has disconnected. The
	// files stay until then.
	ctx = context.WithoutCancel(ctx)
	is, err := s.call(ctx, r, http.MethodPost, r.URL.Path, q.body(local))
	if local != "" && (err != nil || !is.loaded()) {
		s.releaseUnlisted(ctx, r, q.name)
	}
	return is, err
}

// fetch fetches the files of an adapter, and returns the path of its folder.
func (s *Server) fetch(ctx context.Context, name string, source storage.Source) (string, error) {
	began := time.Now()
	path, err := s.config.Files.Fetch(ctx, name, source)
	if err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		s.config.Log.Warn("cannot fetch an adapter", "adapter", name, "source", source.URI, "err", err)
		return "", unfetched(name, err)
	}
	path = filepath.Clean(path)
	if info, err := os.Stat(filepath.Join(path, configFile)); err != nil || !info.Mode().IsRegular() {
		s.release(name)
		words := notFound + quote(name) + ": there is no file " + configFile + " at the top of " + source.URI +
			"; the source must be the folder of a LoRA adapter"
		s.config.Log.Warn("a source is no adapter", "adapter", name, "source", source.URI)
		return "", failure{http.StatusNotFound, "NotFoundError", words}
	}
	s.config.Log.Info("fetched an adapter", "adapter", name, "source", source.URI, "seconds", time.Since(began).Seconds())
	return path, nil
}

// loaded reports whether an engine has the adapter, according to its answer to a load.
func (a answer) loaded() bool {
	if a.status == http.StatusOK {
		var sglang struct {
			Success *bool `json:"success"`
		}
		return json.Unmarshal(a.body, &sglang) != nil || sglang.Success == nil || *sglang.Success
	}
	return a.status == http.StatusBadRequest && strings.Contains(string(a.body), "already")
}

// unload serves an unload. It releases the files if the engine no longer lists the adapter.
func (s *Server) unload(w http.ResponseWriter, r *http.Request) {
	q, ok := s.read(w, r)
	if !ok {
		return
	}
	is, err := s.unloadAdapter(r, q)
	s.finish(w, r, is, err)
}

// unloadAdapter calls the engine to unload an adapter, and releases its files.
func (s *Server) unloadAdapter(r *http.Request, q request) (answer, error) {
	ctx := r.Context()
	if q.name != "" {
		end, err := s.locks.Lock(ctx, q.name)
		if err != nil {
			return answer{}, err
		}
		defer end()
	}
	ctx = context.WithoutCancel(ctx)
	is, err := s.call(ctx, r, http.MethodPost, r.URL.Path, q.body(""))
	if q.name != "" && err == nil {
		s.releaseUnlisted(ctx, r, q.name)
	}
	return is, err
}
