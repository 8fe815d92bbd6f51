package placementserver

import (
	"time"

	"github.com/headgate/headgate/control/place/decide"
)

// announceLimit limits how long a registration waits for extprocs. A slower extproc receives the
// model later, and the next registrations do not wait for that extproc.
const announceLimit = time.Second

// AwaitRegistered waits until every connected extproc has acknowledged whether a model is
// registered, so that the client can request the model at once. It waits at most announceLimit, and
// not for extprocs that were too slow before and have acknowledged nothing since.
func (s *Server) AwaitRegistered(key decide.Key) {
	limit := time.NewTimer(announceLimit)
	defer limit.Stop()
	for {
		s.mu.Lock()
		behind, known := s.unaware(key), s.known
		s.mu.Unlock()
		if len(behind) == 0 {
			return
		}
		select {
		case <-known:
		case <-limit.C:
			s.passOver(key)
			return
		case <-s.closed:
			return
		}
	}
}

// unaware returns the extprocs, except late ones, that have not acknowledged whether a model is
// registered. The caller holds mu.
func (s *Server) unaware(key decide.Key) (all []*peer) {
	for p := range s.peers {
		if !p.late && (p.registered[key] || p.announced[key] > 0) {
			all = append(all, p)
		}
	}
	return all
}

// passOver marks as late the extprocs that have not acknowledged a model in time: no registration
// waits for them until they answer.
func (s *Server) passOver(key decide.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.unaware(key) {
		p.late = true
	}
}

// acknowledged wakes the callers of AwaitRegistered. The caller holds mu.
func (s *Server) acknowledged() {
	close(s.known)
	s.known = make(chan struct{})
}
