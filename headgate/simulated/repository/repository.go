// Package repository is a simulated engine with a model repository: MLServer 1.7.1 or Triton 2.51.0
// (KServe's model repository extension), TorchServe 0.12.0, or TensorFlow Serving. It simulates
// loads, unloads and requests, and computes nothing. The repository defines how long each model
// takes to load and unload, and whether its load fails.
//
// One table of tests checks the simulated and the real servers (control/place/loader). TensorFlow
// Serving was not recorded; its simulation follows the source. The simulated servers share the
// weaknesses of the real ones: a Triton that gets two calls for a model loads it twice, and a load
// continues after its caller has disconnected.
package repository

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/engine"
)

// Model is a model in a repository.
type Model struct {
	Load, Unload time.Duration // TorchServe answers before an unload ends
	Fail         string        // error message with which a load fails at its end; empty for success
	// Fileless means that the model has a directory but no files in it.
	Fileless bool
}

// Config configures an engine.
type Config struct {
	Kind   engine.Kind      // an engine kind with a model repository
	Models map[string]Model // models in the repository by name
	// Fixed forbids loads and unloads: a Triton without explicit model control, or a TorchServe
	// without its model API.
	Fixed  bool
	Events *llm.Events // event log; nil for none
}

// Server is a simulated engine. Create it with New. Its methods are safe for concurrent use.
type Server struct {
	config Config
	loader turn              // MLServer loads one model at a time; TensorFlow Serving handles one list at a time
	over   chan struct{}     // closed when the server ends
	list   map[string]string // TensorFlow Serving: base path of each listed model, by name; guarded by loader

	mu         sync.Mutex // guards the fields below, and the fields of slots and registrations
	stored     map[string]Model
	slots      map[string]*slot         // by model; missing for a model that was never loaded
	registered map[string]*registration // TorchServe: its registered models by name
	pids       int                      // TorchServe: number of processes and workers that were started
	asked      map[string]int           // number of requests by method and path
}

// slot is the state of one model in the engine.
type slot struct {
	turn    turn // locked during a load or unload of the model
	stage   engine.Stage
	reason  string
	present bool          // MLServer: the model is in the registry, even if its load failed
	going   bool          // MLServer: the model is being unloaded
	lost    bool          // MLServer: the caller of a load over gRPC has gone, which ends the load
	unload  time.Duration // TensorFlow Serving: duration of the unload
}

// turn is a mutex, implemented as a channel of capacity 1.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take locks the turn and returns a function that unlocks it.
func (t turn) take() (end func()) {
	t <- struct{}{}
	return func() { <-t }
}

// New returns a running engine. If Config.Fixed is set, it has loaded every model.
func New(c Config) *Server {
	s := &Server{
		config: c, loader: newTurn(), over: make(chan struct{}), list: make(map[string]string),
		stored: make(map[string]Model), slots: make(map[string]*slot), registered: make(map[string]*registration),
		asked: make(map[string]int),
	}
	for name, m := range c.Models {
		s.stored[name] = m
		if c.Fixed {
			s.slots[name] = &slot{turn: newTurn(), stage: engine.Serving, present: true}
		}
	}
	return s
}

// Put adds a model to the repository, or replaces it: the next load uses the new one.
func (s *Server) Put(name string, m Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored[name] = m
}

// Asked returns how many requests the engine got for a method and path, such as "POST
// /v2/repository/index".
func (s *Server) Asked(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[call]
}

