package endpointstate

import "github.com/headgate/headgate/internal/objects"

// LongestContext returns the greatest context length, in tokens, that an endpoint of a pool
// reports; 0 if no endpoint reports one.
func LongestContext(s *State, pool objects.Name) (most int) {
	if p := s.world.Pools[pool]; p != nil {
		for _, declared := range p.Endpoints {
			most = max(most, s.endpoints[declared.Address].lists.MaxLength)
		}
	}
	return most
}
