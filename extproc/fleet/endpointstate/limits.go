package endpointstate

import (
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
)

// Share is the position of this process among the processes that share the limits of copies. All
// processes get the same order. With the zero Share, no other process shares the limits.
type Share struct{ Index, Processes int }

// Of returns this process's part of a limit: an equal part, or one more than that. Turn differs
// between copies, so that different processes get one more. The parts add up to the limit, except
// that each is at least 1, so that no process waits forever.
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

// limit sets the limit of a copy for this process, and reports whether the copy has one.
func (s *State) limit(address, model string, count *pick.Count) bool {
	most := 0
	if said := s.control.copies[address][model]; said != nil && said.limit > 0 {
		most = s.control.share.Of(said.limit, hash.Of(address+"/"+model))
	}
	count.Limit.Store(int64(most))
	return most > 0
}

// Sharing returns the number of processes that share limits; 0 until control has reported it.
func (s *State) Sharing() int { return s.control.share.Processes }
