// Package repository is a simulated engine with a model repository: MLServer 1.7.1 or Triton 2.51.0
// (KServe's model repository extension), TorchServe 0.12.0, or TensorFlow Serving. It simulates
// loads, unloads and requests, and computes nothing. The repository says how long each model takes
// and whether it fails.
//
// Its behaviour is checked against real servers with one table of tests (control/place/loader),
// except for TensorFlow Serving, which follows the source. It shares their weaknesses: a Triton
// that is asked twice loads twice, and a load continues after its caller has left.
package repository

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/bench/simulated/llm"
	"github.com/headgate/headgate/internal/engine"
)

// Model is a model in a repository.
type Model struct {
	Load, Unload time.Duration // durations; TorchServe does not wait for unloads
	Fail         string        // error message of a load that fails at its end; empty for success
	// Fileless means that the directory exists without its files.
	Fileless bool
}

// Config configures an engine.
type Config struct {
	Kind   engine.Kind      // a kind with a repository
	Models map[string]Model // the repository
	// Fixed forbids loads and unloads: a Triton without explicit model control, or a TorchServe
	// without its model API.
	Fixed  bool
	Events *llm.Events // may be nil
}

// Server is a simulated engine. Create it with New. Its methods are safe for concurrent use.
type Server struct {
	config Config
	loader turn              // MLServer loads one model at a time; TensorFlow Serving handles one list at a time
	over   chan struct{}     // closed when it ends
	list   map[string]string // TensorFlow Serving: base paths of its list; guarded by loader

	mu         sync.Mutex // guards the fields below, and the fields of slots and registrations
	stored     map[string]Model
	slots      map[string]*slot         // of models that were loaded once
	registered map[string]*registration // TorchServe
	pids       int                      // TorchServe: processes and workers so far
	asked      map[string]int           // requests by method and path
}

// slot is the state of a model in the engine.
type slot struct {
	turn    turn // one load or unload at a time
	stage   engine.Stage
	reason  string
	present bool          // MLServer: in its registry, which includes failed loads
	going   bool          // MLServer: being unloaded
	unload  time.Duration // TensorFlow Serving: duration of the unload
}

// turn is a mutex as a channel of capacity 1.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take locks the turn and returns the function to unlock it.
func (t turn) take() (end func()) {
	t <- struct{}{}
	return func() { <-t }
}

// New returns an engine that starts now. With Fixed every model is loaded.
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

// Put adds a model to the repository or changes it from its next load on.
func (s *Server) Put(name string, m Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored[name] = m
}

// Asked returns how often a path was requested, such as "POST /v2/repository/index".
func (s *Server) Asked(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[call]
}

// Models returns the serving models in order.
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

// slot returns the slot of a model, and the model; nil if the repository does not have it.
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

// set changes a slot.
func (s *Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// reply is an answer.
type reply struct {
	status int
	body   any // JSON, or text if it is a string; nil for none
}

func failure(status int, format string, args ...any) reply {
	return reply{status, map[string]string{"error": fmt.Sprintf(format, args...)}}
}

// load loads a model, even if the caller leaves.
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

// unload unloads a model, even if the caller leaves. MLServer has finished when it answers, Triton
// some time later.
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

// entry is a model of an index.
type entry struct {
	Name    string  `json:"name"`
	Version string  `json:"version,omitempty"`
	State   string  `json:"state,omitempty"`
	Reason  *string `json:"reason,omitempty"`
}

// states has the words of each kind for stages.
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
