package endpointstate

import "github.com/headgate/headgate/extproc/pick"

// Share is which of how many processes share the limits of copies, in an order that all of them are told alike. The zero Share is that of one
// that shares them with nobody.
type Share struct{ Index, Processes int }

// Of is how many requests this process may have at a copy that takes so many at once: as many as any other, or one more. Those who get one more
// are others at each copy, by what Turn is. All shares together are the limit, unless that is less than one for each: then each has one, so
// that no process waits forever.
func (s Share) Of(limit int, turn uint64) int {
	if s.Processes <= 1 {
		return limit
	}
	share, rest := limit/s.Processes, limit%s.Processes
	if place := (uint64(s.Index) + turn) % uint64(s.Processes); place < uint64(rest) { //nolint:gosec // none is below 0
		share++
	}
	return max(1, share)
}

// limit puts the limit of a copy in force, and says whether it has one.
func (s *State) limit(address, model string, count *pick.Count) bool {
	most := 0
	if said := s.control.copies[address][model]; said != nil && said.limit > 0 {
		most = s.control.share.Of(said.limit, hash(address+"/"+model))
	}
	count.Limit.Store(int64(most))
	return most > 0
}

// Sharing is among how many processes limits are shared, as far as control said; 0 if it never did.
func (s *State) Sharing() int { return s.control.share.Processes }
