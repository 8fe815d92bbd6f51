package placementserver

import (
	"slices"
	"time"

	"github.com/headgate/headgate/control/place/decide"
)

// absence is how long control waits for an extproc whose stream broke. Until it has reconnected,
// the extproc may still send requests by the last state that it received. It tries to reconnect at
// least every 2 s.
const absence = 3 * time.Second

// drain is the state of a copy's drain: the extprocs that may still send requests to the copy, or
// have some in flight there.
type drain struct {
	peers  map[*peer]uint64 // version of the Update that reported the drain to each extproc; 0: not sent yet
	absent map[string]bool
}

// startName stands for the extprocs that an earlier control process served, until they have had
// time to reconnect. They cannot know a copy that this process has loaded, so the drain of that
// copy does not wait for them.
const startName = "\x00start"

// drain begins the drain of a copy, which waits for all extprocs. The caller holds mu.
func (s *Server) drain(key decide.CopyKey) {
	if s.drains[key] != nil {
		return
	}
	d := &drain{peers: make(map[*peer]uint64), absent: make(map[string]bool)}
	for p := range s.peers {
		d.peers[p], p.copies[key] = 0, true // mark the copy to be sent, so that p learns of the drain
	}
	for name := range s.absent {
		if name != startName || s.inherited[key] {
			d.absent[name] = true
		}
	}
	s.drains[key] = d
	if d.over() { // no extproc is connected; report that later, since Publish must not call the placer
		time.AfterFunc(0, func() { s.placer.Drained(key) })
	}
}

func (d *drain) over() bool { return len(d.peers)+len(d.absent) == 0 }

// leave gives a disconnected process time to reconnect, and then removes it from all drains. The
// caller holds mu.
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

// release calls who to remove an extproc from every drain, and returns the copies whose drains have
// ended. The caller holds mu.
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

// settled removes an extproc from the drains that it has acknowledged and in which it has no
// request in flight. It returns the drains that have ended. The caller holds mu.
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
