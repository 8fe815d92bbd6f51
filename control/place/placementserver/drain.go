package placementserver

import (
	"slices"
	"time"

	"github.com/headgate/headgate/control/place/decide"
)

// absence is how long an extproc whose stream broke may still send requests to what it knew, before
// it has come back or is taken to be gone: it tries again at least every 2 s.
const absence = 3 * time.Second

// drain is a copy that is to go. Waits are those who may still send requests to it, or have some
// there.
type drain struct {
	peers  map[*peer]uint64 // the version of the Update that told them; 0: not told yet
	absent map[string]bool
}

// startName stands for the extprocs of an earlier process until they have had time to reconnect.
// They cannot know a copy that this process has loaded, so its drain does not wait for them.
const startName = "\x00start"

// drain begins to wait for everybody. The caller holds mu.
func (s *Server) drain(key decide.CopyKey) {
	if s.drains[key] != nil {
		return
	}
	d := &drain{peers: make(map[*peer]uint64), absent: make(map[string]bool)}
	for p := range s.peers {
		d.peers[p], p.copies[key] = 0, true // it is told, though it may have been told of an earlier copy
	}
	for name := range s.absent {
		if name != startName || s.inherited[key] {
			d.absent[name] = true
		}
	}
	s.drains[key] = d
	if d.over() { // nobody is there: not within Publish, which may not call back
		time.AfterFunc(0, func() { s.placer.Drained(key) })
	}
}

func (d *drain) over() bool { return len(d.peers)+len(d.absent) == 0 }

// leave waits a while for a process that may come back. The caller holds mu.
func (s *Server) leave(name string) {
	if old := s.absent[name]; old != nil {
		old.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(absence, func() {
		s.mu.Lock()
		if s.absent[name] != timer {
			s.mu.Unlock()
			return
		}
		delete(s.absent, name)
		if name == startName {
			clear(s.inherited)
		}
		s.apportion()
		over := s.release(func(d *drain) { delete(d.absent, name) })
		s.mu.Unlock()
		s.tell(over)
	})
	s.absent[name] = timer
}

// release takes somebody away from every drain, and returns those that are over. The caller holds
// mu.
func (s *Server) release(who func(*drain)) (over []decide.CopyKey) {
	for key, d := range s.drains {
		was := d.over()
		if who(d); d.over() && !was {
			over = append(over, key)
		}
	}
	slices.SortFunc(over, decide.CopyKey.Compare)
	return over
}

func (s *Server) tell(drained []decide.CopyKey) {
	for _, key := range drained {
		s.placer.Drained(key)
	}
}

// settled takes an extproc away from the drains that it has nothing more to do with: it has said
// that it knows, and that none of its requests is there. It returns those that are over. The caller
// holds mu.
func (s *Server) settled(p *peer) (over []decide.CopyKey) {
	for key, d := range s.drains {
		told, waits := d.peers[p]
		if waits && told > 0 && p.applied >= told && p.inFlight[key] == 0 {
			if delete(d.peers, p); d.over() {
				over = append(over, key)
			}
		}
	}
	slices.SortFunc(over, decide.CopyKey.Compare)
	return over
}
