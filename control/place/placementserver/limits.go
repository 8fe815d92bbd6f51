package placementserver

import (
	"maps"
	"slices"

	"github.com/headgate/headgate/api/placement"
)

// portion is an extproc's part of the concurrency limits of copies: the extproc's index among the
// processes that share the limits, and the number of these processes.
type portion struct{ index, processes int }

// maxSharing is the largest number of sharing processes that control accepts from an extproc.
const maxSharing = 1 << 16

// apportion divides the concurrency limits of copies among the extproc processes, and marks the
// extprocs whose portion changed. A disconnected extproc keeps its portion for a while, since it
// may still send requests. When control has started, it keeps the number of portions that
// reconnected extprocs report from before the start, until all extprocs have had time to reconnect;
// so no two use the same portion. When an extproc joins, the others exceed their new portion until
// they have received it and enough of their requests have ended. The caller holds mu.
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
	return &placement.Share{Index: uint32(p.index), Processes: uint32(p.processes), Limits: true} //nolint:gosec // both are small
}
