package placementserver

import (
	"time"

	"github.com/headgate/headgate/control/place/decide"
)

// announceLimit bounds how long a registration waits for extprocs. A slower extproc receives the
// model later, and the next registrations do not wait for it.
const announceLimit = time.Second

// AwaitRegistered returns when every connected extproc has acknowledged whether a model is
// registered, so that the client may request it at once, or after announceLimit. It skips extprocs
// that were too slow before and have acknowledged nothing since.
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

// passOver marks extprocs that have not acknowledged a model in time as late: no registration waits
// for them until they answer.
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