// Models returns the names of the models that serve requests, sorted.
func (s *Server) Models() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, at := range s.slots {
		if at.stage == engine.Serving {
			names = append(names, name)
		}
	}
	for name, r := range s.registered {
		if r.worker != nil && r.worker.ready {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// slot returns the slot of a model and the model. The slot is nil if the repository does not have
// the model.
func (s *Server) slot(name string) (*slot, Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, there := s.stored[name]
	if !there {
		return nil, m
	}
	if s.slots[name] == nil {
		s.slots[name] = &slot{turn: newTurn()}
	}
	return s.slots[name], m
}

// set calls change, which may change slots, with mu locked.
func (s *Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// reply is an HTTP answer.
type reply struct {
	status int
	body   any // a string is sent as text, other values as JSON; nil for an empty body
}

func failure(status int, format string, args ...any) reply {
	return reply{status, map[string]string{"error": fmt.Sprintf(format, args...)}}
}

// load loads a model. The load continues if the caller disconnects.
func (s *Server) load(name string) (r reply) {
	ended := s.config.Events.Begin("load", "loaded", name)
	defer func() {
		if r.status == http.StatusOK {
			ended("")
		} else {
			ended(fmt.Sprint(r.body))
		}
	}()
	at, m := s.slot(name)
	triton := s.config.Kind == engine.Triton
	switch {
	case at == nil && triton:
		return failure(http.StatusInternalServerError, "failed to load '%s', failed to poll from model repository", name)
	case at == nil:
		return failure(http.StatusNotFound, "Model %s not found", name)
	}
	defer at.turn.take()()
	if !triton {
		defer s.loader.take()()
	}
	s.set(func() {
		if at.present = true; at.stage != engine.Serving {
			at.stage, at.reason = engine.Coming, ""
		}
	})
	time.Sleep(m.Load)
	fails := m.Fail != "" || m.Fileless
	s.set(func() {
		switch {
		case at.lost:
			at.lost = false // the model remains without being ready
		case !fails:
			at.stage = engine.Serving
		case at.stage == engine.Coming:
			at.stage = engine.Stored
			if triton {
				at.reason = "Internal: " + m.Fail
			}
		}
	})
	switch {
	case !fails:
		return reply{http.StatusOK, nil}
	case triton:
		return failure(http.StatusBadRequest, "load failed for model '%s': version 1 is at UNAVAILABLE state: Internal: %s;\n",
			name, m.Fail)
	case m.Fileless:
		return failure(http.StatusUnprocessableEntity,
			"mlserver.errors.InvalidModelURI: Invalid URI specified for model %s (/models/%s/model.joblib)", name, name)
	}
	return failure(http.StatusInternalServerError, "builtins.ValueError: %s", m.Fail)
}

// unload unloads a model. The unload continues if the caller disconnects. MLServer answers when the
// unload has ended, Triton before that.
func (s *Server) unload(name string) (r reply) {
	ended := s.config.Events.Begin("unload", "unloaded", name)
	triton := s.config.Kind == engine.Triton
	done := func(r reply) reply { ended(""); return r }
	at, m := s.slot(name)
	if at == nil && triton {
		return done(reply{http.StatusOK, nil})
	}
	absent := failure(http.StatusNotFound, "Model %s not found", name)
	if at == nil {
		return done(absent)
	}
	if !triton {
		var going bool
		s.set(func() { going = at.going })
		defer at.turn.take()()
		if going {
			ended("KeyError")
			return reply{http.StatusInternalServerError, "Traceback (most recent call last):\nKeyError: '" + name + "'\n"}
		}
		var present bool
		s.set(func() { present, at.going = at.present, at.present })
		if !present {
			return done(absent)
		}
		time.Sleep(m.Unload)
		s.set(func() { at.stage, at.present, at.going = engine.Stored, false, false })
		return done(reply{http.StatusOK, nil})
	}
	defer at.turn.take()()
	var serves bool
	s.set(func() {
		if serves = at.stage == engine.Serving; serves {
			at.stage = engine.Leaving
		}
	})
	if !serves {
		return done(reply{http.StatusOK, nil})
	}
	time.AfterFunc(m.Unload, func() {
		s.set(func() {
			if at.stage == engine.Leaving {
				at.stage, at.reason = engine.Stored, "unloaded"
			}
		})
		ended("")
	})
	return reply{http.StatusOK, nil}
}

// entry is a model in the answer to an index request.
type entry struct {
	Name    string  `json:"name"`
	Version string  `json:"version,omitempty"`
	State   string  `json:"state,omitempty"`
	Reason  *string `json:"reason,omitempty"`
}

// states has the names that each kind of engine uses for the stages of a model.
var states = map[engine.Kind][4]string{
	engine.Triton:   {engine.Stored: "UNAVAILABLE", engine.Leaving: "UNLOADING", engine.Coming: "LOADING", engine.Serving: "READY"},
	engine.MLServer: {engine.Stored: "UNAVAILABLE", engine.Leaving: "READY", engine.Coming: "UNKNOWN", engine.Serving: "READY"},
}

func (s *Server) index() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []entry{}
	for name := range s.stored {
		e, at := entry{Name: name}, s.slots[name]
		switch {
		case s.config.Kind == engine.MLServer:
			e.Reason, e.State = new(string), states[engine.MLServer][engine.Stored]
			if at != nil {
				e.State = states[engine.MLServer][at.stage]
			}
		case at != nil && (at.stage != engine.Stored || at.reason != ""):
			e.Version, e.State = "1", states[engine.Triton][at.stage]
			if at.reason != "" && at.stage == engine.Stored {
				e.Reason = &at.reason
			}
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// stage returns the stage of a model, and whether the engine knows the model.
func (s *Server) stage(name string) (stage engine.Stage, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.slots[name]; at != nil {
		return at.stage, true
	}
	return engine.Stored, false
}
