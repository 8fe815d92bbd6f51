package board

import (
	"time"

	"github.com/headgate/headgate/control/place/decide"
)

// announceLimit bounds how long a registration waits for extprocs: one that is that slow learns of the model later.
const announceLimit = time.Second

// AwaitRegistered returns when each connected extproc has said that it knows whether a model is registered, so that the client that
// registered it may ask for it at once, or when they have had a second.
func (s *Server) AwaitRegistered(key decide.Key) {
	limit := time.NewTimer(announceLimit)
	defer limit.Stop()
	for {
		s.mu.Lock()
		behind, known := s.unaware(key), s.known
		s.mu.Unlock()
		if !behind {
			return
		}
		select {
		case <-known:
		case <-limit.C:
			return
		case <-s.closed:
			return
		}
	}
}

// unaware says whether an extproc has not said that it knows whether a model is registered. The caller holds mu.
func (s *Server) unaware(key decide.Key) bool {
	for p := range s.peers {
		if p.registered[key] || p.announced[key] > 0 {
			return true
		}
	}
	return false
}

// acknowledged wakes those who wait in AwaitRegistered. The caller holds mu.
func (s *Server) acknowledged() {
	close(s.known)
	s.known = make(chan struct{})
}
