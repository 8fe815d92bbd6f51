package board

import (
	"time"

	"github.com/headgate/headgate/control/place/decide"
)

// announceLimit bounds how long a registration waits for extprocs: one that is that slow learns of the model later, and the next registrations
// do not wait for it.
const announceLimit = time.Second

// AwaitRegistered returns when each connected extproc has said that it knows whether a model is registered, so that the client that
// registered it may ask for it at once, or when they have had a second. It does not wait for one that was too slow before and has
// said nothing since.
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

// unaware are the extprocs that have not said that they know whether a model is registered, but for those that are late. The caller holds mu.
func (s *Server) unaware(key decide.Key) (all []*peer) {
	for p := range s.peers {
		if !p.late && (p.registered[key] || p.announced[key] > 0) {
			all = append(all, p)
		}
	}
	return all
}

// passOver has no registration wait for the extprocs that do not know of a model in time, until they answer.
func (s *Server) passOver(key decide.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.unaware(key) {
		p.late = true
	}
}

// acknowledged wakes those who wait in AwaitRegistered. The caller holds mu.
func (s *Server) acknowledged() {
	close(s.known)
	s.known = make(chan struct{})
}
