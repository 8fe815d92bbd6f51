package placementserver

import (
	"maps"
	"slices"

	"github.com/headgate/headgate/api/placement"
)

// portion is which of how many processes an extproc is that share the limits of copies.
type portion struct{ index, processes int }

// maxSharing bounds among how many processes an extproc may say that limits are shared.
const maxSharing = 1 << 16

// apportion gives each extproc its part in the limits of copies, and has those told of whom it
// changed. Who has been cut off still sends requests for a while, and keeps its part. Until those
// that an earlier process served had time to come back, there are as many as it shared limits
// among, as those know who are back: so none gets what others use. When one joins, those that were
// there have more than their part until they have been told, and until so many of their requests
// have ended. The caller holds mu.
func (s *Server) apportion() {
	names := make(map[string]bool, len(s.peers)+len(s.absent))
	for p := range s.peers {
		names[p.process] = true
	}
	for name := range s.absent {
		names[name] = true
	}
	if delete(names, startName); s.absent[startName] == nil {
		s.sharing = 0
	}
	ordered := slices.Sorted(maps.Keys(names))
	for p := range s.peers {
		index, _ := slices.BinarySearch(ordered, p.process)
		if is := (portion{index, max(len(ordered), s.sharing)}); p.portion != is {
			p.portion, p.apportioned = is, true
			p.wake()
		}
	}
}

func (p portion) wire() *placement.Share {
	return &placement.Share{Index: uint32(p.index), Processes: uint32(p.processes)} //nolint:gosec // both are small
}
