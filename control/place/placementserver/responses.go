package placementserver

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/headgate/headgate/api/placement"
)

// Limits of the stored responses that are kept, as in extproc: their number, and the length of
// their ids.
const (
	maxResponses  = 65536
	maxResponseID = 256
)

// responses contains the endpoint of each stored response, by response id. The Server's mu guards
// it.
type responses = simplelru.LRU[string, responseEndpoint]

// responseEndpoint is an endpoint and its pool, as extprocs report them.
type responseEndpoint struct{ pool, endpoint string }

func newResponses() *responses {
	r, err := simplelru.NewLRU[string, responseEndpoint](maxResponses, nil)
	if err != nil {
		panic(err) // happens only for a size of 0 or less
	}
	return r
}

// recordResponses records the stored responses that an extproc reports, and marks them to be sent
// to all others. The caller holds mu.
func (s *Server) recordResponses(p *peer, told []*placement.Responses) {
	for _, r := range told {
		m := responseEndpoint{r.GetPool(), r.GetEndpoint()}
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

// responsesFor returns the stored responses to send to an extproc. The caller holds mu.
func (s *Server) responsesFor(p *peer) (out []*placement.Responses) {
	by := make(map[responseEndpoint]*placement.Responses)
	room := maxSent
	for _, id := range take(p.responses, &room) {
		m, known := s.responses.Peek(id)
		if !known {
			continue // newer responses evicted it meanwhile
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
