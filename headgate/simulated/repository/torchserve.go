package repository

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// exception returns an error in TorchServe's format.
func exception(status int, of, format string, args ...any) reply {
	return reply{status, map[string]any{"code": status, "type": of, "message": fmt.Sprintf(format, args...)}}
}

func unregistered(name string) reply {
	return exception(http.StatusNotFound, "ModelNotFoundException", "Model not found: %s", name)
}

func done(status int, format string, args ...any) reply {
	return reply{status, map[string]string{"status": fmt.Sprintf(format, args...)}}
}

// serveTorch answers a request as TorchServe 0.12.0 does. Here one port is both the management port
// and the inference port.
func (s *Server) serveTorch(method, target string) reply {
	u, err := url.ParseRequestURI(target)
	nowhere := exception(http.StatusNotFound, "ResourceNotFoundException", "Requested resource is not found, please refer to API document.")
	if err != nil {
		return nowhere
	}
	parts := strings.Split(strings.TrimPrefix(u.Path, "/"), "/") // u.Path is already decoded
	of, query := parts[0], u.Query()
	name := ""
	if len(parts) > 1 {
		name = parts[1]
	}
	switch call := method + " " + of; {
	case call == "GET ping":
		return done(http.StatusOK, "Healthy")
	case call == "POST predictions" && name != "":
		return s.predict(name)
	case call == "POST v2" && len(parts) == 4 && name == "models" && parts[3] == "infer":
		return s.predict(parts[2])
	case of != "models":
		return nowhere
	case s.config.Fixed && (method == http.MethodPost || method == http.MethodDelete):
		return exception(http.StatusMethodNotAllowed, "MethodNotAllowedException",
			"Requested method is not allowed, please refer to API document.")
	case method == http.MethodGet && name == "":
		return s.page(query)
	case method == http.MethodGet:
		return s.describe(name)
	case method == http.MethodPost && name == "":
		return s.register(query)
	case method == http.MethodPut && name != "":
		return s.scale(name)
	case method == http.MethodDelete && name != "":
		return s.unregister(name)
	}
	return exception(http.StatusMethodNotAllowed, "MethodNotAllowedException",
		"Requested method is not allowed, please refer to API document.")
}

// worker is the process that serves a model. TorchServe restarts it when it ends.
type worker struct {
	id, pid int
	ready   bool
	over    chan struct{} // closed when the model is unregistered
}

func (w *worker) describe() map[string]any {
	status := "UNLOADING" // TorchServe's status until the worker is ready
	if w.ready {
		status = "READY"
	}
	return map[string]any{"id": strconv.Itoa(w.id), "status": status, "pid": w.pid}
}

// register registers a model. If the request asks for workers, the load starts.
func (s *Server) register(query url.Values) reply {
	archive := query.Get("url")
	name := cmp.Or(query.Get("model_name"), strings.TrimSuffix(archive, ".mar"))
	if archive == "" {
		return exception(http.StatusBadRequest, "BadRequestException", "Parameter url is required.")
	}
	stored := strings.TrimSuffix(archive, ".mar")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m, there := s.stored[stored]; {
	case strings.Contains(archive, ".."):
		return exception(http.StatusNotFound, "ModelNotFoundException", "Relative path is not allowed in url: %s", archive)
	case !there:
		return exception(http.StatusNotFound, "ModelNotFoundException", "Model not found at: %s", archive)
	case s.registered[name] != nil:
		return exception(http.StatusConflict, "ConflictStatusException", "Model version 1.0 is already registered for model %s", name)
	default:
		r := &registration{model: m, archive: archive}
		s.registered[name] = r
		if query.Get("initial_workers") != "1" {
			return done(http.StatusOK,
				"Model %q Version: 1.0 registered with 0 initial workers. Use scale workers API to add workers for the model.", name)
		}
		s.startWorker(name, r)
	}
	return done(http.StatusAccepted, "Processing worker updates...")
}

// registration is a registered model.
type registration struct {
	model   Model
	archive string
	worker  *worker // nil if the model has no worker
}

