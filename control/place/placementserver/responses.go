package placementserver

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/headgate/headgate/api/placement"
)

// What is remembered of stored responses, as extproc does: who made so many, whose ids are no
// longer than that.
const (
	maxResponses  = 65536
	maxResponseID = 256
)

// responses are who made stored responses, by their ids. The Server's mu guards them.
type responses = simplelru.LRU[string, maker]

// maker is an endpoint and its pool, as extprocs tell them.
type maker struct{ pool, endpoint string }

func newResponses() *responses {
	r, err := simplelru.NewLRU[string, maker](maxResponses, nil)
	if err != nil {
		panic(err) // the size is above 0
	}
	return r
}

// made takes what an extproc tells of stored responses, and has all others told. The caller holds
// mu.
func (s *Server) made(p *peer, told []*placement.Responses) {
	for _, r := range told {
		m := maker{r.GetPool(), r.GetEndpoint()}
		if len(m.pool) > maxName || len(m.endpoint) > maxName {
			continue
		}
		for _, id := range r.GetIds() {
			if len(id) > maxResponseID {
				continue
			}
			delete(p.responses, id)
			if was, known := s.responses.Get(id); known && was == m {
				continue
			}
			s.responses.Add(id, m)
			for o := range s.peers {
				if o != p && len(o.responses) < maxResponses {
					o.responses[id] = true
				}
			}
		}
	}
	if len(told) > 0 {
		for o := range s.peers {
			if len(o.responses) > 0 {
				o.wake()
			}
		}
	}
}

// makers is what an extproc is to be told of stored responses. The caller holds mu.
func (s *Server) makers(p *peer) (out []*placement.Responses) {
	by := make(map[maker]*placement.Responses)
	room := maxSent
	for _, id := range take(p.responses, &room) {
		m, known := s.responses.Peek(id)
		if !known {
			continue // others have come since
		}
		r := by[m]
		if r == nil {
			r = &placement.Responses{Pool: m.pool, Endpoint: m.endpoint}
			by[m], out = r, append(out, r)
		}
		r.Ids = append(r.Ids, id)
	}
	return out
}
