package fleet

import (
	"errors"
	"math"

	"github.com/headgate/headgate/extproc/flow/late"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
)

// Shed is [Fair] with late: Shed. It refuses a request on arrival that is predicted to wait longer
// than a number of seconds, as extproc does, and tells its client when to return.
func Shed(gate pick.Gate, longest float64) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		if f.Pickers != 1 {
			return nil, errors.New("shed works with one picker")
		}
		p, err := Fair(gate)(f, seed)
		if err != nil {
			return nil, err
		}
		g := p.(*gated)
		return &shedding{
			gated: g, fair: g.order.(*fairOrder), late: late.New(), longest: longest, waits: make(map[*Request]late.Arrival),
			identities: make(map[*Request]uint64),
		}, nil
	}
}

// shedding is a picker that refuses requests that would be late.
type shedding struct {
	*gated
	fair       *fairOrder
	late       *late.Predictor
	longest    float64 // seconds
	waits      map[*Request]late.Arrival
	identities map[*Request]uint64 // of requests that were refused
}

// Hold implements [Holder]. As in extproc, a request that finds an empty queue is never late.
func (s *shedding) Hold(now float64, r *Request) []Refusal {
	is := late.Arrival{Group: late.Group{Path: pathOf(r)}, Service: s.service(r), Longest: seconds(s.longest)}
	if s.fair.len() > 0 {
		_, is.Part = s.fair.queue.Ahead(queue.Request{Path: is.Path})
		is.Ahead, is.Identity = s.late.Queued(is.Group), s.identity(r)
		if retry, tooLate := s.late.Check(is, at(now), s.random.Float64()); tooLate {
			return []Refusal{{r, math.Ceil(retry.Seconds())}}
		}
	}
	delete(s.identities, r)
	s.waits[r] = is
	s.late.Joined(is.Group, is.Service, at(now))
	return s.gated.Hold(now, r)
}

// service returns the expected service of a request in tokens.
func (s *shedding) service(r *Request) float64 {
	return float64(len(r.Prompt)) + perOutputToken*s.requestStats(r).Output()
}

// identity returns the hash by which a request is recognized when it returns.
func (s *shedding) identity(r *Request) uint64 {
	if s.identities[r] == 0 {
		s.turn++
		s.identities[r] = hash.Mix(s.turn)
	}
	return s.identities[r]
}

// Next implements [Holder].
func (s *shedding) Next(now float64) (r *Request, endpoint int) {
	r, endpoint = s.gated.Next(now)
	if r != nil {
		s.late.Left(s.waits[r].Group, s.waits[r].Service, true, at(now))
		delete(s.waits, r)
	}
	return r, endpoint
}