func (s *Server) scale(name string) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.registered[name]
	if r == nil {
		return unregistered(name)
	}
	if r.worker == nil {
		s.startWorker(name, r)
	}
	return done(http.StatusAccepted, "Processing worker updates...")
}

// startWorker starts the worker of a model. The caller holds mu.
func (s *Server) startWorker(name string, r *registration) {
	s.pids++
	w := &worker{id: 9000 + s.pids, pid: -1, over: make(chan struct{})}
	r.worker = w
	go s.work(name, r.model, w)
}

// firstBackoff and maxBackoff limit the growing pause before TorchServe restarts a worker process.
const firstBackoff, maxBackoff = time.Second, 5 * time.Second

// startup is the time that a worker process takes to start.
const startup = 10 * time.Millisecond

// work loads a model repeatedly until a load succeeds, the model is unregistered, or the engine
// ends.
func (s *Server) work(name string, m Model, w *worker) {
	for backoff := firstBackoff; ; backoff = min(backoff+time.Second, maxBackoff) {
		ended := s.config.Events.Begin("load", "loaded", name)
		if !s.pass(startup, w.over) {
			ended("unregistered")
			return
		}
		s.set(func() { s.pids++; w.pid = 1000 + s.pids })
		if !s.pass(m.Load, w.over) {
			ended("unregistered")
			return
		}
		if m.Fail == "" && !m.Fileless {
			s.set(func() { w.ready = true })
			ended("")
			return
		}
		ended(cmp.Or(m.Fail, "no files")) // the worker keeps its status until the next process starts
		if !s.pass(backoff, w.over) {
			return
		}
	}
}

// pass waits for a duration. It returns false if over is closed or the engine ends before that.
func (s *Server) pass(d time.Duration, over <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-over:
	case <-s.over:
	}
	return false
}

// unregister removes a model immediately and ends its worker.
func (s *Server) unregister(name string) reply {
	ended := s.config.Events.Begin("unload", "unloaded", name)
	defer ended("")
	s.mu.Lock()
	r := s.registered[name]
	delete(s.registered, name)
	s.mu.Unlock()
	if r == nil {
		return unregistered(name)
	}
	if r.worker != nil {
		close(r.worker.over)
	}
	return done(http.StatusOK, "Model %q unregistered", name)
}

func (s *Server) describe(name string) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.registered[name]
	if r == nil {
		return unregistered(name)
	}
	workers := []any{}
	if r.worker != nil {
		workers = append(workers, r.worker.describe())
	}
	return reply{http.StatusOK, []any{map[string]any{
		"modelName": name, "modelVersion": "1.0", "modelUrl": r.archive, "minWorkers": len(workers), "maxWorkers": len(workers),
		"workers": workers,
	}}}
}

// page returns a page of the list of models, sorted by name.
func (s *Server) page(query url.Values) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, from := 100, 0
	if n, err := strconv.Atoi(query.Get("limit")); err == nil {
		limit = n
	}
	if n, err := strconv.Atoi(query.Get("next_page_token")); err == nil {
		from = n
	}
	names := slices.Sorted(maps.Keys(s.registered))
	models := []any{}
	for _, name := range names[min(from, len(names)):min(from+limit, len(names))] {
		models = append(models, map[string]string{"modelName": name, "modelUrl": s.registered[name].archive})
	}
	body := map[string]any{"models": models}
	if from+limit < len(names) {
		body["nextPageToken"] = strconv.Itoa(from + limit)
	}
	return reply{http.StatusOK, body}
}

// predict returns a fixed answer. If the model is loading, it waits until the load ends.
func (s *Server) predict(name string) reply {
	for {
		s.mu.Lock()
		r := s.registered[name]
		served := r != nil && r.worker != nil
		ready := served && r.worker.ready
		s.mu.Unlock()
		switch {
		case r == nil:
			return unregistered(name)
		case !served:
			return exception(http.StatusServiceUnavailable, "ServiceUnavailableException",
				"Model %q has no worker to serve inference request. Please use scale workers API to add workers.", name)
		case ready:
			return reply{http.StatusOK, "ok"}
		case !s.pass(startup, r.worker.over):
			return unregistered(name)
		}
	}
}
