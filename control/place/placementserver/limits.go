package placementserver

import (
	"maps"
	"slices"

	"github.com/headgate/headgate/api/placement"
)

// portion is an extproc's index among the processes that share the concurrency limits of copies.
type portion struct{ index, processes int }

// maxSharing limits the number of sharing processes that an extproc may report.
const maxSharing = 1 << 16

// apportion divides the concurrency limits of copies among the extprocs, and marks those whose
// portion changed. A disconnected extproc may still send requests for a while, and keeps its
// portion. Until the extprocs of an earlier process have had time to reconnect, the number of
// portions is the earlier one, as reconnected extprocs report it, so that no two use the same part.
// When an extproc joins, the others exceed their new portion until they have received it and enough
// of their requests have ended. The caller holds mu.
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
