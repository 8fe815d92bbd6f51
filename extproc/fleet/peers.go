package fleet

import (
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
)

// Moves is a channel that receives a value when a request has begun or ended since the last call of
// [Fleet.Backlogs]. It is used only with Config.Placed.
func (f *Fleet) Moves() <-chan struct{} { return f.moves }

// move records that a request began or ended.
func (f *Fleet) move() {
	if !f.Placed || f.moved.Load() || !f.moved.CompareAndSwap(false, true) {
		return
	}
	select {
	case f.moves <- struct{}{}:
	default:
	}
}

// Backlogs visits the work of this process at endpoints, see [endpointstate.State.Backlogs]. Visit
// must be fast and must not call the Fleet.
func (f *Fleet) Backlogs(visit func(endpointstate.Backlog)) {
	f.moved.Store(false) // before the visit, so that later changes are reported next time
	f.locked(func() { f.state.Backlogs(visit) })
}
