package manage

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
)

// checkTimeout limits how long a health check waits for the engine.
const checkTimeout = 700 * time.Millisecond

// life is an incarnation of the engine: one run of its process. The Server's mu guards the fields
// after id.
type life struct {
	id    string
	seen  bool     // the engine has answered in this process of the agent
	old   bool     // an earlier process of the agent stored it, and the engine has not answered since
	marks []string // see [Sight.Marks]; as of the last call of look

	// status is the answer READY to runtimeStatus. While it is nil, the engine may have models from
	// before the purge, and the Server starts no loads.
	status *mmesh.RuntimeStatusResponse
	models map[string]*model
	loads  context.Context // ends with the incarnation, and at a purge
	end    context.CancelCauseFunc
	work   *sync.WaitGroup // running loads
}

// model is a model that the engine has, or may have.
type model struct {
	request Request // the zero Request if an earlier process of the agent loaded it
	local   Local
	loaded  bool // the load has succeeded
}

func newLife() *life {
	l := &life{id: loader.LifePrefix + rand.Text(), models: make(map[string]*model)}
	l.renew()
	return l
}

// renew makes a context for new loads.
func (l *life) renew() {
	l.loads, l.end = context.WithCancelCause(context.Background())
	l.work = new(sync.WaitGroup)
}

// lives is the part of the Server that stores the current incarnation.
type lives struct {
	mu   sync.Mutex // guards life, and the fields of every life
	life *life
}

func (l *lives) current() *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life
}

// look checks the engine, and returns its incarnation: a new one if the engine has restarted. It
// fails if the engine does not answer.
func (s *Server) look(ctx context.Context) (*life, error) {
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	sight, err := s.config.Engine.Look(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.life
	switch {
	case errors.Is(err, ErrEnded):
		if l.seen || l.old {
			s.begin("the engine ended")
		}
		return nil, err
	case err != nil:
		return nil, err
	case l.seen && sight.Restarted, !l.continues(sight):
		s.begin("the engine restarted")
	}
	l = s.life
	changed := !l.seen || len(sight.Marks) > 0 && !slices.Equal(l.marks, sight.Marks)
	l.seen, l.old = true, false
	if len(sight.Marks) > 0 {
		l.marks = sight.Marks
	}
	if changed {
		if err := s.save(l); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// continues reports whether the engine is still in the incarnation l.
func (l *life) continues(now Sight) bool {
	known := len(l.marks) > 0 && len(now.Marks) > 0
	switch {
	case !l.seen && !l.old, l.status == nil && len(l.models) == 0:
		return true // an incarnation that begins now, or that was not made ready
	case known:
		return slices.ContainsFunc(now.Marks, func(m string) bool { return slices.Contains(l.marks, m) })
	case l.seen:
		return true // only a restart that the engine shows counts
	}
	// The list of an engine that has restarted has none of the models.
	return now.Lists && (len(l.models) == 0 || slices.ContainsFunc(now.Models, func(id string) bool { return l.models[id] != nil }))
}

// begin begins a new incarnation. The caller holds mu.
func (s *Server) begin(why string) {
	before := s.life
	before.end(errRestarted)
	s.config.Engine.Quit()
	s.life = newLife()
	s.config.Log.Warn("the engine lost its models: a new incarnation begins", "why", why, "models", len(before.models), "incarnation", s.life.id)
	if err := s.save(s.life); err != nil { // look saves again, and fails if that fails
		s.config.Log.Error("cannot store the state", "err", err)
	}
}
